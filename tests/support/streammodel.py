"""A stream as linearizability sees it: where it ends and whether it is closed."""

from __future__ import annotations

from typing import NamedTuple


class Ask(NamedTuple):
    """`what` is "append" or "tail"; `if_match` is the end that an append insists on."""

    what: str
    count: int  # type: ignore[assignment]
    if_match: int | None
    close: bool


class Answer(NamedTuple):
    """Where an append went or where the stream ended; `moved` says that the condition did not hold."""

    offset: int
    moved: bool


class StreamTail(NamedTuple):
    """A state to try calls on."""

    end: int
    closed: bool = False

    def after(self, asked: Ask, told: Answer) -> StreamTail | None:
        if told.offset != self.end:
            return None
        if asked.what == "tail":
            return self
        matches = asked.if_match is None or asked.if_match == self.end
        if told.moved:
            return None if matches or self.closed else self
        return StreamTail(self.end + asked.count, asked.close) if matches and not self.closed else None

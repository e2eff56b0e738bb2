"""The model of a stream for the linearizability check: its end, and whether it is closed."""

from __future__ import annotations

from typing import NamedTuple


class StreamRequest(NamedTuple):
    """`what` is "append" or "tail"; `if_match` is the end that an append requires."""

    what: str
    count: int  # type: ignore[assignment]
    if_match: int | None
    close: bool


class StreamResponse(NamedTuple):
    """Where an append went or where the stream ended; `moved` is true if the condition did not hold."""

    offset: int
    moved: bool


class StreamTail(NamedTuple):
    """A state to try calls on."""

    end: int
    closed: bool = False

    def after(self, request: StreamRequest, response: StreamResponse) -> StreamTail | None:
        if response.offset != self.end:
            return None
        if request.what == "tail":
            return self
        matches = request.if_match is None or request.if_match == self.end
        if response.moved:
            return None if matches or self.closed else self
        return StreamTail(self.end + request.count, request.close) if matches and not self.closed else None

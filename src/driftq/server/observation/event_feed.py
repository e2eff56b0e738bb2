"""A feed of what changes, made from durable facts: it keeps open pages live without polling.

    facts ──observe──▶ a table of changes, one row for each name ──every FLUSH_S──▶ events ──▶ reader 1, 2, …
            nothing, without a reader                                                └─ only what each may see

1. Changes are summed up: a topic that gets ten thousand messages in an interval is one event with a count.
2. Each event is encoded once. A reader gets those that its grants cover.
3. A reader whose socket is full misses events. When it takes more it gets one `resync`: read again what is shown.
4. Everything is bounded: `READERS_MAX` readers, `ROWS_MAX` rows in an interval. With more rows all readers resync.
"""

from __future__ import annotations

import asyncio
from time import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import json

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.stream_facts import StreamClosed, StreamCreated, StreamDeleted
from driftq.server.access.identity import sees_group, sees_stream, sees_topic

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.access.identity import Identity
    from driftq.server.http import ResponseStream

FLUSH_S = 0.5
ROWS_MAX = 1_000
READERS_MAX = 1_000
KEEP_ALIVE_S = 15.0
RESYNC = b"event: resync\ndata: {}\n\n"

Kind = Literal["topic", "group", "stream"]
Row = tuple[Kind, int]  # a topic or stream by its log, a group by its number


class FeedEvent(NamedTuple):
    """An event as bytes, and what a reader must be allowed to see for it."""

    kind: Kind
    name: str
    group: str
    data: bytes

    def is_seen(self, identity: Identity | None) -> bool:
        if self.kind == "topic":
            return sees_topic(identity, self.name)
        if self.kind == "group":
            return sees_group(identity, self.name, self.group)
        return sees_stream(identity, self.name)


class FeedReader:
    """One open feed."""

    __slots__ = ("has_missed", "identity", "stream")

    def __init__(self, stream: ResponseStream, identity: Identity | None) -> None:
        self.stream = stream
        self.identity = identity
        self.has_missed = False


class EventFeed:
    """The feed of one broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers: set[FeedReader] = set()
        self._rows: dict[Row, dict[str, int]] = {}  # what happened since the last flush
        self._named: list[tuple[Kind, str, str, str]] = []  # (kind, name, group, what happened)
        self._has_overflowed = False
        self._timer: asyncio.TimerHandle | None = None
        engine.sequencer.observers.append(self.observe)

    @property
    def is_full(self) -> bool:
        return len(self._readers) >= READERS_MAX

    async def follow(self, stream: ResponseStream, identity: Identity | None) -> None:
        """Write events to a reader until it disconnects, the server stops or its credential ends."""
        await stream.start(200, [("Cache-Control", "no-cache")], "text/event-stream")
        reader = FeedReader(stream, identity)
        self._readers.add(reader)
        try:
            stream.write(b"event: ready\ndata: {}\n\n")
            while not stream.over and _is_valid(identity):
                try:
                    await asyncio.wait_for(stream.wait_over(), KEEP_ALIVE_S)
                except TimeoutError:
                    if stream.writable:
                        stream.write(b": alive\n\n")
                    else:
                        reader.has_missed = True
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._rows.clear()
                self._named.clear()

    # --- facts ---

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        if not self._readers:
            return
        for fact in facts:
            self._note(fact)
        if self._timer is None and (self._rows or self._named):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_S, self._engine.monitor.timed("events", self._start_flush))

    def _note(self, fact: f.Fact) -> None:
        match fact:
            case f.Appended():
                self._count(("topic", fact.log_id), "appended", fact.count)
            case Published():
                for part in fact.parts:
                    self._count(("topic", part.log_id), "appended", part.count)
            case f.Leased():
                self._count(("group", fact.group_id), "delivered", _size(fact.ranges))
            case f.Settled():
                self._count(("group", fact.group_id), "dead" if fact.how == f.DEAD else "settled", _size(fact.ranges))
            case f.Failed():
                self._count(("group", fact.group_id), "failed", 1)
            case f.GroupCreated():
                self._name("group", fact.topic, fact.group, "created")
            case f.GroupPaused():
                self._count(("group", fact.group_id), "paused" if fact.paused else "resumed", 1)
            case f.GroupSought():
                self._count(("group", fact.group_id), "moved", 1)
            case f.TopicCreated():
                self._name("topic", fact.topic, "", "created")
            case f.TopicConfigured():
                self._name("topic", fact.topic, "", "changed")
            case f.TopicDeleted():
                self._name("topic", fact.topic, "", "deleted")
            case StreamCreated():
                self._name("stream", fact.path, "", "created")
            case StreamClosed():
                self._count(("stream", fact.log_id), "closed", 1)
            case StreamDeleted() | f.GroupDeleted():
                self._has_overflowed = True  # the name is gone with it: read again what is shown
                self._rows.setdefault(("topic", 0), {})
            case _:
                pass

    def _count(self, row: Row, what: str, count: int) -> None:
        counts = self._rows.get(row)
        if counts is None:
            if len(self._rows) >= ROWS_MAX:
                self._has_overflowed = True
                return
            counts = self._rows[row] = {}
        counts[what] = counts.get(what, 0) + count

    def _name(self, kind: Kind, name: str, group: str, what: str) -> None:
        if len(self._named) >= ROWS_MAX:
            self._has_overflowed = True
        else:
            self._named.append((kind, name, group, what))

    # --- readers ---

    def _start_flush(self) -> None:
        rows, named, has_overflowed = self._rows, self._named, self._has_overflowed
        self._rows, self._named, self._has_overflowed, self._timer = {}, [], False, None
        if has_overflowed:
            for reader in self._readers:
                reader.has_missed = True
        task = asyncio.ensure_future(self._engine.monitor.steps("events", self._flush(rows, named)))
        task.add_done_callback(_result)

    async def _flush(self, rows: dict[Row, dict[str, int]], named: list[tuple[Kind, str, str, str]]) -> None:
        events = [_event(kind, name, group, {what: 1}) for kind, name, group, what in named]
        events += await self._engine.queries.result(lambda view: _named_rows(view, rows))
        for reader in list(self._readers):
            if reader.stream.over or not _is_valid(reader.identity):
                continue
            if not reader.stream.writable:
                reader.has_missed = True
            elif reader.has_missed:
                reader.has_missed = False
                reader.stream.write(RESYNC)
            else:
                data = b"".join(event.data for event in events if event.is_seen(reader.identity))
                if data:
                    reader.stream.write(data)
            await asyncio.sleep(0)  # a reader is enough for one turn of the loop


def _named_rows(view: StateView, rows: dict[Row, dict[str, int]]) -> list[FeedEvent]:
    """Rows with the names of what they are about. What was deleted in the meantime has none."""
    events: list[FeedEvent] = []
    for (kind, number), counts in rows.items():
        if kind == "group":
            group = view.state.groups.get(number)
            if group is not None:
                events.append(_event("group", group.topic, group.name, counts))
            continue
        log, stream = view.state.logs.get(number), view.state.streams.by_log.get(number)
        if log is not None and log.topic:
            events.append(_event("topic", log.topic, "", counts))
        elif stream is not None and not stream.soft_deleted:
            events.append(_event("stream", stream.path, "", counts))
    return events


def _event(kind: Kind, name: str, group: str, counts: dict[str, int]) -> FeedEvent:
    fields = {"stream" if kind == "stream" else "topic": name, **({"group": group} if group else {}), **counts}
    return FeedEvent(kind, name, group, b"event: %b\ndata: %b\n\n" % (kind.encode(), json.encode(fields)))


def _is_valid(identity: Identity | None) -> bool:
    return identity is None or identity.until_s > time()


def _size(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(end - first for first, end in ranges)


def _result(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.result()

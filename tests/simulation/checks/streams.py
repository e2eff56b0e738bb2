"""Streams: O1 (append, conditional append and tail are linearizable), O2 (a refusal names the tail it saw), O3 (a
stream is created once), a closed stream stays closed, Stream-Seq rises, forks read what their source held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.replies import OutcomeReply, Rejected, StreamAppended, StreamReady, StreamsListed
from driftq.core.model.stream_facts import StreamClosed, StreamCreated, StreamDeleted, StreamTouched
from driftq.core.state.state import State
from driftq.wire.errors import Code
from tests.simulation.checks.ledger import WAKES, Ledger
from tests.simulation.checks.queues import hinted
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation
from tests.support.linearizability import Call, is_linearizable
from tests.support.stream_model import StreamRequest, StreamResponse, StreamTail

CALLS_MAX = 600


class StreamModel:
    """One stream, from its creation to its deletion."""

    __slots__ = ("begin", "calls", "closed", "created", "log_id", "seq", "soft", "touched_ms")

    def __init__(self, fact: StreamCreated) -> None:
        self.created = fact
        self.log_id = fact.log_id
        self.closed = fact.closed
        self.seq = ""
        self.soft = False
        self.touched_ms = fact.at_ms
        self.begin = fact.start_offset  # its first end
        self.calls: list[Call[StreamRequest, StreamResponse]] = []

    def expires_ms(self) -> int | None:
        if self.created.ttl_s is not None:
            return self.touched_ms + 1_000 * self.created.ttl_s
        return self.created.expires_at_ms


class StreamsCheck:
    """Streams by log, and the newest by path."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.by_log: dict[int, StreamModel] = {}
        self.by_path: dict[str, StreamModel] = {}
        self.histories = 0
        self.calls = 0
        self._step = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            StreamCreated: self._created,
            StreamClosed: self._closed,
            StreamDeleted: self._deleted,
            StreamTouched: self._touched,
            f.Appended: self._appended,
            Published: self._published,
        }

    def _created(self, fact: StreamCreated, op: Operation) -> None:
        known = self.by_path.get(fact.path)
        demand(known is None, "O3", f"{op}: {fact.path} was created while it exists")
        self.by_path[fact.path] = self.by_log[fact.log_id] = StreamModel(fact)

    def _closed(self, fact: StreamClosed, op: Operation) -> None:
        stream = self.by_log[fact.log_id]
        demand(not stream.closed, "closed", f"{op}: {stream.created.path} was closed twice")
        stream.closed = True
        self._moved(stream, fact.at_ms, fact.stream_seq, op)

    def _deleted(self, fact: StreamDeleted, op: Operation) -> None:
        stream = self.by_log[fact.log_id]
        if isinstance(op.command, c.Sweep):
            expires_ms = stream.expires_ms()
            over = stream.soft or (expires_ms is not None and expires_ms <= op.at_ms)
            demand(over, "O3", f"{op}: {stream.created.path} was swept away before its time")
        if fact.soft:
            stream.soft = True
            return
        forks = [fork for fork in self.by_log.values() if fork.created.source_log_id == fact.log_id]
        demand(not forks, "O3", f"{op}: the source of {[fork.created.path for fork in forks]} is gone")
        self.linearizes(stream)
        del self.by_log[fact.log_id]
        if self.by_path.get(stream.created.path) is stream:
            del self.by_path[stream.created.path]

    def _touched(self, fact: StreamTouched, op: Operation) -> None:
        self.by_log[fact.log_id].touched_ms = fact.at_ms

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        stream = self.by_log.get(fact.log_id)
        if stream is None:
            return
        demand(not stream.closed, "closed", f"{op}: something was appended to the closed {stream.created.path}")
        along = fact.along
        self._moved(stream, fact.at_ms, along.stream_seq if along else "", op)
        if stream.created.path == WAKES:
            return
        part = _append_to(op.command, stream.created.path)
        if isinstance(op.command, c.CreateStream):
            stream.begin = fact.first_offset + fact.count
        closes = part.close if part is not None else getattr(op.command, "closed", False)
        prefix = part is None and fact.count == 1 and getattr(op.command, "fork_sub_offset", None)
        if not prefix or not op.command.count:  # type: ignore[attr-defined]
            marked_closed = along is not None and along.closes
            demand(
                marked_closed == (closes and not prefix),
                "closed",
                f"{op}: the close is not in the frame of the last append",
            )
        stream.closed = along is not None and along.closes

    def _published(self, fact: Published, op: Operation) -> None:
        for part in fact.parts:
            stream = self.by_log.get(part.log_id)
            if stream is not None:
                demand(not stream.closed, "closed", f"{op}: published into the closed {stream.created.path}")
                self._moved(stream, fact.at_ms, "", op)
                at = StreamRequest("append", part.count, None, False)
                self._note(stream, op, at, StreamResponse(part.first_offset, False), self._step)

    def _moved(self, stream: StreamModel, at_ms: int, seq: str, op: Operation) -> None:
        stream.touched_ms = max(stream.touched_ms, at_ms)
        demand(not stream.soft, "O3", f"{op}: the deleted {stream.created.path} was written to")
        if seq:
            rises = not stream.seq or seq.encode() > stream.seq.encode()
            demand(rises, "Stream-Seq", f"{op}: {seq!r} was accepted behind {stream.seq!r}")
            stream.seq = seq

    # --- replies ---

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {
            StreamAppended: lambda op, reply: self._append_reply(op, op.command, reply),
            StreamReady: self._ready,
            OutcomeReply: self._outcome,
            Rejected: self._rejected,
            StreamsListed: self._listed,
        }

    def _outcome(self, op: Operation, reply: OutcomeReply) -> None:
        for part, result in zip(op.command.appends, reply.appended, strict=True):  # type: ignore[attr-defined]
            self._append_reply(op, part, result)

    def _append_reply(self, op: Operation, command: Any, reply: Any) -> None:
        stream = self.by_path.get(command.path)
        if stream is None:
            return
        demand(reply.closed == stream.closed, "closed", f"{op}: told closed={reply.closed}")
        if reply.duplicate:
            return
        if command.close:
            demand(stream.closed, "closed", f"{op}: the reply is that it closed {command.path}")
        ask = StreamRequest("append", command.count, command.if_match, command.close)
        self._note(stream, op, ask, StreamResponse(reply.first_offset, False), self._step)

    def _rejected(self, op: Operation, reply: Rejected) -> None:
        command = op.command
        if not isinstance(command, c.AppendStream):
            return
        stream = self.by_path.get(command.path)
        if stream is None:
            demand(reply.code is not Code.CLOSED, "closed", f"{op}: a stream that does not exist was called closed")
            return
        end = self._ledger.logs[stream.log_id].end
        if reply.code is Code.TAIL_MOVED:
            moved = reply.details["end_offset"] == end != command.if_match
            demand(moved, "O2", f"{op}: expected {command.if_match}, told {reply.details}, the tail was {end}")
            ask = StreamRequest("append", command.count, command.if_match, command.close)
            self._note(stream, op, ask, StreamResponse(end, True), self._step)
        elif reply.code is Code.CLOSED:
            demand(stream.closed, "closed", f"{op}: the open {command.path} was called closed")
        elif reply.code is Code.NOT_FOUND:
            expires_ms = stream.expires_ms()
            over = expires_ms is not None and expires_ms <= op.at_ms
            demand(over, "O3", f"{op}: the living {command.path} was not found")

    def _listed(self, op: Operation, reply: StreamsListed) -> None:
        command: Any = op.command
        alive = [
            path
            for path, stream in sorted(self.by_path.items())
            if path.startswith(command.prefix) and not stream.soft and not self._is_over(stream, op.at_ms)
        ]
        paths = [entry.path for entry in reply.streams]
        demand(paths == alive[: command.limit], "O3", f"{op} got {paths}; there are {alive}")

    def _is_over(self, stream: StreamModel, now_ms: int) -> bool:
        expires_ms = stream.expires_ms()
        return expires_ms is not None and expires_ms <= now_ms

    def _ready(self, op: Operation, reply: StreamReady) -> None:
        stream = self.by_path.get(op.command.path)  # type: ignore[attr-defined]
        right = stream is not None and stream.log_id == reply.log_id and reply.created == op.own
        demand(right, "O3", f"{op}: told log {reply.log_id}, created={reply.created}")

    def tail(self, log_id: int, end: int, step: int) -> None:
        """A client asked for the tail and got a reply."""
        stream = self.by_log.get(log_id)
        if stream is not None and len(stream.calls) < CALLS_MAX:
            stream.calls.append(Call(step, step, StreamRequest("tail", 0, None, False), StreamResponse(end, False)))

    def unknown(self, op: Operation) -> None:
        """The frames decide: an append without a reply happened if it is in the log."""
        for part in getattr(op.command, "appends", (op.command,)):
            if op.own and isinstance(part, c.AppendStream) and part.count:
                stream = self.by_path.get(part.path)
                if stream is None:
                    continue
                log = self._ledger.logs[stream.log_id]
                where = [first for first, batch in zip(log.firsts, log.batches) if batch[24:] == part.batch[24:]]
                if where:
                    ask = StreamRequest("append", part.count, part.if_match, part.close)
                    self._note(stream, op, ask, StreamResponse(where[-1], False), self._step)

    def _note(
        self, stream: StreamModel, op: Operation, ask: StreamRequest, answer: StreamResponse, returned: int
    ) -> None:
        if len(stream.calls) < CALLS_MAX:
            stream.calls.append(Call(op.step, max(op.step, returned), ask, answer))

    def at_step(self, step: int) -> None:
        self._step = step

    def linearizes(self, stream: StreamModel) -> None:
        if stream.created.path == WAKES or len(stream.calls) < 2 or len(stream.calls) >= CALLS_MAX:
            return
        self.histories += 1
        self.calls += len(stream.calls)
        begin = StreamTail(stream.begin, stream.created.closed)
        calls = stream.calls
        if not is_linearizable(calls, begin):
            raise Violation("O1", f"the history of {stream.created.path} ({len(calls)} calls) is not linearizable")

    # --- when nothing is in flight ---

    def compare(self, state: State, now_ms: int) -> None:
        demand(sorted(state.streams.by_log) == sorted(self.by_log), "O3", "other streams exist than were created")
        for log_id, stream in self.by_log.items():
            known = state.streams.by_log[log_id]
            shown = (known.closed, known.stream_seq, known.soft_deleted, known.touched_ms)
            mine = (stream.closed, stream.seq, stream.soft, stream.touched_ms)
            demand(shown == mine, "closed", f"{stream.created.path}: shows {shown}, should {mine}")
            expires_ms = stream.expires_ms()
            if expires_ms is not None and not stream.soft:
                hinted(state, expires_ms, now_ms, ("stream", log_id, 0))
            self._forked(state, stream)

    def _forked(self, state: State, stream: StreamModel) -> None:
        """The chain of logs that a stream is read from."""
        end = self._ledger.logs[stream.log_id].end
        expected: list[tuple[int, int, int]] = []
        source, upto = stream, end
        while True:
            start = source.created.start_offset
            if upto > start:
                expected.append((source.log_id, start, upto))
            if source.created.source_log_id is None:
                break
            upto = min(upto, start)
            source = self.by_log[source.created.source_log_id]
        resolved = state.streams.resolve(state.streams.by_log[stream.log_id], 0, end)
        demand(
            resolved == expected[::-1], "forks", f"{stream.created.path} is read from {resolved}, not {expected[::-1]}"
        )


def _append_to(command: Any, path: str) -> c.AppendStream | None:
    parts = command.appends if isinstance(command, c.CommitOutcome) else (command,)
    return next((part for part in parts if isinstance(part, c.AppendStream) and part.path == path), None)

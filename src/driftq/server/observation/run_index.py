"""An index of runs: which messages and streams belong to which run, by the `run_id` of envelopes.

    durable facts ──observe──▶ places to look at ──a task, in slices──▶ envelopes ──▶ runs: their steps and streams
    a start ──▶ the last day of every topic, from the log store ──▶ the same

1. **Observe.** A batch without heads, or without the text `"run_id"`, costs a glance. For others only the place is
   noted; the task reads the envelopes later.
2. **Build.** After a start the task looks through the last day of the topics, the newest first, within a budget.
3. **Read.** Only places and names are kept. States, attempts and errors are read from the broker's state when asked.

A stream belongs to the run that its path names after a segment `runs`: `acme/runs/42/tokens` is of run 42.

Bounds: 10,000 runs, 100,000 steps in all, 1,000 of a run, a day since the last message. The oldest runs go first.
Everything can be built again: it is a cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.context import Unreadable
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published
from driftq.core.model.stream_facts import StreamCreated
from driftq.engine.cold_reads import AWAY_S, RecordsAway
from driftq.server.slices import collected, next_slice, when_here
from driftq.storage.corruption import CorruptLog
from driftq.wire.message import read_head
from driftq.wire.records import CHECKED_FROM, HEADS, ZSTD, BadBatch, read_header

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.storage.cold_segments import ColdRange

RUNS_MAX = 10_000
STEPS_MAX = 100_000
RUN_STEPS_MAX = 1_000
RUN_STREAMS_MAX = 100
AGE_MS = 86_400_000
WAITING_MAX = 50_000  # places that wait to be looked at; more are passed over
BUILD_BYTES = 256 << 20  # that are read after a start
READ_BYTES = 256 << 10
_MARK = b'"run_id"'


class IndexedStep(NamedTuple):
    """A message of a run."""

    log_id: int
    offset: int
    at_ms: int
    step_id: str
    parent_step_id: str


class IndexedRun:
    """The steps and streams of one run."""

    __slots__ = ("first_ms", "last_ms", "omitted", "run_id", "steps", "streams")

    def __init__(self, run_id: str, at_ms: int) -> None:
        self.run_id = run_id
        self.first_ms = self.last_ms = at_ms
        self.steps: dict[tuple[int, int], IndexedStep] = {}  # by log and offset
        self.streams: dict[str, None] = {}
        self.omitted = 0  # steps that had no room


class RunIndex:
    """The runs of one broker."""

    def __init__(self, engine: Engine) -> None:
        self.runs: dict[str, IndexedRun] = {}  # by id; the one that changed last comes last
        self.is_complete = True  # false while it is built after a start
        self._engine = engine
        self._steps = 0
        self._waiting: deque[tuple[int, int, int]] = deque(maxlen=WAITING_MAX)  # (log, first offset, end)
        self._task: asyncio.Task[None] | None = None
        engine.sequencer.observers.append(self.observe)

    # --- facts ---

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        for fact in facts:
            kind = type(fact)
            if kind is f.Appended:
                assert isinstance(fact, f.Appended)
                attributes = fact.batch[CHECKED_FROM]
                if attributes & HEADS and (attributes & ZSTD or _MARK in fact.batch):
                    self._note(fact.log_id, fact.first_offset, fact.first_offset + fact.count)
            elif kind is StreamCreated:
                assert isinstance(fact, StreamCreated)
                self._add_stream(fact.path, fact.at_ms)
            elif kind is Published:
                assert isinstance(fact, Published)
                for part in fact.parts:
                    self._note(part.log_id, part.first_offset, part.first_offset + part.count)

    def _note(self, log_id: int, first: int, end: int) -> None:
        self._waiting.append((log_id, first, end))
        if self._task is None:
            self._task = asyncio.ensure_future(self._engine.monitor.steps("runs", self._work()))

    async def caught_up(self) -> None:
        """Wait until everything that was durable before is in the index."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1.0)

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # what else this sync made durable is looked at together
            while self._waiting:
                log_id, first, end = self._waiting.popleft()
                await self._look_at(log_id, first, end)
        finally:
            self._task = None

    async def _look_at(self, log_id: int, first: int, end: int) -> int:
        """Add the messages of a range of a topic; returns the bytes that were read."""
        topic = await self._engine.queries.result(lambda view: _topic_of(view, log_id))
        size = 0
        while topic and first < end:
            try:
                batches = await self._engine.read_cold(log_id, first, end, READ_BYTES)
            except RecordsAway:
                await asyncio.sleep(AWAY_S)  # new records are looked at after these
                continue
            except CorruptLog as error:
                first = max(first + 1, error.end_offset)
                continue
            if not batches:
                break
            for batch in batches:
                header = read_header(batch)
                size += len(batch)
                low, high = max(first, header.first_offset), min(end, header.end_offset)
                first = max(first, high)
                if header.attributes & HEADS and (header.attributes & ZSTD or _MARK in batch):
                    rows = self._rows(log_id, batch, low, high)
                    for _ in iter(lambda rows=rows: next_slice(rows), None):  # type: ignore[misc]
                        await asyncio.sleep(0)
            await asyncio.sleep(0)
        return size

    def _rows(self, log_id: int, batch: bytes, low: int, high: int) -> Iterator[None]:
        """Adds the messages of one batch; a step for each hundred."""
        header = read_header(batch)
        for first in range(low, high, 100):
            try:
                records = self._engine.unpack(log_id, batch, header, first, min(high, first + 100))
            except BadBatch:
                return
            for offset, record in enumerate(records, first):
                if _MARK in record.head:
                    envelope = read_head(record.head).envelope
                    if envelope is not None and envelope.run_id:
                        step = IndexedStep(log_id, offset, header.at_ms, envelope.step_id, envelope.parent_step_id)
                        self._add(envelope.run_id, step)
            yield

    def _add(self, run_id: str, step: IndexedStep) -> None:
        run = self._run(run_id, step.at_ms)
        key = step.log_id, step.offset
        if key in run.steps:
            return
        if len(run.steps) >= RUN_STEPS_MAX:
            run.omitted += 1
            return
        run.steps[key] = step
        self._steps += 1
        self._shrink(run)

    def _add_stream(self, path: str, at_ms: int) -> None:
        run_id = run_of_path(path)
        if run_id:
            run = self._run(run_id, at_ms)
            if len(run.streams) < RUN_STREAMS_MAX:
                run.streams[path] = None
            self._shrink(run)

    def _run(self, run_id: str, at_ms: int) -> IndexedRun:
        run = self.runs.pop(run_id, None) or IndexedRun(run_id, at_ms)
        run.first_ms, run.last_ms = min(run.first_ms, at_ms), max(run.last_ms, at_ms)
        self.runs[run_id] = run
        return run

    def _shrink(self, kept: IndexedRun) -> None:
        """Drop the runs that changed longest ago, as far as the bounds demand."""
        oldest_ms = self._engine.now_ms() - AGE_MS
        while self.runs:
            run = next(iter(self.runs.values()))
            is_over = len(self.runs) > RUNS_MAX or self._steps > STEPS_MAX or run.last_ms < oldest_ms
            if not is_over or run is kept:
                return
            del self.runs[run.run_id]
            self._steps -= len(run.steps)

    # --- after a start ---

    def start(self) -> None:
        """Build the index in the background."""
        self.is_complete = False
        self._task = asyncio.ensure_future(self._engine.monitor.steps("runs", self._build()))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _build(self) -> None:
        oldest_ms = self._engine.now_ms() - AGE_MS
        queries = self._engine.queries
        for path, at_ms in await collected(queries, lambda view: _streams_since(view, oldest_ms)):
            self._add_stream(path, at_ms)
        ranges = await collected(queries, lambda view: _logs_since(view, oldest_ms))
        ranges.sort(reverse=True)
        budget = BUILD_BYTES
        for _, log_id, first, end in ranges:
            if budget <= 0:
                break
            budget -= await self._look_at(log_id, first, end)
        self.runs = dict(sorted(self.runs.items(), key=lambda item: item[1].last_ms))
        self.is_complete = True
        await self._work()


def run_of_path(path: str) -> str:
    """The run that a stream belongs to; empty if it belongs to none."""
    if "runs/" not in path:
        return ""
    segments = path.split("/")
    return next((id for name, id in pairwise(segments) if name == "runs" and id), "")


def _topic_of(view: StateView, log_id: int) -> str:
    """The topic of a log, without dead letters: they are copies."""
    log = view.state.logs.get(log_id)
    topic = view.state.topics.get(log.topic) if log is not None else None
    return topic.name if topic is not None and not topic.dead_of else ""


def _streams_since(view: StateView, oldest_ms: int) -> Iterator[tuple[str, int] | None]:
    for stream in list(view.state.streams.by_path.values()):
        is_shown = stream.created.at_ms >= oldest_ms and "runs/" in stream.path and not stream.soft_deleted
        yield (stream.path, stream.created.at_ms) if is_shown else None


def _logs_since(view: StateView, oldest_ms: int) -> Iterator[tuple[int, int, int, int] | ColdRange | None]:
    """(time of the last message, log, first offset, end) of partitions with messages of this time."""
    for topic in list(view.state.topics.values()):
        for log_id in topic.log_ids if not topic.dead_of else ():
            log = view.state.logs.get(log_id)
            if log is None or log.last_ms < oldest_ms or log.start == log.end:
                yield None
                continue
            try:
                first = yield from when_here(partial(view.reader.offset_at, log_id, oldest_ms))
            except Unreadable:
                first = log.start
            yield log.last_ms, log_id, max(first, log.start), log.end

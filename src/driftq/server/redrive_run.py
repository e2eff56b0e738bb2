"""A redrive: dead letters are produced again and settled, many in each frame.

    LetterSearch ── letters ──▶ parts by partition ──▶ one `Redrive` command ──▶ next letters, after other requests

Letters that go to the same partition become one batch, in order. A letter of a job with an id is a part of its own,
because an append carries one id. A batch is refused as a whole; then its letters are sent one by one, so that each gets
its own answer. What was redriven in the meantime by another call is neither redriven nor failed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.replies import Produced, RedriveResult, Rejected
from driftq.core.state.idempotency_keys import job_key
from driftq.server.produced_message import schedule_of
from driftq.wire.dead_letters import REDRIVE_GROUP, RedriveFailure, RedriveReply, RedriveRequest
from driftq.wire.fields import from_rfc3339
from driftq.wire.message import encode_head
from driftq.wire.namespaces import beside
from driftq.wire.partitions import partition_of
from driftq.wire.records import Record, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.core.state.groups import Topic
    from driftq.engine.engine import Engine
    from driftq.server.dead_letter_index import Letter
    from driftq.server.dead_letter_scan import LetterSearch

FRAME_LETTERS = 256
FRAME_FACTS = 10_000  # letters times groups: a directed letter is settled for every other group
STEPS_PER_S = 10  # frames in a second, if the rate is limited

Target = tuple[str, int]  # topic and partition that a letter goes back to


class _LettersOfPart:
    """Letters that become one batch, for a partition of a topic."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.job: c.ProduceKey | None = None  # the id of a job that goes to another topic than its own
        self.letters: list[Letter] = []
        self.records: list[Record] = []
        self.marks: list[RecordSchedule] = []

    def add(self, letter: Letter, record: Record, schedule: RecordSchedule | None) -> None:
        if schedule is not None:
            self.marks.append(replace(schedule, index=len(self.letters)))
        self.letters.append(letter)
        self.records.append(record)

    def part(self, message_bytes: int) -> v.RedrivePart:
        first = self.letters[0]
        size = sum(record.size_bytes for record in self.records)
        if len(self.records) == 1 and len(self.records[0].key) + len(self.records[0].value) <= message_bytes:
            size = min(size, message_bytes)  # accepted once; its head also holds where it died
        produce = c.Produce(
            topic=self.target[0],
            batch=pack(self.records, scheduled=bool(self.marks)),
            count=len(self.records),
            payload_bytes=size,
            partition=self.target[1],
            marks=tuple(self.marks),
            job=self.job,
        )
        return v.RedrivePart(first.partition, tuple(letter.offset for letter in self.letters), produce)


class RedriveRun:
    """One redrive of the letters that a search finds."""

    def __init__(
        self, engine: Engine, topic: Topic, body: RedriveRequest, audited: Callable[[v.Redrive], v.Redrive]
    ) -> None:
        self._engine = engine
        self._topic = topic
        self._body = body
        self._audited = audited  # each frame is a change with a record of its own
        self._redriven = 0
        self._failed: list[RedriveFailure] = []

    async def run(self, search: LetterSearch) -> RedriveReply:
        body = self._body
        frame_letters = self._frame_letters()
        while not search.is_over and (room := body.limit - self._redriven - len(self._failed)) > 0:
            letters = search.step(min(frame_letters, room))
            if letters:
                await self._send(self._parts(letters))
            await asyncio.sleep(len(letters) / body.rate_per_s if body.rate_per_s else 0)
        matched = self._redriven + len(self._failed)
        return RedriveReply("redriven", matched, self._redriven, self._failed, search.after())

    def _frame_letters(self) -> int:
        origin = self._engine.latest_state.topics.get(self._topic.dead_of)
        letters = FRAME_FACTS // max(1, len(origin.groups)) if origin is not None else FRAME_LETTERS
        if self._body.rate_per_s:
            letters = min(letters, self._body.rate_per_s // STEPS_PER_S)
        return max(1, min(FRAME_LETTERS, letters))

    def _parts(self, letters: list[Letter], *, alone: bool = False) -> list[_LettersOfPart]:
        """The letters in order, as few parts as possible; with `alone` each has its own."""
        message_bytes = self._engine.queries.limits.message_bytes
        parts: list[_LettersOfPart] = []
        filling: dict[tuple[Target, int], _LettersOfPart] = {}
        for letter in letters:
            record, schedule = self._message(letter)
            target = (self._target(letter, record), letter.partition)
            has_id = letter.head.job is not None and bool(letter.head.job.id)
            is_alone = alone or has_id or record.size_bytes > message_bytes
            part = None if is_alone else filling.get(target)
            if part is None:
                part = _LettersOfPart(target[0])
                parts.append(part)
                part.job = self._id_elsewhere(letter) if has_id else None
                filling[target] = part
            part.add(letter, record, schedule)
            if is_alone:
                del filling[target]  # later ones come after it
        return parts

    def _target(self, letter: Letter, record: Record) -> Target:
        """Back to where it was, or to the partition of its key in another topic."""
        name = self._body.to_topic
        if not name:
            return beside(self._topic.name, letter.origin.topic), letter.origin.partition
        topic = self._engine.latest_state.topics.get(name)
        partitions = len(topic.log_ids) if topic is not None else 1  # the broker refuses it
        return name, partition_of(record.key, partitions) if record.key else letter.partition % partitions

    def _id_elsewhere(self, letter: Letter) -> c.ProduceKey | None:
        job, envelope, name = letter.head.job, letter.head.envelope, self._body.to_topic
        if job is None or not name:
            return None  # the broker gives it its id again, if that is free
        return c.ProduceKey(envelope.tenant_id if envelope is not None else "", name, job_key(job.id))

    async def _send(self, parts: list[_LettersOfPart]) -> None:
        message_bytes = self._engine.queries.limits.message_bytes
        dead = self._topic.name
        command = v.Redrive(dead, REDRIVE_GROUP, tuple(part.part(message_bytes) for part in parts))
        reply = await self._engine.submit(self._audited(command))
        if isinstance(reply, Rejected):
            for part in parts:
                self._fail(part.letters, reply.message)
            return
        assert isinstance(reply, RedriveResult)
        again: list[Letter] = []
        for part, result in zip(parts, reply.parts, strict=True):
            if isinstance(result, Produced):
                self._redriven += len(part.letters)
            elif len(part.letters) > 1:
                again += part.letters
            elif isinstance(result, Rejected):
                self._fail(part.letters, result.message)
        if again:
            await self._send(self._parts(again, alone=True))

    def _fail(self, letters: list[Letter], message: str) -> None:
        self._failed += [RedriveFailure(letter.partition, letter.offset, message) for letter in letters]

    def _message(self, letter: Letter) -> tuple[Record, RecordSchedule | None]:
        """The message to produce, with the replacements of the request, and its schedule. Its origin stays in its head.
        A deadline that has passed no longer counts; with `keep_deadline` it stays in the envelope."""
        body, head, text = self._body, letter.head, letter.record.head
        value = body.value.encode() if body.value is not None else letter.record.value
        key = body.key.encode() if body.key is not None else letter.record.key
        envelope = head.envelope
        deadline_ms = from_rfc3339(envelope.deadline) if envelope is not None and envelope.deadline else 0
        if envelope is not None and 0 < deadline_ms <= self._engine.now_ms():
            deadline_ms = 0
            if not body.keep_deadline:
                envelope = replace(envelope, deadline="")
                text = encode_head(replace(head, envelope=envelope))
        schedule = schedule_of(0, envelope, head.job, head.routing, deadline_ms)
        if not (body.all_groups or body.to_topic):
            schedule = replace(schedule or RecordSchedule(0), group=letter.origin.group)
        return Record(value, key, text), schedule

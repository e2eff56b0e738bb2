"""Dead letters: look at them, group them by error, send them back. A redriven letter is settled in the same frame in
which it is produced again, so a redrive can be repeated and never doubles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from driftq.core import commands as c
from driftq.core.groups import DEAD_PREFIX, Topic
from driftq.core.progress import Place
from driftq.core.replies import Produced, Rejected
from driftq.core.rules.topics import no_such_topic
from driftq.core.state import State
from driftq.engine.engine import Engine
from driftq.server.bodies import number, read_json
from driftq.server.context import Context, json_response
from driftq.server.fingerprint import fingerprint
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.lines import content
from driftq.server.problems import refusal
from driftq.wire.admin import LetterFilter, RedriveRequest
from driftq.wire.message import DeadLetter, Head, read_head
from driftq.wire.records import Record, pack_one, read_header, unpack
from driftq.wire.times import from_rfc3339

REDRIVE_GROUP = "driftq.redrive"
LIST_MAX = 1_000
READ_BYTES = 1 << 20


class Letter(NamedTuple):
    """A dead letter in its log."""

    log_id: int
    partition: int
    offset: int
    at_ms: int
    record: Record
    head: Head

    @property
    def dlq(self) -> DeadLetter:
        assert self.head.dlq is not None
        return self.head.dlq


class DeadLettersFace:
    """Handlers of `/v1/dlq/{topic}`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def list(self, request: Request, topic_name: str) -> Answer:
        limit = number("limit", request.query.get("limit", "100"))
        if not 1 <= limit <= LIST_MAX:
            raise BadRequest(f"limit must be 1 to {LIST_MAX}")
        wanted = _filter(_filter_query(request))
        return self._context.query(lambda view: self._list(view.state, topic_name, wanted, limit))

    def _list(self, state: State, topic_name: str, wanted: Filter, limit: int) -> Response:
        topic = dead_topic(state, topic_name)
        if isinstance(topic, Rejected):
            return refusal(topic)
        items: list[bytes] = []
        for letter in islice(self._waiting(state, topic, wanted), limit):
            front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (letter.partition, letter.offset, letter.at_ms)
            items.append(front + content(letter.record) + b"}")
        return Response(200, b'{"messages":[%b]}\n' % b",".join(items))

    def errors(self, request: Request, topic_name: str) -> Answer:
        """How many there are of each kind of error; numbers and ids in the text do not count."""
        return self._context.query(lambda view: self._errors(view.state, topic_name))

    def _errors(self, state: State, topic_name: str) -> Response:
        topic = dead_topic(state, topic_name)
        if isinstance(topic, Rejected):
            return refusal(topic)
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        for letter in self._waiting(state, topic, _filter(LetterFilter())):
            dlq = letter.dlq
            key = (dlq.group, dlq.reason, fingerprint(dlq.last_error))
            entry = found.setdefault(
                key,
                {"group": dlq.group, "reason": dlq.reason, "error": key[2], "example": dlq.last_error, "count": 0},
            )
            entry["count"] += 1
            entry["last_at"] = dlq.dead_at
        return json_response({"errors": sorted(found.values(), key=lambda entry: -entry["count"])})

    async def redrive(self, request: Request, topic_name: str) -> Response:
        body = read_json(request.body or b"{}", RedriveRequest)
        wanted = _filter(body)
        state = self._engine.latest_state
        topic = dead_topic(state, topic_name)
        if body.dry_run or isinstance(topic, Rejected):
            return await self._engine.queries.result(lambda view: self._dry_run(view.state, topic_name, wanted, body))
        response = await Redrive(self._engine, topic, body).run(self._waiting(state, topic, wanted))
        return await self._engine.queries.result(lambda _: response)  # what was left out may not be durable yet

    def _dry_run(self, state: State, topic_name: str, wanted: Filter, body: RedriveRequest) -> Response:
        topic = dead_topic(state, topic_name)
        if isinstance(topic, Rejected):
            return refusal(topic)
        matched = sum(1 for _ in islice(self._waiting(state, topic, wanted), body.limit))
        return json_response({"status": "dry run", "matched": matched, "redriven": 0, "failed": []})

    def _waiting(self, state: State, topic: Topic, wanted: Filter) -> Iterator[Letter]:
        """The letters of a filter that were not redriven yet."""
        return (
            letter
            for letter in self._letters(state, topic)
            if wanted.admits(letter) and not self._is_redriven(topic, letter)
        )

    def _letters(self, state: State, topic: Topic) -> Iterator[Letter]:
        for log_id in topic.log_ids:
            log = state.logs[log_id]
            offset, end = log.start, self._engine.durable_end(log_id)
            while offset < end:
                for batch in self._engine.read(log_id, offset, end, READ_BYTES):
                    header = read_header(batch)
                    for index, record in enumerate(unpack(batch, header)):
                        at = header.first_offset + index
                        if at >= offset:
                            yield Letter(log_id, log.partition, at, header.at_ms, record, read_head(record.head))
                    offset = header.end_offset

    def _is_redriven(self, topic: Topic, letter: Letter) -> bool:
        group = topic.groups.get(REDRIVE_GROUP)
        return group is not None and group.progress[letter.partition].place_of(letter.offset)[0] is Place.SETTLED


def dead_topic(state: State, name: str) -> Topic | Rejected:
    """The dead-letter topic of a topic; its own name works, too."""
    dead = name if name.startswith(DEAD_PREFIX) else DEAD_PREFIX + name
    return state.topics.get(dead) or no_such_topic(name)


class Filter(NamedTuple):
    """What a request asks for, ready to be compared."""

    group: str
    error: str
    reason: str
    since_ms: int
    until_ms: int
    offsets: frozenset[tuple[int, int]] | None

    def admits(self, letter: Letter) -> bool:
        dlq = letter.dlq
        return (
            self.group in ("", dlq.group)
            and self.error in dlq.last_error
            and self.reason in ("", dlq.reason)
            and self.since_ms <= letter.at_ms < self.until_ms
            and (self.offsets is None or (letter.partition, letter.offset) in self.offsets)
        )


def _filter(body: LetterFilter) -> Filter:
    try:
        since_ms = from_rfc3339(body.since) if body.since else 0
        until_ms = from_rfc3339(body.until) if body.until else 2**62
    except ValueError as error:
        raise BadRequest(f"invalid time: {error}") from None
    offsets = frozenset(body.offsets) if body.offsets is not None else None
    return Filter(body.group, body.error, body.reason, since_ms, until_ms, offsets)


def _filter_query(request: Request) -> LetterFilter:
    names = ("group", "error", "reason", "since", "until")
    return msgspec.convert({name: request.query[name] for name in names if name in request.query}, LetterFilter)


class Redrive:
    """One redrive. Each letter is produced again and settled in one frame; a broken redrive is simply started again."""

    def __init__(self, engine: Engine, topic: Topic, body: RedriveRequest) -> None:
        self._engine = engine
        self._topic = topic
        self._body = body
        self._redriven = 0
        self._failed: list[dict[str, Any]] = []

    async def run(self, letters: Iterator[Letter]) -> Response:
        for letter in letters:
            await self._drive(letter)
            if self._redriven + len(self._failed) == self._body.limit:
                break
            if self._body.rate_per_s:
                await asyncio.sleep(1 / self._body.rate_per_s)
        matched = self._redriven + len(self._failed)
        shown = {"status": "redriven", "matched": matched, "redriven": self._redriven, "failed": self._failed}
        return json_response(shown)

    async def _drive(self, letter: Letter) -> None:
        record = self._edited(letter)
        produce = c.Produce(
            topic=letter.dlq.topic,
            batch=pack_one(record.value, record.key, record.head),
            count=1,
            payload_bytes=len(record.key) + len(record.value),
            partition=letter.dlq.partition,
        )
        command = c.Redrive(self._topic.name, REDRIVE_GROUP, letter.partition, letter.offset, produce)
        reply = await self._engine.submit(command)
        if isinstance(reply, Produced):
            self._redriven += 1
        elif isinstance(reply, Rejected):
            self._failed.append({"partition": letter.partition, "offset": letter.offset, "message": reply.message})

    def _edited(self, letter: Letter) -> Record:
        """The message as it was, with what the request replaces; where it came from stays in its head."""
        body = self._body
        value = body.value.encode() if body.value is not None else letter.record.value
        key = body.key.encode() if body.key is not None else letter.record.key
        return Record(value, key, letter.record.head)

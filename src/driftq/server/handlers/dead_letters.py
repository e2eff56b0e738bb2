"""Dead letters: look at them, group them by error, send them back. A redriven letter is settled in the same frame in
which it is produced again, so a redrive can be repeated and never doubles."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.replies import Produced, Rejected
from driftq.core.state.groups import DEAD_PREFIX, Topic
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.handlers.base import Context, json_response, number, page_limit, read_json, refusal
from driftq.server.http import BadRequest, Request, Response
from driftq.server.message_json import content
from driftq.server.produced_message import mark_of
from driftq.wire.admin import LetterFilter, RedriveRequest
from driftq.wire.errors import fingerprint
from driftq.wire.message import DeadLetter, Head, encode_head, from_rfc3339, read_head
from driftq.wire.records import Record, pack_one, read_header, unpack

if TYPE_CHECKING:
    from driftq.core.state.state import State
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView

REDRIVE_GROUP = "driftq.redrive"
LIST_MAX = 1_000
READ_BYTES = 1 << 16
STEP = 200
START = (0, -1)  # the place before every letter
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)


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


class DeadLettersHandlers:
    """Handlers of `/v1/dlq/{topic}`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    async def list(self, request: Request, topic_name: str) -> Response:
        """A page in the order of partitions and offsets; `after` is the place of the last one shown."""
        limit = page_limit(request)
        place = _place(request.query.get("after", ""))
        wanted = _filter(_filter_query(request))
        items: list[bytes] = []
        after = b""
        async for letter in self._scan(topic_name, wanted, place):
            if isinstance(letter, Rejected):
                return refusal(letter)
            if len(items) == limit:
                after = b',"after":"%d:%d"' % place
                break
            front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (letter.partition, letter.offset, letter.at_ms)
            items.append(front + content(letter.record) + b"}")
            place = (letter.partition, letter.offset)
        return Response(200, b'{"messages":[%b]%b}\n' % (b",".join(items), after))

    async def errors(self, request: Request, topic_name: str) -> Response:
        """How many there are of each kind of error; numbers and ids in the text do not count. `after` counts the kinds
        of the pages before."""
        limit = page_limit(request, LIST_MAX)
        first = number("after", request.query.get("after", "0"))
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        async for letter in self._scan(topic_name, _filter(LetterFilter())):
            if isinstance(letter, Rejected):
                return refusal(letter)
            dlq = letter.dlq
            key = (dlq.group, dlq.reason, fingerprint(dlq.last_error))
            entry = found.setdefault(
                key,
                {"group": dlq.group, "reason": dlq.reason, "error": key[2], "example": dlq.last_error, "count": 0},
            )
            entry["count"] += 1
            entry["last_at"] = dlq.dead_at
        kinds = sorted(found.values(), key=lambda entry: -entry["count"])
        shown: dict[str, Any] = {"errors": kinds[first : first + limit]}
        if len(kinds) > first + limit:
            shown["after"] = str(first + limit)
        return json_response(shown)

    async def redrive(self, request: Request, topic_name: str) -> Response:
        body = read_json(request.body or b"{}", RedriveRequest)
        wanted = _filter(body)
        state = self._engine.latest_state
        topic = dead_topic(state, topic_name)
        if body.dry_run or isinstance(topic, Rejected):
            return await self._dry_run(topic_name, wanted, body)
        letters = (letter for letter in self._letters(state, topic) if wanted.admits(letter))
        response = await RedriveRun(self._engine, topic, body).run(letters)
        return await self._engine.queries.result(lambda _: response)  # what was left out may not be durable yet

    async def _dry_run(self, topic_name: str, wanted: Filter, body: RedriveRequest) -> Response:
        matched = 0
        async for letter in self._scan(topic_name, wanted):
            if isinstance(letter, Rejected):
                return refusal(letter)
            matched += 1
            if matched == body.limit:
                break
        return json_response({"status": "dry run", "matched": matched, "redriven": 0, "failed": []})

    async def _scan(
        self, topic_name: str, wanted: Filter, after: tuple[int, int] = START
    ) -> AsyncIterator[Letter | Rejected]:
        """The letters of a filter that were not redriven yet, from a place on; or why there are none. The loop is free
        between the steps."""

        def begin(view: StateView) -> Iterator[Letter] | Rejected:
            topic = dead_topic(view.state, topic_name)
            return topic if isinstance(topic, Rejected) else self._letters(view.state, topic, after)

        letters = await self._engine.queries.result(begin)
        if isinstance(letters, Rejected):
            yield letters
            return
        while step := await self._engine.queries.result(lambda _: list(islice(letters, STEP))):
            for letter in step:
                if wanted.admits(letter):
                    yield letter
            await asyncio.sleep(0)

    def _letters(self, state: State, topic: Topic, after: tuple[int, int] = START) -> Iterator[Letter]:
        """The letters that were not redriven, from a place on. What was redriven costs nothing."""
        for partition, log_id in enumerate(topic.log_ids):
            log = state.logs.get(log_id)
            if log is None or partition < after[0]:
                continue
            end = self._engine.durable_end(log_id)
            first = after[1] + 1 if partition == after[0] else 0
            offset = _next_waiting(topic, partition, max(log.start, first))
            while offset < end and log_id in state.logs:
                for batch in self._engine.read(log_id, offset, end, READ_BYTES):
                    header = read_header(batch)
                    for index, record in enumerate(unpack(batch, header)):
                        at = header.first_offset + index
                        if at >= offset and _next_waiting(topic, partition, at) == at:
                            yield Letter(log_id, partition, at, header.at_ms, record, read_head(record.head))
                    offset = header.end_offset
                offset = _next_waiting(topic, partition, offset)


def _next_waiting(topic: Topic, partition: int, offset: int) -> int:
    """The first offset from here on that was not redriven."""
    group = topic.groups.get(REDRIVE_GROUP)
    if group is None:
        return offset
    progress = group.progress[partition]
    return progress.settled.next_outside(max(offset, progress.floor))


def waiting_count(state: State, topic: Topic) -> int:
    """Dead letters of a topic that were not redriven."""
    dead = state.topics.get(DEAD_PREFIX + topic.name)
    if dead is None:
        return 0
    group = dead.groups.get(REDRIVE_GROUP)
    count = 0
    for partition, log_id in enumerate(dead.log_ids):
        start, end = state.logs[log_id].start, state.logs[log_id].end
        if group is not None:
            progress = group.progress[partition]
            count += max(0, end - max(start, progress.floor) - progress.settled.count)
        else:
            count += end - start
    return count


def dead_topic(state: State, name: str) -> Topic | Rejected:
    """The dead-letter topic of a topic; its own name works, too."""
    dead = name if name.startswith(DEAD_PREFIX) else DEAD_PREFIX + name
    return state.topics.get(dead) or no_such_topic(name)


def _place(after: str) -> tuple[int, int]:
    """The place of a letter, as `after` names it."""
    found = _PLACE.fullmatch(after)
    if after and found is None:
        raise BadRequest("invalid after: it is the `after` of the page before")
    return (int(found[1]), int(found[2])) if found is not None else START


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


class RedriveRun:
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
        record, mark = self._again(letter)
        produce = c.Produce(
            topic=letter.dlq.topic,
            batch=pack_one(record.value, record.key, record.head, scheduled=mark is not None),
            count=1,
            payload_bytes=len(record.key) + len(record.value),
            partition=letter.dlq.partition,
            marks=(mark,) if mark is not None else (),
        )
        command = c.Redrive(self._topic.name, REDRIVE_GROUP, letter.partition, letter.offset, produce)
        reply = await self._engine.submit(command)
        if isinstance(reply, Produced):
            self._redriven += 1
        elif isinstance(reply, Rejected):
            self._failed.append({"partition": letter.partition, "offset": letter.offset, "message": reply.message})

    def _again(self, letter: Letter) -> tuple[Record, RecordSchedule | None]:
        """The message as it was, with what the request replaces, and its schedule; where it came from stays in its
        head. A deadline counts while it has not passed; one that has passed stays only for the reader's eyes."""
        body, head, text = self._body, letter.head, letter.record.head
        value = body.value.encode() if body.value is not None else letter.record.value
        key = body.key.encode() if body.key is not None else letter.record.key
        envelope = head.envelope
        deadline_ms = from_rfc3339(envelope.deadline) if envelope is not None and envelope.deadline else 0
        if envelope is not None and 0 < deadline_ms <= self._engine.now_ms():
            deadline_ms = 0
            if not body.keep_deadline:
                envelope = msgspec.structs.replace(envelope, deadline="")
                text = encode_head(msgspec.structs.replace(head, envelope=envelope))
        mark = mark_of(0, envelope, head.job, head.routing, deadline_ms)
        if not body.all_groups:
            mark = msgspec.structs.replace(mark or RecordSchedule(0), group=letter.dlq.group)
        return Record(value, key, text), mark

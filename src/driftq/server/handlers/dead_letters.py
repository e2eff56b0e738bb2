"""Dead letters: list them, count them by error, send them back.

A letter is redriven and settled in one frame, so a redrive can be interrupted and repeated without sending one twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.replies import Produced, Rejected
from driftq.server.dead_letter_scan import (
    BEFORE_ALL,
    Letter,
    Place,
    dead_topic,
    waiting_letters,
)
from driftq.server.handlers.request_body import PAGE_LIMIT_MAX, from_query, number, page_limit, read_json
from driftq.server.handlers.responses import json_response, refusal
from driftq.server.http import BadRequest, Request, Response
from driftq.server.message_json import content
from driftq.server.produced_message import schedule_of
from driftq.wire.dead_letters import (
    REDRIVE_GROUP,
    ErrorKind,
    ErrorKindsReply,
    LetterFilter,
    RedriveFailure,
    RedriveReply,
    RedriveRequest,
)
from driftq.wire.errors import fingerprint
from driftq.wire.fields import from_rfc3339
from driftq.wire.message import encode_head
from driftq.wire.records import Record, pack_one

if TYPE_CHECKING:
    from driftq.core.state.groups import Topic
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

STEP = 200  # letters that are read before other requests get a turn
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)


class DeadLettersHandlers:
    """Handlers of `/v1/dlq/{topic}`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine

    async def list(self, request: Request, topic_name: str) -> Response:
        """A page by partition and offset. `after` is the place of the last letter shown."""
        limit = page_limit(request)
        place = _place(request.query.get("after", ""))
        letter_filter = _filter(_filter_query(request))
        messages: list[bytes] = []
        after = b""
        async for letter in self._scan(topic_name, letter_filter, place):
            if isinstance(letter, Rejected):
                return refusal(letter)
            if len(messages) == limit:
                after = b',"after":"%d:%d"' % place
                break
            front = b'{"partition":%d,"offset":%d,"timestamp_ms":%d' % (letter.partition, letter.offset, letter.at_ms)
            messages.append(front + content(letter.record) + b"}")
            place = (letter.partition, letter.offset)
        return Response(200, b'{"messages":[%b]%b}\n' % (b",".join(messages), after))  # a LettersReply

    async def errors(self, request: Request, topic_name: str) -> Response:
        """How many letters there are of each kind of error, the most frequent first. `after` is the number of kinds on
        the pages before."""
        limit = page_limit(request, PAGE_LIMIT_MAX)
        first = number("after", request.query.get("after", "0"))
        counted: dict[tuple[str, str, str], ErrorKind] = {}
        async for letter in self._scan(topic_name, _filter(LetterFilter())):
            if isinstance(letter, Rejected):
                return refusal(letter)
            origin = letter.origin
            key = (origin.group, origin.reason, fingerprint(origin.last_error))
            kind = counted.get(key) or ErrorKind(*key, origin.last_error, 0, "")
            counted[key] = replace(kind, count=kind.count + 1, last_at=origin.dead_at)
        kinds = sorted(counted.values(), key=lambda kind: -kind.count)
        after = str(first + limit) if len(kinds) > first + limit else None
        return json_response(ErrorKindsReply(kinds[first : first + limit], after))

    async def redrive(self, request: Request, topic_name: str) -> Response:
        body = read_json(request.body or b"{}", RedriveRequest)
        letter_filter = _filter(body)
        state = self._engine.latest_state
        topic = dead_topic(state, topic_name)
        if body.dry_run or isinstance(topic, Rejected):
            return await self._dry_run(topic_name, letter_filter, body)
        letters = (letter for letter in waiting_letters(self._engine, state, topic) if letter_filter.admits(letter))
        reply = await RedriveRun(self._engine, topic, body).run(letters)
        # The state that was read above may not be durable yet: answer when it is.
        return await self._engine.queries.result(lambda _: json_response(reply))

    async def _dry_run(self, topic_name: str, letter_filter: Filter, body: RedriveRequest) -> Response:
        matched = 0
        async for letter in self._scan(topic_name, letter_filter):
            if isinstance(letter, Rejected):
                return refusal(letter)
            matched += 1
            if matched == body.limit:
                break
        return json_response(RedriveReply("dry run", matched, 0, []))

    async def _scan(
        self, topic_name: str, letter_filter: Filter, after: Place = BEFORE_ALL
    ) -> AsyncIterator[Letter | Rejected]:
        """The waiting letters that a filter admits; or one refusal. Other requests run between the steps."""

        def begin(view: StateView) -> Iterator[Letter] | Rejected:
            topic = dead_topic(view.state, topic_name)
            return topic if isinstance(topic, Rejected) else waiting_letters(self._engine, view.state, topic, after)

        letters = await self._engine.queries.result(begin)
        if isinstance(letters, Rejected):
            yield letters
            return
        while step := await self._engine.queries.result(lambda _: list(islice(letters, STEP))):
            for letter in step:
                if letter_filter.admits(letter):
                    yield letter
            await asyncio.sleep(0)


class Filter(NamedTuple):
    """A `LetterFilter` with its times parsed."""

    group: str
    error: str
    reason: str
    since_ms: int
    until_ms: int
    places: frozenset[Place] | None

    def admits(self, letter: Letter) -> bool:
        origin = letter.origin
        return (
            self.group in ("", origin.group)
            and self.error in origin.last_error
            and self.reason in ("", origin.reason)
            and self.since_ms <= letter.at_ms < self.until_ms
            and (self.places is None or (letter.partition, letter.offset) in self.places)
        )


def _filter(body: LetterFilter) -> Filter:
    try:
        since_ms = from_rfc3339(body.since) if body.since else 0
        until_ms = from_rfc3339(body.until) if body.until else 2**62
    except ValueError as error:
        raise BadRequest(f"invalid time: {error}") from None
    places = frozenset(body.offsets) if body.offsets is not None else None
    return Filter(body.group, body.error, body.reason, since_ms, until_ms, places)


def _filter_query(request: Request) -> LetterFilter:
    names = ("group", "error", "reason", "since", "until")
    return from_query({name: request.query[name] for name in names if name in request.query}, LetterFilter)


def _place(after: str) -> Place:
    """The place that `after` names: `partition:offset`."""
    match = _PLACE.fullmatch(after)
    if after and match is None:
        raise BadRequest("invalid after: it is the `after` of the page before")
    return (int(match[1]), int(match[2])) if match is not None else BEFORE_ALL


class RedriveRun:
    """One redrive: each letter is produced again and settled in one frame."""

    def __init__(self, engine: Engine, topic: Topic, body: RedriveRequest) -> None:
        self._engine = engine
        self._topic = topic
        self._body = body
        self._redriven = 0
        self._failed: list[RedriveFailure] = []

    async def run(self, letters: Iterator[Letter]) -> RedriveReply:
        for letter in letters:
            await self._redrive(letter)
            if self._redriven + len(self._failed) == self._body.limit:
                break
            if self._body.rate_per_s:
                await asyncio.sleep(1 / self._body.rate_per_s)
        return RedriveReply("redriven", self._redriven + len(self._failed), self._redriven, self._failed)

    async def _redrive(self, letter: Letter) -> None:
        record, schedule = self._message(letter)
        produce = c.Produce(
            topic=letter.origin.topic,
            batch=pack_one(record.value, record.key, record.head, scheduled=schedule is not None),
            count=1,
            payload_bytes=len(record.key) + len(record.value),
            partition=letter.origin.partition,
            marks=(schedule,) if schedule is not None else (),
        )
        command = c.Redrive(self._topic.name, REDRIVE_GROUP, letter.partition, letter.offset, produce)
        reply = await self._engine.submit(command)
        if isinstance(reply, Produced):
            self._redriven += 1
        elif isinstance(reply, Rejected):
            self._failed.append(RedriveFailure(letter.partition, letter.offset, reply.message))

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
        if not body.all_groups:
            schedule = replace(schedule or RecordSchedule(0), group=letter.origin.group)
        return Record(value, key, text), schedule

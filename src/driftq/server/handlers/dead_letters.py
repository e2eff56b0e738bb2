"""Dead letters: list them, count them by error, send them back, delete and export them.

Every call works in bounded steps between which other requests get a turn. Each step of a read is a query, so an answer
holds only what is durable. A letter is redriven and settled in one frame, so a redrive can be interrupted and repeated
without sending one twice.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.replies import Rejected, Touched
from driftq.core.state.groups import DEAD_PREFIX
from driftq.server.access.identity import Verdict, decide, require_group, require_topic
from driftq.server.dead_letter_index import LetterIndex, Place
from driftq.server.dead_letter_kinds import KindCounts
from driftq.server.dead_letter_scan import (
    BEFORE_ALL,
    Filter,
    LetterSearch,
    WaitingWalk,
    dead_name,
    dead_topic,
    letters_waiting,
    waiting_count,
)
from driftq.server.deliveries import content
from driftq.server.handlers.codec import (
    PAGE_LIMIT_MAX,
    encoded,
    from_query,
    json_response,
    number,
    page_cursor,
    page_limit,
    read_json,
    refusal,
    refused,
)
from driftq.server.http import BadRequest, Request, Response, ResponseStream, Streaming
from driftq.server.redrive_run import RedriveRun
from driftq.server.slices import collected
from driftq.storage.corruption import CorruptLog
from driftq.wire.dead_letters import (
    REDRIVE_GROUP,
    DeadLetterCount,
    DeadLetterCounts,
    DeleteLettersReply,
    DeleteLettersRequest,
    ErrorKindsReply,
    LetterFilter,
    RedriveReply,
    RedriveRequest,
    line_of,
)
from driftq.wire.errors import CODES, Code, error_fields
from driftq.wire.fields import from_rfc3339, to_rfc3339
from driftq.wire.grants import PRODUCE, READ

if TYPE_CHECKING:
    from driftq.core.model import commands as c
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

STEP_LETTERS = 200  # that are read before other requests get a turn
FOUND_MAX = 10_000  # that are found before other requests get a turn
DELETED_AT_ONCE = 1_000
PLACES_MAX = 10_000  # letters that one call names
PAGE_BYTES_MAX = 8 << 20
NDJSON = "application/x-ndjson"
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)


class DeadLettersHandlers:
    """Handlers of `/v1/dlq`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._index = context.once(LetterIndex, lambda: LetterIndex(context.root_engine))

    async def list(self, request: Request, topic_name: str) -> Response:
        """A page by partition and offset. `after` is the place of the last letter shown. A page of large letters ends
        early."""
        require_topic(request, READ, dead_name(topic_name))
        limit = page_limit(request)
        place = place_of(request.query.get("after", ""))
        search = await self._search(topic_name, _filter(_filter_query(request)), place)
        if isinstance(search, Rejected):
            return refusal(search)
        try:
            return await self._page(search, limit)
        except CorruptLog as error:
            return damaged(error)

    async def counts(self, request: Request) -> Response:
        """The topics with dead letters that the caller may read, the one with the most first."""
        limit, passed = page_limit(request), number("after", request.query.get("after", "0"))

        def rows(view: StateView) -> Iterator[DeadLetterCount | None]:
            for topic in [topic for topic in view.state.topics.values() if not topic.dead_of]:
                dead = view.state.topics.get(DEAD_PREFIX + topic.name)
                count = waiting_count(view.state, topic) if dead is not None else 0
                if dead is None or not count or decide(request.identity, READ, dead.name) is not Verdict.ALLOWED:
                    yield None
                    continue
                last_ms = max(view.state.logs[log_id].last_ms for log_id in dead.log_ids)
                yield DeadLetterCount(topic.name, count, to_rfc3339(last_ms) if last_ms else None)

        counts = await collected(self._engine.queries, rows)
        counts.sort(key=lambda row: (-row.dead_letters, row.topic))
        after = str(passed + limit) if passed + limit < len(counts) else None
        total = sum(row.dead_letters for row in counts)
        return json_response(DeadLetterCounts(counts[passed : passed + limit], total, after))

    async def errors(self, request: Request, topic_name: str) -> Response:
        """How many letters there are of each kind of error, the most frequent first. `after` is the number of kinds on
        the pages before. A caller with `wait_ms` gets what was counted by then; its next call gets further."""
        require_topic(request, READ, dead_name(topic_name))
        limit = page_limit(request, PAGE_LIMIT_MAX)
        first = number("after", request.query.get("after", "0"))
        wait_s = number("wait_ms", request.query["wait_ms"]) / 1_000 if "wait_ms" in request.query else math.inf

        def begin(view: StateView) -> tuple[KindCounts, int] | Rejected:
            topic = dead_topic(view.state, topic_name)
            if isinstance(topic, Rejected):
                return topic
            walk = WaitingWalk(self._engine, view.state, topic)
            return KindCounts(self._engine, self._index, walk), letters_waiting(view.state, topic)

        begun = await self._engine.queries.result(begin)
        if isinstance(begun, Rejected):
            return refusal(begun)
        counts, total = begun
        until_s = asyncio.get_running_loop().time() + wait_s
        try:
            while not counts.is_over and asyncio.get_running_loop().time() < until_s:
                await self._engine.queries.result(lambda _: counts.step())
                await asyncio.sleep(0)
        except CorruptLog as error:
            return damaged(error)
        kinds = counts.kinds()
        after = str(first + limit) if len(kinds) > first + limit else None
        page = kinds[first : first + limit]
        return json_response(ErrorKindsReply(page, counts.is_over, counts.counted, total, after))

    async def redrive(self, request: Request, topic_name: str) -> Response:
        body = read_json(request.body or b"{}", RedriveRequest)
        require_group(request, dead_name(topic_name), REDRIVE_GROUP)
        require_topic(request, PRODUCE, body.to_topic or dead_name(topic_name).removeprefix(DEAD_PREFIX))
        letter_filter, after = _filter(body), place_of(body.after)
        state = self._engine.latest_state
        topic = dead_topic(state, topic_name)
        try:
            if body.dry_run or isinstance(topic, Rejected):
                return await self._dry_run(topic_name, letter_filter, body)
            walk = WaitingWalk(self._engine, state, topic, after)
            search = LetterSearch(self._engine, self._index, walk, letter_filter)
            run = RedriveRun(self._engine, topic, body, lambda frame: self._audited(request, topic_name, frame))
            reply = await run.run(search)
        except CorruptLog as error:
            return damaged(error)
        # The state that was read above may not be durable yet: answer when it is.
        return await self._engine.queries.result(lambda _: json_response(reply))

    def _audited(self, request: Request, topic_name: str, frame: v.Redrive) -> v.Redrive:
        letters = sum(len(part.offsets) for part in frame.parts)
        return self._context.audited(request, frame, dead_name(topic_name), letters=letters)

    async def _dry_run(self, topic_name: str, letter_filter: Filter, body: RedriveRequest) -> Response:
        search = await self._search(topic_name, letter_filter, place_of(body.after))
        if isinstance(search, Rejected):
            return refusal(search)
        matched = sum([len(places) async for places in self._found(search, body.limit)])
        return json_response(RedriveReply("dry run", matched, 0, [], search.after()))

    async def _found(self, search: LetterSearch, limit: int) -> AsyncIterator[Sequence[Place]]:
        """The places of a search, up to `limit`, some at a time."""
        while not search.is_over and limit > 0:
            count_max = min(FOUND_MAX, limit)
            places = await self._engine.queries.result(lambda _, n=count_max: search.find(n))  # type: ignore[misc]
            limit -= len(places)
            yield places
            await asyncio.sleep(0)

    async def delete(self, request: Request, topic_name: str) -> Response:
        """Delete letters of a filter: they do not wait any more. Their records go with retention, or with a purge."""
        body = read_json(request.body or b"{}", DeleteLettersRequest)
        dead = dead_name(topic_name)
        require_group(request, dead, REDRIVE_GROUP)
        search = await self._search(topic_name, _filter(body), place_of(body.after))
        if isinstance(search, Rejected):
            return refusal(search)
        matched = deleted = 0
        try:
            async for places in self._found(search, body.limit):
                matched += len(places)
                for begin in range(0, 0 if body.dry_run else len(places), DELETED_AT_ONCE):
                    letters = _runs(places[begin : begin + DELETED_AT_ONCE])
                    command = v.DeleteDeadLetters(dead, REDRIVE_GROUP, letters)
                    count = sum(run.end - run.first for run in letters)
                    reply = await self._engine.submit(self._context.audited(request, command, dead, letters=count))
                    if isinstance(reply, Rejected):
                        return refusal(reply)
                    assert isinstance(reply, Touched)
                    deleted += reply.count
        except CorruptLog as error:
            return damaged(error)
        status = "dry run" if body.dry_run else "deleted"
        return json_response(DeleteLettersReply(status, matched, deleted, search.after()))

    async def export(self, request: Request, topic_name: str) -> Response | Streaming:
        """Every letter of a filter as a line of JSON, which `driftq produce --ndjson` reads back."""
        require_topic(request, READ, dead_name(topic_name))
        search = await self._search(
            topic_name, _filter(_filter_query(request)), place_of(request.query.get("after", ""))
        )
        return refusal(search) if isinstance(search, Rejected) else Streaming(partial(self._export, search))

    async def _export(self, search: LetterSearch, stream: ResponseStream) -> None:
        await stream.start(200, content_type=f"{NDJSON}; charset=utf-8")
        try:
            while not search.is_over and await stream.drain() and not stream.over:
                letters = await self._engine.queries.result(lambda _: search.step(STEP_LETTERS))
                stream.write(b"".join(line_of(letter.offset, letter.at_ms, letter.record) for letter in letters))
                await asyncio.sleep(0)
        except CorruptLog as error:
            # Lines were sent already, so the error is one more: it is no message, and a reader stops there.
            stream.write(encoded(error_fields(CODES[Code.DATA_CORRUPT].error, _damage(error))) + b"\n")

    async def _search(
        self, topic_name: str, letter_filter: Filter, after: Place = BEFORE_ALL
    ) -> LetterSearch | Rejected:
        def begin(view: StateView) -> LetterSearch | Rejected:
            topic = dead_topic(view.state, topic_name)
            if isinstance(topic, Rejected):
                return topic
            walk = WaitingWalk(self._engine, view.state, topic, after)
            return LetterSearch(self._engine, self._index, walk, letter_filter)

        return await self._engine.queries.result(begin)

    async def _page(self, search: LetterSearch, limit: int) -> Response:
        messages: list[bytes] = []
        size_bytes = 0
        after = b""
        place = BEFORE_ALL
        while not search.is_over:
            is_full = len(messages) == limit or size_bytes >= PAGE_BYTES_MAX
            count_max = 1 if is_full else min(STEP_LETTERS, limit - len(messages))
            letters = await self._engine.queries.result(lambda _, n=count_max: search.step(n))  # type: ignore[misc]
            if is_full and letters:
                after = b',"after":"%d:%d"' % place
                break
            for letter in letters:
                place = (letter.partition, letter.offset)
                message = b'{"partition":%d,"offset":%d,"timestamp_ms":%d%b}' % (
                    *place, letter.at_ms, content(letter.record),
                )  # fmt: skip
                messages.append(message)
                size_bytes += len(message)
            await asyncio.sleep(0)
        return Response(200, b'{"messages":[%b]%b}\n' % (b",".join(messages), after))  # a LettersReply


def damaged(error: CorruptLog) -> Response:
    return refused(Code.DATA_CORRUPT, _damage(error))


def _damage(error: CorruptLog) -> str:
    return f"{error}; run `driftq inspect verify` on the data folder"


def _filter(body: LetterFilter) -> Filter:
    try:
        since_ms = from_rfc3339(body.since) if body.since else 0
        until_ms = from_rfc3339(body.until) if body.until else 2**62
    except ValueError as error:
        raise BadRequest(f"invalid time: {error}") from None
    if body.offsets is not None and len(body.offsets) > PLACES_MAX:
        raise BadRequest(f"one call names at most {PLACES_MAX} letters; use a filter for more")
    places = frozenset(body.offsets) if body.offsets is not None else None
    return Filter(body.group, body.error, body.kind, body.reason, since_ms, until_ms, places)


def _filter_query(request: Request) -> LetterFilter:
    names = ("group", "error", "kind", "reason", "since", "until")
    return from_query({name: request.query[name] for name in names if name in request.query}, LetterFilter)


def _runs(places: Sequence[Place]) -> tuple[c.Held, ...]:
    """Places in order, neighbours together."""
    runs: list[c.Held] = []
    for partition, offset in places:
        if runs and (runs[-1].partition, runs[-1].end) == (partition, offset):
            runs[-1] = c.Held(partition, runs[-1].first, offset + 1)
        else:
            runs.append(c.Held(partition, offset, offset + 1))
    return tuple(runs)


def place_of(after: str) -> Place:
    """The place that `after` names: `partition:offset`. Raises `BadRequest`."""
    match = page_cursor(_PLACE, after)
    return (int(match[1]), int(match[2])) if match is not None else BEFORE_ALL

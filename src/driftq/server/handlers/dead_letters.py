"""Dead letters: list them, count them by error, send them back.

Every call works in bounded steps between which other requests get a turn. Each step of a read is a query, so an answer
holds only what is durable. A letter is redriven and settled in one frame, so a redrive can be interrupted and repeated
without sending one twice.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from driftq.core.model.replies import Rejected
from driftq.core.state.groups import DEAD_PREFIX
from driftq.server.access.identity import require_group, require_topic
from driftq.server.dead_letter_index import LetterIndex
from driftq.server.dead_letter_scan import (
    BEFORE_ALL,
    Filter,
    KindCounts,
    LetterSearch,
    Place,
    WaitingWalk,
    dead_name,
    dead_topic,
)
from driftq.server.deliveries import content
from driftq.server.handlers.codec import (
    PAGE_LIMIT_MAX,
    from_query,
    json_response,
    number,
    page_limit,
    read_json,
    refusal,
    refused,
)
from driftq.server.http import BadRequest, Request, Response
from driftq.server.redrive_run import RedriveRun
from driftq.storage.corruption import CorruptLog
from driftq.wire.dead_letters import REDRIVE_GROUP, ErrorKindsReply, LetterFilter, RedriveReply, RedriveRequest
from driftq.wire.errors import Code
from driftq.wire.fields import from_rfc3339
from driftq.wire.grants import PRODUCE, READ

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

STEP_LETTERS = 200  # that are read before other requests get a turn
FOUND_MAX = 10_000  # that a dry run counts before other requests get a turn
PAGE_BYTES_MAX = 8 << 20
_PLACE = re.compile(r"([0-9]{1,9}):([0-9]{1,18})", re.ASCII)


class DeadLettersHandlers:
    """Handlers of `/v1/dlq/{topic}`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._index = LetterIndex(context.engine)

    async def list(self, request: Request, topic_name: str) -> Response:
        """A page by partition and offset. `after` is the place of the last letter shown. A page of large letters ends
        early."""
        require_topic(request, READ, dead_name(topic_name))
        limit = page_limit(request)
        place = _place(request.query.get("after", ""))
        search = await self._search(topic_name, _filter(_filter_query(request)), place)
        if isinstance(search, Rejected):
            return refusal(search)
        try:
            return await self._page(search, limit)
        except CorruptLog as error:
            return _damaged(error)

    async def errors(self, request: Request, topic_name: str) -> Response:
        """How many letters there are of each kind of error, the most frequent first. `after` is the number of kinds on
        the pages before."""
        require_topic(request, READ, dead_name(topic_name))
        limit = page_limit(request, PAGE_LIMIT_MAX)
        first = number("after", request.query.get("after", "0"))

        def begin(view: StateView) -> KindCounts | Rejected:
            topic = dead_topic(view.state, topic_name)
            if isinstance(topic, Rejected):
                return topic
            return KindCounts(self._engine, self._index, WaitingWalk(self._engine, view.state, topic))

        counts = await self._engine.queries.result(begin)
        if isinstance(counts, Rejected):
            return refusal(counts)
        try:
            while not counts.is_over:
                await self._engine.queries.result(lambda _: counts.step())
                await asyncio.sleep(0)
        except CorruptLog as error:
            return _damaged(error)
        kinds = counts.kinds()
        after = str(first + limit) if len(kinds) > first + limit else None
        return json_response(ErrorKindsReply(kinds[first : first + limit], after))

    async def redrive(self, request: Request, topic_name: str) -> Response:
        body = read_json(request.body or b"{}", RedriveRequest)
        require_group(request, dead_name(topic_name), REDRIVE_GROUP)
        require_topic(request, PRODUCE, dead_name(topic_name).removeprefix(DEAD_PREFIX))
        letter_filter = _filter(body)
        state = self._engine.latest_state
        topic = dead_topic(state, topic_name)
        try:
            if body.dry_run or isinstance(topic, Rejected):
                return await self._dry_run(topic_name, letter_filter, body)
            walk = WaitingWalk(self._engine, state, topic)
            search = LetterSearch(self._engine, self._index, walk, letter_filter)
            reply = await RedriveRun(self._engine, topic, body).run(search)
        except CorruptLog as error:
            return _damaged(error)
        # The state that was read above may not be durable yet: answer when it is.
        return await self._engine.queries.result(lambda _: json_response(reply))

    async def _dry_run(self, topic_name: str, letter_filter: Filter, body: RedriveRequest) -> Response:
        search = await self._search(topic_name, letter_filter)
        if isinstance(search, Rejected):
            return refusal(search)
        matched = 0
        while not search.is_over and matched < body.limit:
            count_max = min(FOUND_MAX, body.limit - matched)
            matched += await self._engine.queries.result(lambda _, n=count_max: len(search.find(n)))  # type: ignore[misc]
            await asyncio.sleep(0)
        return json_response(RedriveReply("dry run", matched, 0, []))

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


def _damaged(error: CorruptLog) -> Response:
    return refused(Code.DATA_CORRUPT, f"{error}; run `driftq inspect verify` on the data folder")


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

"""What streams there are, who writes and who is woken: lists beside the protocol of streams; and trim."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model.queries import ListStreams
from driftq.core.model.replies import Done, StreamEntry, StreamsListed
from driftq.core.model.stream_facts import WEBHOOK
from driftq.core.transitions.lookups import no_such_stream, no_such_topic
from driftq.server.access.identity import (
    Verdict,
    decide,
    require_any_stream,
    require_any_topic,
    require_stream,
    sees_stream,
    sees_topic,
    stream_prefixes,
)
from driftq.server.handlers.codec import (
    PAGE_LIMIT_MAX,
    flag,
    json_response,
    page_cursor,
    page_limit,
    read_json,
    refusal,
)
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.slices import slices
from driftq.wire import streams as w
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import MANAGE, READ
from driftq.wire.subscriptions import ListedProducer, ListedSubscription, ProducersReply, SubscriptionsReply

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.producers import ProducerState
    from driftq.core.state.streams import StreamRecord
    from driftq.core.state.subscriptions import SubscriptionRecord
    from driftq.engine.queries import StateView
    from driftq.server.access.identity import Identity
    from driftq.server.handlers.context import Context
    from driftq.server.handlers.streams import StreamHandlers
    from driftq.server.handlers.subscriptions import SubscriptionHandlers

LINKS_MAX = 1_000  # of a subscription, that are compared with their streams
_PLACE = re.compile(r"([0-9]{1,16})(?::(.*))?", re.ASCII | re.DOTALL)


class StreamCatalogHandlers:
    """Handlers of `/v1/streams`, `/v1/subscriptions` and `/v1/producers`."""

    def __init__(self, context: Context, streams: StreamHandlers, subscriptions: SubscriptionHandlers) -> None:
        self._context = context
        self._engine = context.engine
        self._readers_of = streams.readers_of
        self._failures_of = subscriptions.failures_of

    # --- streams ---

    def list(self, request: Request) -> Answer:
        query = request.query
        command = ListStreams(query.get("prefix", ""), query.get("after", ""), page_limit(request))
        if flag(request, "details"):
            return self._detailed(request.identity, command)
        if request.identity is not None:
            return self._visible(request.identity, command)
        return self._context.ask(command, lambda listed: json_response(_streams_reply(listed)))

    async def _visible(self, identity: Identity, asked: ListStreams) -> Response:
        return json_response(_streams_reply(await self._listed(identity, asked)))

    async def _detailed(self, identity: Identity | None, asked: ListStreams) -> Response:
        reply = _streams_reply(await self._listed(identity, asked))
        paths = [stream.stream for stream in reply.streams]
        figures: list[w.StreamFigures] = []
        async for rows in slices(self._engine.queries, lambda view: _figures(view, paths, self._readers_of)):
            figures += rows
        known = {row.stream for row in figures}  # without those that were deleted in the meantime
        return json_response(replace(reply, streams=[s for s in reply.streams if s.stream in known], figures=figures))

    async def _listed(self, identity: Identity | None, asked: ListStreams) -> StreamsListed:
        """The streams of a page that the caller may see. Only what its grants can name is looked at, page by page, so
        that neither the names nor the number of other streams shows."""
        shown: list[StreamEntry] = []
        for prefix in [asked.prefix] if identity is None else stream_prefixes(identity, asked.prefix):
            after, more = asked.after, True
            while more and len(shown) <= asked.limit:
                reply = await self._engine.submit(ListStreams(prefix, after, PAGE_LIMIT_MAX))
                assert isinstance(reply, StreamsListed)
                shown += (stream for stream in reply.streams if sees_stream(identity, stream.path))
                more = reply.more
                after = reply.streams[-1].path if more else after
        return StreamsListed(tuple(shown[: asked.limit]), len(shown) > asked.limit)

    def trim(self, request: Request) -> Answer:
        body = read_json(request.body, w.TrimRequest)
        require_stream(request, MANAGE, body.stream.strip("/"))
        before = w.offset_of(body.before)
        if before is None:
            raise BadRequest("invalid before: it is the offset that becomes the first")

        def respond(done: Done) -> Response:
            return json_response(w.TrimReply(body.stream, body.before, done.changed))

        path = body.stream.strip("/")
        command = self._context.audited(request, c.TrimStream(path, before), path, before=body.before)
        return self._context.ask(command, respond)

    # --- subscriptions ---

    async def subscriptions(self, request: Request) -> Response:
        """A page of the subscriptions that the caller may read, by id."""
        limit, after = page_limit(request), request.query.get("after", "")
        identity = request.identity

        def names(view: StateView) -> list[str]:
            known = view.state.subscriptions.by_name
            return [name for name in known if name > after and decide(identity, READ, name) is Verdict.ALLOWED]

        def rows(view: StateView) -> Iterator[ListedSubscription | None]:
            for name in sorted(names(view))[: limit + 1]:
                subscription = view.state.subscriptions.by_name.get(name)
                yield self._subscription(view, subscription) if subscription is not None else None

        listed: list[ListedSubscription] = []
        async for taken in slices(self._engine.queries, rows):
            listed += taken
        more = len(listed) > limit
        return json_response(SubscriptionsReply(listed[:limit], listed[limit - 1].id if more else None))

    def _subscription(self, view: StateView, subscription: SubscriptionRecord) -> ListedSubscription:
        config, state = subscription.config, view.state
        grown = 0
        for link in islice(subscription.links.values(), LINKS_MAX):
            stream = state.streams.by_path.get(link.path)
            grown += stream is not None and state.logs[stream.log_id].end > link.acked
        until_ms = subscription.until_ms
        return ListedSubscription(
            id=subscription.created.subscription,
            type=config.kind,
            pattern=config.pattern,
            streams=len(subscription.links),
            grown=grown,
            target=config.url if config.kind == WEBHOOK else config.wake_stream,
            state="held" if subscription.holder else "woken" if subscription.wake_id else "idle",
            holder=subscription.holder,
            lease_until=to_rfc3339(until_ms) if until_ms else None,
            generation=subscription.generation,
            failures=self._failures_of(subscription.number),
            created_at=to_rfc3339(subscription.created.at_ms),
        )

    # --- producers ---

    async def producers(self, request: Request) -> Response:
        """Idempotent producers, log by log, from the log with the lowest number on; or of one topic or stream."""
        query = request.query
        topic, stream = query.get("topic", ""), query.get("stream", "").strip("/")
        limit = page_limit(request)
        place = page_cursor(_PLACE, query.get("after", ""))
        first_log, last_producer = (int(place[1]), place[2] or "") if place is not None else (0, "")
        if topic:
            require_any_topic(request, topic)
        if stream:
            require_any_stream(request, stream)

        def rows(view: StateView) -> Iterator[tuple[int, ListedProducer] | None]:
            for log_id in _logs(view, topic, stream, first_log):
                log = view.state.logs.get(log_id)
                place = _log_place(view, log) if log is not None and log.producers.states else None
                if log is None or place is None or not _is_seen(request.identity, *place):
                    yield None
                    continue
                passed = last_producer if log_id == first_log else ""
                for name in sorted(log.producers.states):
                    state = log.producers.states.get(name)
                    if state is not None and name > passed:
                        at = to_rfc3339(state.at_ms)
                        yield (
                            log_id,
                            ListedProducer(name, state.epoch, state.seq, at, place[0], log.partition, place[1]),
                        )

        missing = await self._engine.queries.result(lambda view: _missing(view, topic, stream))
        if missing is not None:
            return missing
        listed: list[tuple[int, ListedProducer]] = []
        async for taken in slices(self._engine.queries, rows):
            listed += taken
            if len(listed) > limit:
                break
        shown = [row for _, row in listed[:limit]]
        more = len(listed) > limit
        after = f"{listed[limit - 1][0]}:{shown[-1].producer}" if more else None
        return json_response(ProducersReply(shown, after))


def _producer(name: str, state: ProducerState, partition: int, topic: str, stream: str) -> ListedProducer:
    return ListedProducer(name, state.epoch, state.seq, to_rfc3339(state.at_ms), topic, partition, stream)


def _missing(view: StateView, topic: str, stream: str) -> Response | None:
    if topic and topic not in view.state.topics:
        return refusal(no_such_topic(topic))
    if stream and stream not in view.state.streams.by_path:
        return refusal(no_such_stream(stream))
    return None


def _logs(view: StateView, topic: str, stream: str, first: int) -> list[int]:
    """The numbers of the logs to look at, from `first` on."""
    state = view.state
    if topic:
        known = state.topics.get(topic)
        return [log_id for log_id in (known.log_ids if known is not None else ()) if log_id >= first]
    if stream:
        record = state.streams.by_path.get(stream)
        return [record.log_id] if record is not None and record.log_id >= first else []
    return [log_id for log_id in state.logs if log_id >= first]  # they are in order, since numbers only rise


def _log_place(view: StateView, log: Log) -> tuple[str, str] | None:
    """(topic, "") or ("", path of the stream); None for what is no caller's."""
    if log.topic:
        return log.topic, ""
    stream = view.state.streams.by_log.get(log.log_id)
    return ("", stream.path) if stream is not None and not stream.soft_deleted else None


def _is_seen(identity: Identity | None, topic: str, stream: str) -> bool:
    return sees_topic(identity, topic) if topic else sees_stream(identity, stream)


def _figures(view: StateView, paths: list[str], readers_of: Callable[[int], int]) -> Iterator[w.StreamFigures | None]:
    for path in paths:
        stream = view.state.streams.by_path.get(path)
        yield _stream_figures(view, stream, readers_of(stream.log_id)) if stream is not None else None


def _stream_figures(view: StateView, stream: StreamRecord, readers: int) -> w.StreamFigures:
    log, created = view.state.logs[stream.log_id], stream.created
    written = log.end - created.start_offset
    kept = log.end - log.start
    source = view.state.streams.by_log.get(created.source_log_id) if created.source_log_id is not None else None
    expires_ms = stream.expires_ms()
    return w.StreamFigures(
        stream=stream.path,
        start_offset=w.token(log.start),
        size_bytes=log.payload_bytes * kept // written if written else 0,
        last_write=to_rfc3339(log.last_ms) if log.last_ms else None,
        readers=readers,
        producers=len(log.producers.states),
        forks=stream.forks,
        forked_from=source.path if source is not None else None,
        expires_at=to_rfc3339(expires_ms) if expires_ms is not None else None,
    )


def _streams_reply(reply: StreamsListed) -> w.StreamsReply:
    listed = [
        w.ListedStream(
            stream.path, stream.content_type, w.token(stream.end_offset), stream.closed, to_rfc3339(stream.created_ms)
        )
        for stream in reply.streams
    ]
    return w.StreamsReply(listed, reply.streams[-1].path if reply.more else None)

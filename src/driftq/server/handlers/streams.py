"""Durable streams: create, append, read, follow, delete, over the paths below `/v1/stream/`.

A request becomes a command and a reply a response; live reads hang on shared tails. The rules are the broker's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from driftq.core.model import commands as c
from driftq.core.model.queries import ListStreams, ReadPartition, ReadProducer, ReadStream
from driftq.core.model.replies import Done, Rejected, Reply, StreamAppended, StreamsListed, StreamView
from driftq.server.handlers.base import Context, json_response, page_limit, read_json
from driftq.server.handlers.subscriptions import SubscriptionHandlers
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response, Streaming, query_pairs
from driftq.server.http import Reply as HttpReply
from driftq.server.streams import responses
from driftq.server.streams.live_readers import EventReader, LongPoll
from driftq.server.streams.reorder_buffer import ReorderBuffer
from driftq.server.streams.requests import append_command, create_command, is_reserved, path_of
from driftq.server.streams.responses import Headers, answering, failure, refused, respond
from driftq.server.streams.stream_body import Form, RecordsUnreadable, StreamChunk, form_of, read_chunk
from driftq.server.streams.tails import Arrival, LiveTail, LiveTails
from driftq.wire import streams as w
from driftq.wire.message import to_rfc3339

_CONTROL = w.CONTROL.encode()
PARTS_MAX = 64  # beyond this many buffers joining them is cheaper than sending them apart


class StreamHandlers:
    """Handlers of everything below `/v1/stream/`, except the control routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._settings = context.settings.streams
        self._scheme = "https" if context.settings.listen.tls_certificate else "http"
        self._tails = LiveTails(context.engine, self._settings.read_bytes_max)
        self._subscriptions = SubscriptionHandlers(context)
        self._parking = ReorderBuffer(context.engine, self._settings.park_ms)
        self._methods: dict[str, Callable[[Request, str], Answer]] = {
            "PUT": self._create,
            "POST": self._append,
            "GET": self._read,
            "HEAD": self._look,
            "DELETE": self._delete,
        }

    def handle(self, request: Request, rest: bytes) -> Answer:
        """Any method of any stream. What cannot be understood is answered here, with the headers all answers have."""
        method = self._methods.get(request.method)
        first, _, control = rest.partition(b"/")
        try:
            if request.method == "OPTIONS":
                return responses.preflight()
            if first == _CONTROL:
                return self._subscriptions.handle(request, control)
            if method is None:
                return responses.not_allowed(responses.METHODS)
            path = path_of(rest)
            if is_reserved(path):
                return self._partition(request, path)
            return method(request, path)
        except BadRequest as error:
            return failure(error.status, error.message)

    def _ask(self, command: c.Command, respond: Callable[[Any], Response]) -> Deferred:
        def make(reply: Reply) -> Response:
            return refused(reply) if type(reply) is Rejected else respond(reply)

        answer = Deferred()
        self._engine.submit_to(command, answering(answer, make))
        return answer

    # --- writing ---

    def _create(self, request: Request, path: str) -> Answer:
        command = create_command(request, path)
        host = request.headers.get("host", "")
        location = f"{self._scheme}://{host}{request.raw_path.decode('latin-1')}"
        return self._ask(command, partial(responses.created, location=location))

    def _append(self, request: Request, path: str) -> Answer:
        stream = self._engine.latest_state.streams.by_path.get(path)
        known = stream is not None and not stream.closed
        command, dialect = append_command(
            request, path, stream.created.content_type if stream is not None and known else None
        )

        def make(reply: Reply) -> Response:
            if type(reply) is StreamAppended:
                return responses.appended(reply, command, dialect)
            assert isinstance(reply, Rejected)
            return refused(reply, dialect)

        answer = Deferred()
        self._parking.submit(command, answering(answer, make))
        return answer

    def _delete(self, request: Request, path: str) -> Answer:
        return self._ask(c.DeleteStream(path), lambda _: respond(204, []))

    # --- reading ---

    def _look(self, request: Request, path: str) -> Answer:
        return self._ask(ReadStream(path, renews=False), responses.described)

    def _read(self, request: Request, path: str) -> Answer:
        producer = request.query.get("producer")
        if producer is not None:
            return self._ask(ReadProducer(path, producer), responses.producer)
        stream = self._engine.latest_state.streams.by_path.get(path)
        log_id = stream.log_id if stream is not None else None
        form = form_of(stream.created.content_type) if stream is not None else Form.BYTES
        return self._reading(request, ReadStream(path), log_id, form)

    def _reading(self, request: Request, command: c.Command, log_id: int | None, form: Form) -> Answer:
        offset, live = _position(request)
        answer = Deferred()
        # Followed from before the question on, so that nothing between its answer and the first wait is missed.
        tail = self._tails.enter(log_id, form) if live and log_id is not None else None

        def make(reply: Reply) -> HttpReply | None:
            if isinstance(reply, StreamView) and tail is not None and reply.log_id == tail.log_id:
                tail.know(reply)
                return self._follow(request, tail, reply, offset, live, answer)
            if tail is not None:
                self._tails.leave(tail)
            if isinstance(reply, StreamView):
                return self._catch_up(request, reply, form, offset, reply.end_offset, reply.closed)
            assert isinstance(reply, Rejected)
            return refused(reply)

        self._engine.submit_to(command, answering(answer, make))
        return answer

    def _catch_up(
        self,
        request: Request,
        view: StreamView,
        form: Form,
        offset: int | None,
        end: int,
        closed: bool,
        cursor: str = "",
    ) -> Response:
        """What is there from an offset on, as far as one response goes. An offset of None means the end."""
        if offset is None:
            return _at_end(view, form, end, closed, cursor)
        if offset < 0:
            offset = view.start_offset
        if offset < view.start_offset:
            return responses.below_start(view)
        if offset > end:
            return responses.beyond_end(end)
        try:
            chunk = read_chunk(self._engine, view, form, offset, end, self._settings.read_bytes_max)
        except RecordsUnreadable as lost:
            return _lost(lost)
        return _chunk_response(request, view, chunk, end, closed, cursor)

    def _follow(
        self, request: Request, tail: LiveTail, view: StreamView, offset: int | None, live: str, answer: Deferred
    ) -> HttpReply | None:
        """What a live reader gets now; None if it waits."""
        at = tail.end if offset is None else view.start_offset if offset < 0 else offset
        cursor = responses.next_cursor(request.query.get("cursor"))
        served = view.start_offset <= at <= tail.end
        if served and live == "sse":
            reader = EventReader(self._engine, self._tails, tail, at, cursor, view.content_type)
            return Streaming(partial(reader.run, last_s=self._settings.sse_ms / 1_000))
        if at == tail.end and not tail.closed and not tail.gone:
            respond = partial(_polled, request, view, tail, at, cursor)
            LongPoll(self._tails, tail, at, answer, respond).wait(request, self._settings.long_poll_ms / 1_000)
            return None
        self._tails.leave(tail)
        if at == tail.end:
            return _nothing_new(at, cursor, closed=tail.closed)
        return self._catch_up(request, view, tail.form, at, tail.end, tail.closed, cursor)

    # --- partitions of topics, read as streams ---

    def _partition(self, request: Request, path: str) -> Answer:
        """`__topics/<topic>/<partition>`: read-only."""
        first, _, name = path.partition("/")
        topic, _, number = name.rpartition("/")
        partition = w.plain_number(number)
        if first != w.TOPICS or not topic or partition is None:
            return failure(404, f"there is no {path}")
        if request.method not in ("GET", "HEAD"):
            return responses.not_allowed("GET, HEAD, OPTIONS")
        command = ReadPartition(topic, partition)
        if request.method == "HEAD":
            return self._ask(command, responses.described)
        known = self._engine.latest_state.topics.get(topic)
        log_id = known.log_ids[partition] if known is not None and partition < len(known.log_ids) else None
        return self._reading(request, command, log_id, Form.PARTITION)


def _position(request: Request) -> tuple[int | None, str]:
    """(offset, live): -1 is the start, None the end; live is "", "sse" or "long-poll"."""
    offsets = []
    live = ""
    for name, value in query_pairs(request.raw_query):
        if name == "offset":
            offsets.append(value)
        elif name == "live":
            live = value
    if live not in ("", "sse", "long-poll"):
        raise BadRequest("live is `sse` or `long-poll`")
    if len(offsets) > 1:
        raise BadRequest("one offset, please")
    if not offsets:
        if live:
            raise BadRequest("a live read needs an offset")
        return -1, live
    text = offsets[0]
    if text == w.START:
        return -1, live
    if text == w.NOW:
        return None, live
    offset = w.offset_of(text)
    if offset is None:
        raise BadRequest("not an offset")
    return offset, live


def _chunk_response(
    request: Request, view: StreamView, chunk: StreamChunk, end: int, closed: bool, cursor: str = ""
) -> Response:
    at_end = chunk.end >= end
    etag = f'"{view.log_id:x}.{chunk.first}.{chunk.end}{".c" if closed and at_end else ""}"'
    settled = closed or not at_end or bool(cursor)
    headers: Headers = [
        (w.NEXT_OFFSET, w.token(chunk.end)),
        ("ETag", etag),
        ("Cache-Control", responses.cache_control(request, settled=settled)),
    ]
    if at_end:
        headers.append((w.UP_TO_DATE, "true"))
        if closed:
            headers.append((w.CLOSED, "true"))
    if cursor:
        headers.append((w.CURSOR, cursor))
    elif responses.has_etag(request, etag):
        return respond(304, headers)
    parts = chunk.parts
    body = parts if 1 < len(parts) <= PARTS_MAX else b"".join(parts)
    return respond(200, headers, body, view.content_type)


def _at_end(view: StreamView, form: Form, end: int, closed: bool, cursor: str) -> Response:
    headers: Headers = [(w.NEXT_OFFSET, w.token(end)), (w.UP_TO_DATE, "true"), ("Cache-Control", "no-store")]
    if closed:
        headers.append((w.CLOSED, "true"))
    if cursor:
        headers.append((w.CURSOR, cursor))
    return respond(200, headers, b"" if form is Form.BYTES else b"[]", view.content_type)


def _nothing_new(offset: int, cursor: str, *, closed: bool) -> Response:
    headers: Headers = [
        (w.NEXT_OFFSET, w.token(offset)),
        (w.UP_TO_DATE, "true"),
        (w.CURSOR, cursor),
        ("Cache-Control", "no-store"),
    ]
    if closed:
        headers.append((w.CLOSED, "true"))
    return respond(204, headers)


def _polled(
    request: Request, view: StreamView, tail: LiveTail, offset: int, cursor: str, arrival: Arrival | None
) -> Response:
    """The answer of a long-poll that waited; those that wait with the same cursor share one."""
    if arrival is None or arrival.chunk is None:
        if tail.gone:
            return failure(404, "the stream was deleted")
        return _nothing_new(offset, cursor, closed=tail.closed)
    key = f"poll {cursor} {b'authorization' in request.head.fields}"
    made = arrival.encoded.get(key)
    if made is None:
        end = arrival.end if tail.end == arrival.end else arrival.end + 1
        made = arrival.encoded[key] = _chunk_response(request, view, arrival.chunk, end, arrival.closed, cursor)
    assert isinstance(made, Response)
    return made


def _lost(lost: RecordsUnreadable) -> Response:
    if lost.next_offset is None:
        return failure(500, "a record is damaged and cannot be read; run `driftq inspect verify` on the data folder")
    headers: Headers = [(w.NEXT_OFFSET, w.token(lost.next_offset))]
    return failure(410, "records here were lost to damage; read on from the next offset", headers)


# --- Which streams there are, and forgetting the beginning of one: what the protocol of streams does not have ---


class TrimRequest(Struct, frozen=True, forbid_unknown_fields=True):
    stream: Annotated[str, Meta(min_length=1)]
    before: str


class ListedStream(Struct, frozen=True):
    stream: str
    content_type: str
    next_offset: str
    closed: bool
    created_at: str


class StreamsReply(Struct, frozen=True):
    """`after` is where the next page begins; it is missing on the last."""

    streams: list[ListedStream]
    after: str | None = None


class CatalogueHandlers:
    """Handlers of `/v1/streams`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def list(self, request: Request) -> Answer:
        query = request.query
        command = ListStreams(query.get("prefix", ""), query.get("after", ""), page_limit(request))
        return self._context.ask(command, _listed)

    def trim(self, request: Request) -> Answer:
        body = read_json(request.body, TrimRequest)
        before = w.offset_of(body.before)
        if before is None:
            raise BadRequest("invalid before: it is the offset that becomes the first")

        def respond(done: Done) -> Response:
            return json_response({"stream": body.stream, "earliest_offset": body.before, "trimmed": done.changed})

        return self._context.ask(c.TrimStream(body.stream.strip("/"), before), respond)


def _listed(reply: StreamsListed) -> Response:
    shown = [
        ListedStream(each.path, each.content_type, w.token(each.end_offset), each.closed, to_rfc3339(each.created_ms))
        for each in reply.streams
    ]
    return json_response(StreamsReply(shown, reply.streams[-1].path if reply.more else None))

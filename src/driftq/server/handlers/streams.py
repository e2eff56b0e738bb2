"""Durable streams: create, append, read, follow and delete, at the paths below `/v1/stream/`.

A request becomes a command, and its reply a response; the rules are the broker's. Headers are read in
`server.streams.requests`, If-Match is judged in `core.rules.streams`. Live readers of one stream share a
tail (`server.streams.tails`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from driftq.core.model import commands as c
from driftq.core.model.queries import ReadPartition, ReadProducer, ReadStream
from driftq.core.model.replies import Rejected, Reply, StreamAppended, StreamView
from driftq.server.access.identity import (
    ANY,
    BODY,
    PUBLIC,
    Right,
    require_any_stream,
    require_any_topic,
    require_stream,
    require_topic,
)
from driftq.server.element_count import check_elements, may_have_too_many
from driftq.server.handlers.context import Context, responder
from driftq.server.http import (
    Answer,
    BadRequest,
    Deferred,
    LazyReply,
    Request,
    Response,
    Streaming,
    query_pairs,
    reply_of,
)
from driftq.server.http import Reply as HttpReply
from driftq.server.streams import responses
from driftq.server.streams.live_readers import EventReader, LongPoll
from driftq.server.streams.reorder_buffer import ReorderBuffer
from driftq.server.streams.requests import append_command, create_command, is_reserved, path_of
from driftq.server.streams.responses import Headers, failure, refused, respond
from driftq.server.streams.stream_body import Form, RecordsUnreadable, StreamChunk, form_of, look_ahead, read_chunk
from driftq.server.streams.tails import Arrival, LiveTail, LiveTails
from driftq.wire import streams as w
from driftq.wire.grants import APPEND, MANAGE, READ

if TYPE_CHECKING:
    from driftq.server.handlers.subscriptions import SubscriptionHandlers

_CONTROL = w.CONTROL.encode()
# The rights of the methods of a stream. A writer may look at the end of its stream.
RIGHTS: dict[str, Right] = {
    "PUT": Right(APPEND, BODY),
    "POST": Right(APPEND, BODY),
    "GET": Right(READ, BODY),
    "HEAD": Right(ANY.verb, BODY),
    "DELETE": Right(MANAGE, BODY),
    "OPTIONS": PUBLIC,
}
BUFFERS_MAX = 64  # joining more buffers than this is cheaper than sending them one by one


class StreamHandlers:
    """The handler of everything below `/v1/stream/`. The control routes are handed to `subscriptions`."""

    def __init__(self, context: Context, subscriptions: SubscriptionHandlers) -> None:
        self._context = context
        self._engine = context.engine
        self._settings = context.settings.streams
        self._scheme = "https" if context.settings.listen.tls_certificate else "http"
        self._tails = context.once(LiveTails, lambda: LiveTails(context.root_engine, self._settings.read_bytes_max))
        self.readers_of = self._tails.readers_of  # how many live readers a log has now
        self._subscriptions = subscriptions
        self._reorder_buffer = ReorderBuffer(context.engine, self._settings.park_ms)
        self._methods: dict[str, Callable[[Request, str], Answer]] = {
            "PUT": self._create,
            "POST": self._append,
            "GET": self._read,
            "HEAD": self._look,
            "DELETE": self._delete,
        }

    def right_of(self, method: str, rest: bytes) -> Right:
        """The right that a request needs; `rest` as in `handle`."""
        first, _, control = rest.partition(b"/")
        if first == _CONTROL and method != "OPTIONS":
            return self._subscriptions.right_of(method, control)
        return RIGHTS.get(method, ANY)

    def handle(self, request: Request, rest: bytes) -> Answer:
        """Any method of any stream; `rest` is the raw path below the root. Invalid requests are answered here, because
        errors of streams have headers and a form of their own."""
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
            if may_have_too_many(request.body) and w.is_json(request.headers.get("content-type", "")):
                return self._after_count(request, path, method)
            return method(request, path)
        except BadRequest as error:
            return failure(error.status, error.message)

    async def _after_count(self, request: Request, path: str, method: Callable[[Request, str], Answer]) -> HttpReply:
        """A message may be any JSON, so only the messages are counted."""
        try:
            await check_elements(request.body, depth_max=1, status=413)
            return await reply_of(method(request, path))
        except BadRequest as error:
            return failure(error.status, error.message)

    def _ask(self, command: c.Command, respond: Callable[[Any], Response]) -> Deferred:
        return self._context.ask(command, respond, refused)

    # --- writing ---

    def _create(self, request: Request, path: str) -> Answer:
        command = create_command(request, path)
        require_stream(request, APPEND, path)
        if command.source is not None:
            require_stream(request, READ, command.source)
        host = request.headers.get("host", "")
        location = f"{self._scheme}://{host}{request.raw_path.decode('latin-1')}"
        return self._ask(command, partial(responses.created, location=location))

    def _append(self, request: Request, path: str) -> Answer:
        require_stream(request, APPEND, path)
        stream = self._engine.latest_state.streams.by_path.get(path)
        stream_type = stream.created.content_type if stream is not None and not stream.closed else None
        command, dialect = append_command(request, path, stream_type)

        def answer_with(reply: Reply) -> Response:
            if type(reply) is StreamAppended:
                return responses.appended(reply, command, dialect)
            assert isinstance(reply, Rejected)
            return refused(reply, dialect)

        answer = Deferred()
        self._reorder_buffer.submit(command, responder(answer, answer_with))
        return answer

    def _delete(self, request: Request, path: str) -> Answer:
        require_stream(request, MANAGE, path)
        command = self._context.audited(request, c.DeleteStream(path), path, "stream.delete")
        return self._ask(command, lambda _: respond(204, []))

    # --- reading ---

    def _look(self, request: Request, path: str) -> Answer:
        require_any_stream(request, path)
        return self._ask(ReadStream(path, renews=False), responses.described)

    def _read(self, request: Request, path: str) -> Answer:
        producer = request.query.get("producer")
        if producer is not None:
            require_any_stream(request, path)
            return self._ask(ReadProducer(path, producer), responses.producer)
        require_stream(request, READ, path)
        stream = self._engine.latest_state.streams.by_path.get(path)
        log_id = stream.log_id if stream is not None else None
        form = form_of(stream.created.content_type) if stream is not None else Form.BYTES
        return self._reading(request, ReadStream(path), log_id, form)

    def _reading(self, request: Request, command: c.Command, log_id: int | None, form: Form) -> Answer:
        offset, live = _position(request)
        answer = Deferred()
        # Enter the tail before the query, so that no record between its answer and the first wait is missed.
        tail = self._tails.enter(log_id, form) if live and log_id is not None else None

        def answer_with(reply: Reply) -> HttpReply | None:
            if isinstance(reply, StreamView) and offset is not None:
                at = reply.start_offset if offset < 0 else offset
                look_ahead(self._engine, reply, at, self._settings.read_bytes_max)  # before anything has an effect
            if isinstance(reply, StreamView) and tail is not None and reply.log_id == tail.log_id:
                tail.know(reply)
                return self._follow(request, tail, reply, offset, live, answer)
            if tail is not None:
                self._tails.leave(tail)
            if isinstance(reply, StreamView):
                return self._catch_up(request, reply, form, offset, reply.end_offset, reply.closed)
            assert isinstance(reply, Rejected)
            return refused(reply)

        self._engine.submit_to(command, self._context.responder(answer, answer_with))
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
    ) -> Response | LazyReply:
        """The data from an offset on, as far as one response goes. None is the end of the stream, -1 its start."""
        if offset is None:
            return _at_end(view, form, end, closed, cursor)
        if offset < 0:
            offset = view.start_offset
        if offset < view.start_offset:
            return responses.below_start(view)
        if offset > end:
            return responses.beyond_end(end)

        def read(size_max: int) -> Response:
            try:
                bytes_max = min(self._settings.read_bytes_max, size_max)
                chunk = read_chunk(self._engine, view, form, offset, end, bytes_max)
            except RecordsUnreadable as lost:
                return _lost(lost)
            return _chunk_response(request, view, chunk, end, closed, cursor)

        return LazyReply(read)

    def _follow(
        self, request: Request, tail: LiveTail, view: StreamView, offset: int | None, live: str, answer: Deferred
    ) -> HttpReply | None:
        """The response to a live reader; None if it waits for new data."""
        at = tail.end if offset is None else view.start_offset if offset < 0 else offset
        cursor = responses.next_cursor(request.query.get("cursor"))
        served = view.start_offset <= at <= tail.end
        if served and live == "sse":
            reader = EventReader(self._engine, self._tails, tail, at, cursor, view.content_type)
            return Streaming(partial(reader.run, duration_s=self._settings.sse_ms / 1_000))
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
            require_any_topic(request, topic)
            return self._ask(command, responses.described)
        require_topic(request, READ, topic)
        known = self._engine.latest_state.topics.get(topic)
        log_id = known.log_ids[partition] if known is not None and partition < len(known.log_ids) else None
        return self._reading(request, command, log_id, Form.PARTITION)


def _position(request: Request) -> tuple[int | None, str]:
    """The offset (-1: the start, None: the end), and whether to follow: "", "sse" or "long-poll"."""
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
    body = parts if 1 < len(parts) <= BUFFERS_MAX else b"".join(parts)
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
    """The response of a long poll that waited. Readers with the same cursor share one."""
    if arrival is None or arrival.chunk is None:
        if tail.gone:
            return failure(404, "the stream was deleted")
        return _nothing_new(offset, cursor, closed=tail.closed)
    key = f"poll {cursor} {b'authorization' in request.head.fields}"
    response = arrival.encoded.get(key)
    if response is None:
        end = arrival.end if tail.end == arrival.end else arrival.end + 1
        response = arrival.encoded[key] = _chunk_response(request, view, arrival.chunk, end, arrival.closed, cursor)
    assert isinstance(response, Response)
    return response


def _lost(lost: RecordsUnreadable) -> Response:
    if lost.next_offset is None:
        return failure(500, "a record is damaged and cannot be read; run `driftq inspect verify` on the data folder")
    headers: Headers = [(w.NEXT_OFFSET, w.token(lost.next_offset))]
    return failure(410, "records here were lost to damage; read on from the next offset", headers)

"""What a handler may return, and the encoding of response heads.

Owns status lines, header encoding and its checks: no control character ever reaches a header, and the headers this
layer writes itself (length, framing, connection, date) cannot be set by a handler. Knows nothing of sockets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from driftq.server.http.request import Request

if TYPE_CHECKING:
    from driftq.server.http.stream import ResponseStream

Headers: TypeAlias = Sequence[tuple[str, str]]
Buffer: TypeAlias = bytes | bytearray | memoryview

JSON = "application/json"
UNLIMITED_BYTES: Final = 1 << 62
_OWN_HEADERS = frozenset({"content-length", "transfer-encoding", "connection", "date", "content-type", "keep-alive"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_PREFIXES: dict[tuple[int, str], bytes] = {}
_PREFIXES_MAX = 512
_NO_BODY = frozenset({204, 304})
_REASONS = {status.value: status.phrase for status in HTTPStatus}


def prefix(status: int, content_type: str) -> bytes:
    """The status line and the content type. Nearly all responses share a few, so they are cached."""
    encoded = _PREFIXES.get((status, content_type))
    if encoded is None:
        line = f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}\r\n"
        if not 200 <= status <= 999:
            raise ValueError(f"not an HTTP status: {status}")
        if content_type:
            check_header("Content-Type", content_type)
            line += f"Content-Type: {content_type}\r\n"
        encoded = line.encode("latin-1")
        if len(_PREFIXES) >= _PREFIXES_MAX:  # Content types can come from users: clear rather than grow.
            _PREFIXES.clear()
        _PREFIXES[status, content_type] = encoded
    return encoded


def check_header(name: str, value: str) -> None:
    """Raises ValueError for anything that could end a header line or start another one."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"not a header name: {name!r}")
    if _VALUE.fullmatch(value) is None:
        raise ValueError(f"not a header value: {name}: {value!r}")


def header_lines(headers: Headers) -> bytes:
    """The lines of a handler's own headers; each name at most once, none that this layer writes itself."""
    seen: set[str] = set()
    lines = []
    for name, value in headers:
        check_header(name, value)
        lower = name.lower()
        if lower in _OWN_HEADERS:
            raise ValueError(f"the connection writes {name} itself")
        if lower in seen:
            raise ValueError(f"header given twice: {name}")
        seen.add(lower)
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")


def has_no_body(status: int) -> bool:
    return status in _NO_BODY


class Response:
    """A complete response. `body` is one buffer or a list of buffers, which are sent without being joined."""

    __slots__ = ("body", "extra", "prefix", "status")

    def __init__(
        self, status: int, body: bytes | Sequence[Buffer] = b"", content_type: str = JSON, headers: Headers = ()
    ) -> None:
        self.status = status
        self.body = body
        self.extra = header_lines(headers) if headers else b""
        if body:
            if status in _NO_BODY:
                raise ValueError(f"a {status} response has no body")
        elif status in _NO_BODY:
            content_type = ""
        self.prefix = _PREFIXES.get((status, content_type)) or prefix(status, content_type)

    def size_bytes(self) -> int:
        body = self.body
        return len(body) if type(body) is bytes else sum(map(len, body))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<Response {self.status}, {self.size_bytes()} bytes>"


class FileResponse:
    """A range of an open file, read in pieces as the connection takes them. `release` is called once at the end."""

    __slots__ = ("extra", "fd", "position", "prefix", "release", "size", "status")

    def __init__(
        self,
        status: int,
        fd: int,
        position: int,
        size_bytes: int,
        content_type: str = "application/octet-stream",
        headers: Headers = (),
        release: Callable[[], None] | None = None,
    ) -> None:
        self.status = status
        self.fd = fd
        self.position = position
        self.size = size_bytes
        self.prefix = prefix(status, content_type)
        self.extra = header_lines(headers) if headers else b""
        self.release = release

    def size_bytes(self) -> int:
        return self.size


class Streaming:
    """A response written over time by `producer`, which runs in its own task once all earlier responses are out.

    The task is cancelled when the client disconnects, unless `cancel_when_gone` is false: then it must check
    `stream.over`.
    """

    __slots__ = ("cancel_when_gone", "producer")

    def __init__(
        self, producer: Callable[[ResponseStream], Coroutine[Any, Any, None]], cancel_when_gone: bool = True
    ) -> None:
        self.producer = producer
        self.cancel_when_gone = cancel_when_gone


class PieceSource(Protocol):
    """Makes the body of a `PieceResponse`, one piece at a time."""

    @property
    def held_bytes(self) -> int:
        """About what it has read and not yet made into pieces."""

    def next_piece(self) -> bytes:
        """The next piece, of about `output_budget.PIECE_BYTES`; empty at the end."""

    def drop(self) -> None:
        """Free what was read ahead; `next_piece` reads it again. Called while the client takes no output."""

    def close(self) -> None:
        """Nothing more is sent: the body is complete, or the client has disconnected."""


class PieceResponse:
    """A response of unknown length, made in pieces when the connection takes them. A client that does not read it takes
    the memory of a piece or two, however long it is."""

    __slots__ = ("extra", "prefix", "source", "status")

    def __init__(self, status: int, source: PieceSource, content_type: str = JSON, headers: Headers = ()) -> None:
        self.status = status
        self.source = source
        self.prefix = prefix(status, content_type)
        self.extra = header_lines(headers) if headers else b""


class LazyReply:
    """A reply that is made when its turn comes: all earlier responses are out, the client takes output, and the loop
    has time for it.

    `make` gets the size that the memory for output allows. If it returns a larger body, the client gets 503 instead.
    `discard` is called if the reply is not sent, whether it was made or not.
    """

    __slots__ = ("discard", "make")

    def __init__(
        self, make: Callable[[int], Response | PieceResponse], discard: Callable[[], None] | None = None
    ) -> None:
        self.make = make
        self.discard = discard


class ReplyReceiver(Protocol):
    """What a `Deferred` hands its reply to."""

    def set_reply(self, reply: Reply) -> None: ...

    def set_error(self, error: BaseException) -> None: ...


class Deferred:
    """A reply that is known later, without a task or a turn of the event loop.

    `resolve` writes the response in the same call if all earlier ones are out. If the client has disconnected, the
    reply is dropped without an error; `Request.on_gone` reports it.
    """

    __slots__ = ("_error", "_reply", "_waiter")

    def __init__(self) -> None:
        self._waiter: ReplyReceiver | None = None
        self._reply: Reply | None = None
        self._error: BaseException | None = None

    def resolve(self, reply: Reply) -> None:
        assert self._reply is None and self._error is None, "a deferred reply is set once"
        self._reply = reply
        if self._waiter is not None:
            self._waiter.set_reply(reply)

    def fail(self, error: BaseException) -> None:
        assert self._reply is None and self._error is None, "a deferred reply is set once"
        self._error = error
        if self._waiter is not None:
            self._waiter.set_error(error)

    def bind(self, waiter: ReplyReceiver) -> None:
        """For the connection only."""
        assert self._waiter is None, "a deferred reply belongs to one request"
        self._waiter = waiter
        if self._reply is not None:
            waiter.set_reply(self._reply)
        elif self._error is not None:
            waiter.set_error(self._error)


Reply: TypeAlias = Response | FileResponse | PieceResponse | LazyReply | Streaming
REPLIES: Final = (Response, FileResponse, PieceResponse, LazyReply, Streaming)
Answer: TypeAlias = Reply | Deferred | Awaitable[Reply]
Handler: TypeAlias = Callable[[Request], Answer]


class _Waiter:
    """Receives a deferred reply for a coroutine."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def set_reply(self, reply: Reply) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def set_error(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


async def reply_of(answer: Answer) -> Reply:
    """Wait for the reply of a handler."""
    if isinstance(answer, Deferred):
        waiter = _Waiter()
        answer.bind(waiter)
        return await waiter.future
    if isinstance(answer, REPLIES):
        return answer
    return await answer


def made(reply: Reply) -> Reply:
    """The reply itself, if it is lazy."""
    return reply.make(UNLIMITED_BYTES) if isinstance(reply, LazyReply) else reply


def length_head(reply: Response | FileResponse, date: bytes, connection: bytes) -> bytes:
    """The head of a reply whose length is known."""
    if reply.status in _NO_BODY:
        return b"".join((reply.prefix, date, reply.extra, connection, b"\r\n"))
    return b"%b%bContent-Length: %d\r\n%b%b\r\n" % (reply.prefix, date, reply.size_bytes(), reply.extra, connection)

"""One started request that waits for its reply, in whatever form the handler returns it.

    Response, FileResponse, …             the reply itself
    Deferred                              calls `set_reply` or `set_error` later, without a task
    future                                a done callback
    coroutine                             a task

If the connection is lost first, the reply is dropped and its resources are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from driftq.server.http.request import BadRequest, Request
from driftq.server.http.response import (
    REPLIES,
    Deferred,
    FileResponse,
    LazyReply,
    PieceResponse,
    Reply,
    Response,
    Streaming,
)

if TYPE_CHECKING:
    from driftq.server.http.response_queue import ResponseQueue
    from driftq.server.http.stream import FilePump, PiecePump, ResponseStream

T = TypeVar("T")


async def _result_of(awaitable: Awaitable[Reply]) -> Reply:
    return await awaitable


class HttpExchange:
    """One started request that has no response yet. `reply` is None until it is known; `writer` is the stream or file
    pump that is writing the response."""

    __slots__ = ("_connection", "_task", "ends_soon", "writer", "reply", "request")

    def __init__(self, connection: ResponseQueue, request: Request) -> None:
        self._connection: ResponseQueue | None = connection
        self._task: asyncio.Task[Any] | None = None
        self.request = request
        self.reply: Reply | None = None
        self.ends_soon = False  # its caller's credential has ended
        self.writer: ResponseStream | FilePump | PiecePump | None = None

    def wait_for(self, result: object) -> None:
        """`result` is what the handler returned. It should be an `Answer`; this is checked here."""
        if isinstance(result, Deferred):
            result.bind(self)
        elif isinstance(result, REPLIES):
            self.set_reply(result)
        elif asyncio.isfuture(result):
            result.add_done_callback(self._timed(self._future_done))
        elif isinstance(result, Awaitable):
            self._task = asyncio.ensure_future(self._steps(_result_of(result)))
            self._task.add_done_callback(self._timed(self._future_done))
        else:
            self.set_error(TypeError(f"a handler returned {type(result).__name__}, which is not an answer"))

    def set_reply(self, reply: object) -> None:
        connection = self._connection
        if connection is None:
            discard(reply)
        elif type(reply) is Response or isinstance(reply, REPLIES):
            self.reply = reply
            connection.on_reply(self)
        else:
            self.set_error(TypeError(f"a handler answered with {type(reply).__name__}, which is not a reply"))

    def set_error(self, error: BaseException) -> None:
        connection = self._connection
        if connection is None:
            return
        self.reply = connection.error_reply(self.request, error)
        connection.on_reply(self)

    def produce(self, stream: ResponseStream, streaming: Streaming) -> None:
        """Run the producer of a stream. The stream ends when its task ends."""
        self.writer = stream
        self._task = asyncio.ensure_future(self._steps(streaming.producer(stream)))
        self._task.add_done_callback(self._producer_done)

    def _steps(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The coroutine of a task whose time is accounted to this request's route."""
        assert self._connection is not None
        return self._connection.monitor.steps(self.request.head.route, coroutine)

    def _timed(self, callback: Callable[[asyncio.Future[Any]], None]) -> Callable[[asyncio.Future[Any]], None]:
        assert self._connection is not None
        return self._connection.monitor.timed(self.request.head.route, callback)

    def abandon(self) -> None:
        """The connection is lost. Cancel the producer of a stream, if it allows that; a handler runs to its end."""
        self._connection = None
        writer, reply = self.writer, self.reply
        if writer is not None:
            writer.disconnect()
            if self._task is not None and isinstance(reply, Streaming) and reply.cancel_when_gone:
                self._task.cancel()
        elif reply is not None:
            discard(reply)
        self.request.mark_gone()

    def cancel(self) -> None:
        """The grace period of a stop is over."""
        if self._task is not None:
            self._task.cancel()

    def _future_done(self, future: asyncio.Future[Reply]) -> None:
        self._task = None
        if future.cancelled():
            self.set_error(asyncio.CancelledError("the handler was cancelled"))
            return
        error = future.exception()
        if error is None:
            self.set_reply(future.result())
        elif self._connection is None and not isinstance(error, BadRequest):
            # No client waits for the response any more, but the bug has to be reported.
            asyncio.get_running_loop().call_exception_handler({"message": "a handler raised", "exception": error})
        else:
            self.set_error(error)

    def _producer_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = asyncio.CancelledError("the producer was cancelled") if task.cancelled() else task.exception()
        if self._connection is not None:
            self._connection.on_stream_end(self, error)
        elif error is not None and not task.cancelled():
            asyncio.get_running_loop().call_exception_handler({"message": "a producer raised", "exception": error})


def discard(reply: object) -> None:
    """The reply is not sent: release what it holds."""
    if isinstance(reply, PieceResponse):
        reply.source.close()
    elif isinstance(reply, LazyReply) and reply.discard is not None:
        reply.discard()
    if isinstance(reply, FileResponse) and reply.release is not None:
        release, reply.release = reply.release, None
        release()

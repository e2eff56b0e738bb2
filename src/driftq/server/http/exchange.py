"""One request and its answer to come, in its place in the order of a connection.

Owns the waiting: for a plain value, a `Deferred`, a future or a coroutine. Knows nothing of bytes. Settling an exchange
whose connection has gone drops the answer and gives back what it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from driftq.server.http.request import BadRequest, Request
from driftq.server.http.response import Deferred, FileResponse, Reply, Response, Streaming

if TYPE_CHECKING:
    from driftq.server.http.response_queue import ResponseQueue
    from driftq.server.http.stream import FilePump, ResponseStream


async def _result_of(awaitable: Awaitable[Reply]) -> Reply:
    return await awaitable


class HttpExchange:
    """`reply` is None until it is known; `outlet` is what is writing it, for answers that take time to write."""

    __slots__ = ("_connection", "_task", "outlet", "reply", "request")

    def __init__(self, connection: ResponseQueue, request: Request) -> None:
        self._connection: ResponseQueue | None = connection
        self._task: asyncio.Task[Any] | None = None
        self.request = request
        self.reply: Reply | None = None
        self.outlet: ResponseStream | FilePump | None = None

    def wait_for(self, answer: object) -> None:
        """`answer` is what the handler returned: an `Answer` if it keeps to its type, which is checked here."""
        if isinstance(answer, Deferred):
            answer.bind(self)
        elif isinstance(answer, (Response, FileResponse, Streaming)):
            self.settle(answer)
        elif asyncio.isfuture(answer):
            answer.add_done_callback(self._future_done)
        elif isinstance(answer, Awaitable):
            self._task = asyncio.ensure_future(_result_of(answer))
            self._task.add_done_callback(self._future_done)
        else:
            self.settle_error(TypeError(f"a handler returned {type(answer).__name__}, which is no answer"))

    def settle(self, reply: object) -> None:
        connection = self._connection
        if connection is None:
            _discard(reply)
        elif type(reply) is Response or isinstance(reply, (Response, FileResponse, Streaming)):
            self.reply = reply
            connection.settled(self)
        else:
            self.settle_error(TypeError(f"a handler answered with {type(reply).__name__}, which is no reply"))

    def settle_error(self, error: BaseException) -> None:
        connection = self._connection
        if connection is None:
            return
        self.reply = connection.failure(self.request, error)
        connection.settled(self)

    def produce(self, stream: ResponseStream, streaming: Streaming) -> None:
        """Runs the producer of a stream; the end of its task is the end of the stream."""
        self.outlet = stream
        self._task = asyncio.ensure_future(streaming.producer(stream))
        self._task.add_done_callback(self._producer_done)

    def abandon(self) -> None:
        """The connection is gone. A stream's producer is cancelled if it wants to be; a handler runs to its end."""
        self._connection = None
        outlet, reply = self.outlet, self.reply
        if outlet is not None:
            outlet.gone()
            if self._task is not None and isinstance(reply, Streaming) and reply.cancel_when_gone:
                self._task.cancel()
        elif reply is not None:
            _discard(reply)
        self.request.mark_gone()

    def cancel(self) -> None:
        """The grace of a stop is over."""
        if self._task is not None:
            self._task.cancel()

    def _future_done(self, future: asyncio.Future[Reply]) -> None:
        self._task = None
        if future.cancelled():
            self.settle_error(asyncio.CancelledError("the answer was cancelled"))
            return
        error = future.exception()
        if error is None:
            self.settle(future.result())
        elif self._connection is None and not isinstance(error, BadRequest):
            # Nobody waits for the answer any more, but the bug is still a bug.
            asyncio.get_running_loop().call_exception_handler({"message": "a handler raised", "exception": error})
        else:
            self.settle_error(error)

    def _producer_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = asyncio.CancelledError("the producer was cancelled") if task.cancelled() else task.exception()
        if self._connection is not None:
            self._connection.stream_over(self, error)
        elif error is not None and not task.cancelled():
            asyncio.get_running_loop().call_exception_handler({"message": "a producer raised", "exception": error})


def _discard(reply: object) -> None:
    if isinstance(reply, FileResponse) and reply.release is not None:
        release, reply.release = reply.release, None
        release()

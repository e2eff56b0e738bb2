"""Flows that begin before earlier ones have ended: the broker works while the caller does.

    begin(flow) ──request──▶ ┐                          ┌ finish(): the rest of the flow, as in `execute`
    begin(flow) ──request──▶ ├─ one SyncConnection ─────┤
    begin(flow) ──request──▶ ┘   replies in this order  └ …

Only the first request of a flow is sent ahead. If it has to be retried, the flow continues when its result is asked
for. The connection comes from the pool, and goes back when no reply is under way. There is no thread. A flow of the
async client is a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from driftq.client.errors import DriftQError, NotConnected, OutcomeUnknown
from driftq.client.transport.http import HttpReply, request_bytes
from driftq.client.transport.sansio import Exchange, Flow, FlowResult, Step, resume, start, throw

if TYPE_CHECKING:
    import asyncio

    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import SyncConnection, Transport

T = TypeVar("T")

ABANDON_S = 1.0  # for the reply to a request that is under way


class Pipeline:
    """Begins flows of one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._connection: SyncConnection | None = None
        self._unread = 0  # replies that are under way on it

    def begin(self, flow: Flow[T]) -> BegunFlow[T]:
        step = start(flow)
        connection: SyncConnection | None = None
        if isinstance(step, Exchange):
            try:
                connection = self._send(step)
            except (NotConnected, OutcomeUnknown) as error:
                step = throw(flow, error)
        return BegunFlow(self, flow, step, connection)

    def receive(self, connection: SyncConnection, timeout_s: float) -> HttpReply:
        try:
            reply = connection.receive(timeout_s)
        except DriftQError:
            self._drop(connection)
            raise
        if connection is self._connection:
            self._unread -= 1
            if not self._unread:
                self._connection = None
                self.transport.release(connection)
        return reply

    def _send(self, exchange: Exchange) -> SyncConnection:
        if self._connection is None:
            self._connection = self.transport.acquire(exchange.timeout_s)
        connection = self._connection
        try:
            connection.send(request_bytes(self.transport.address, exchange.call), exchange.timeout_s)
        except DriftQError:
            self._drop(connection)
            raise
        self._unread += 1
        return connection

    def _drop(self, connection: SyncConnection) -> None:
        """It is broken: the flows that have a request on it notice when they read, and the next one gets another."""
        connection.close()
        if connection is self._connection:
            self._connection, self._unread = None, 0


class BegunFlow(Generic[T]):
    """A flow whose first request was sent."""

    def __init__(
        self, pipeline: Pipeline, flow: Flow[T], step: Step | FlowResult, connection: SyncConnection | None
    ) -> None:
        self._pipeline = pipeline
        self._flow = flow
        self._step = step
        self._connection = connection  # None: the reply was read, or nothing could be sent

    def has_ended(self) -> bool:
        """Whether the reply to the first request was all that it needed. Waits for that reply."""
        if self._connection is not None:
            assert isinstance(self._step, Exchange)
            connection, self._connection = self._connection, None
            try:
                reply = self._pipeline.receive(connection, self._step.timeout_s)
            except (NotConnected, OutcomeUnknown) as error:
                self._step = throw(self._flow, error)
            else:
                self._step = resume(self._flow, reply)
        return isinstance(self._step, FlowResult)

    def finish(self) -> T:
        self.has_ended()
        return self._pipeline.transport.run(self._flow, self._step)

    def abandon(self) -> T | None:
        """Its result, if that takes no retry."""
        if isinstance(self._step, Exchange):
            self._step = self._step._replace(timeout_s=min(ABANDON_S, self._step.timeout_s))
        if self.has_ended():
            return self.finish()
        self._flow.close()
        return None


class AsyncPipeline:
    """The same for the async client. If the calls have one lane, their requests are sent in the order of `begin`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    def begin(self, flow: Flow[T]) -> FlowTask[T]:
        import asyncio  # noqa: PLC0415  # the blocking client works without it

        return FlowTask(asyncio.ensure_future(self._transport.execute(flow)))


class FlowTask(Generic[T]):
    """A flow that runs as a task."""

    def __init__(self, task: asyncio.Future[T]) -> None:
        self._task = task

    def has_ended(self) -> bool:
        return self._task.done()

    async def finish(self) -> T:
        return await self._task

    async def abandon(self) -> T | None:
        """Its result, if that takes no retry."""
        import asyncio  # noqa: PLC0415

        done, _ = await asyncio.wait([self._task], timeout=ABANDON_S)
        if done:
            return self._task.result()
        self._task.cancel()
        return None

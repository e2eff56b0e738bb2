"""The process around workers: event loop, signals, and an orderly end. How messages move is in `worker_loop`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from driftq.client.api import AsyncDriftQ, DriftQ, connect_async
from driftq.client.errors import InvalidCall
from driftq.client.transport.async_transport import new_event_loop

if TYPE_CHECKING:
    from driftq.client.worker.options import WorkerCounts
    from driftq.client.worker.worker import Worker

Broker = str | DriftQ | AsyncDriftQ


def run(*workers: Worker[Any, Any], broker: Broker = "", drain: bool = False) -> list[WorkerCounts]:
    """Run workers in this process until SIGTERM or SIGINT. A second signal ends them at once."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_until_signal(workers, broker, drain))


async def _until_signal(workers: Sequence[Worker[Any, Any]], broker: Broker, drain: bool) -> list[WorkerCounts]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        # Outside of the main thread the program handles signals itself.
        with contextlib.suppress(ValueError, RuntimeError):
            _handle_signal(loop, number, on_signal)
    return await run_async(*workers, broker=broker, drain=drain, stop=stop)


def _handle_signal(loop: asyncio.AbstractEventLoop, number: int, handler: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))


async def run_async(
    *workers: Worker[Any, Any], broker: Broker = "", drain: bool = False, stop: asyncio.Event | None = None
) -> list[WorkerCounts]:
    """Run workers on the running event loop."""
    if not workers:
        raise InvalidCall("nothing to run: name at least one worker")
    stop = stop or asyncio.Event()
    client = _client(broker)
    try:
        tasks = [asyncio.create_task(worker.new_loop(client).run(stop, drain=drain)) for worker in workers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            stop.set()  # if one has failed, the others drain
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        if client is not broker:
            await client.close()


def _client(broker: Broker) -> AsyncDriftQ:
    """Workers run on an event loop; a blocking client only provides the address."""
    if isinstance(broker, AsyncDriftQ):
        return broker
    if isinstance(broker, DriftQ):
        return broker.asynchronous()
    return connect_async(broker)

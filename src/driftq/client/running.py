"""The process around workers: a loop, the signals, an orderly end. How messages move is in `working`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from typing import Any

from driftq.client.api import AsyncDriftQ, DriftQ, connect_async
from driftq.client.background import new_loop
from driftq.client.errors import InvalidCall
from driftq.client.subscription import Counts
from driftq.client.worker import Broker, Worker


def run(*workers: Worker[Any, Any], broker: Broker = "", drain: bool = False) -> list[Counts]:
    """Run workers in this process until SIGTERM or SIGINT. A second signal ends them at once."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_until_signal(workers, broker, drain))


async def _until_signal(workers: Sequence[Worker[Any, Any]], broker: Broker, drain: bool) -> list[Counts]:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: somebody else has the signals
            loop.add_signal_handler(number, on_signal)
    return await run_async(*workers, broker=broker, drain=drain, stop=stop)


async def run_async(
    *workers: Worker[Any, Any], broker: Broker = "", drain: bool = False, stop: asyncio.Event | None = None
) -> list[Counts]:
    """Run workers on the loop that runs."""
    if not workers:
        raise InvalidCall("nothing to run: name at least one worker")
    stop = stop or asyncio.Event()
    client = _client(broker)
    try:
        tasks = [asyncio.create_task(each.working(client).run(stop, drain=drain)) for each in workers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            stop.set()  # if one has failed, the others end in order
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        if client is not broker:
            await client.close()


def _client(broker: Broker) -> AsyncDriftQ:
    """Workers run on a loop; a blocking client only says where the broker is."""
    if isinstance(broker, AsyncDriftQ):
        return broker
    if isinstance(broker, DriftQ):
        return broker.asynchronous()
    return connect_async(broker)

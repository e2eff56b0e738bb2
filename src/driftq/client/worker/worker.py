"""Workers: a function over the messages of a group. It returns to ack, raises to retry; see `handler_results`.

    @driftq.worker("orders", group="billing", concurrency=8)
    def charge(message: driftq.Message) -> None: ...

    charge(message)          # still a function, for tests
    charge.run(broker)       # until SIGTERM; then it finishes what it has begun

The function may be plain (it runs on threads) or async. This module is the decorator and the process around workers:
event loop, signals, orderly end. How messages move is in `worker_loop`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import signal
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from driftq.client.api import AsyncDriftQ, DriftQ, connect_async
from driftq.client.errors import InvalidCall
from driftq.client.transport.background import new_event_loop
from driftq.client.worker.options import Handler, WorkerCounts, WorkerOptions, WorkerSubscription
from driftq.client.worker.worker_loop import WorkerLoop

P = ParamSpec("P")
R = TypeVar("R")
Broker = str | DriftQ | AsyncDriftQ


class Worker(Generic[P, R]):
    """A function with a subscription. Calling it calls the function, and nothing else happens."""

    def __init__(self, function: Callable[P, R], subscription: WorkerSubscription, options: WorkerOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.subscription = subscription
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def handler(self) -> Handler:
        """The function that is called with a message."""
        return self.function

    def new_loop(self, client: AsyncDriftQ) -> WorkerLoop:
        """The loop for one run of this worker."""
        return WorkerLoop(self.subscription, self.options, self.handler(), client, is_async=self.is_async)

    def run(self, broker: Broker = "", *, drain: bool = False) -> WorkerCounts:
        """Work until SIGTERM or SIGINT. With `drain`, only until nothing is left to claim."""
        return run(self, broker=broker, drain=drain)[0]

    async def run_async(
        self, broker: Broker = "", *, drain: bool = False, stop: asyncio.Event | None = None
    ) -> WorkerCounts:
        """The same on the running event loop. Set `stop` (or cancel) to end it."""
        return (await run_async(self, broker=broker, drain=drain, stop=stop))[0]


def worker(
    topic: str,
    *,
    group: str,
    concurrency: int = 1,
    prefetch: int | None = None,
    lease_ms: int = 30_000,
    timeout_ms: int = 300_000,
    drain_ms: int = 30_000,
    task: str | None = None,
    label: str | None = None,
    start: str = "earliest",
) -> Callable[[Callable[P, R]], Worker[P, R]]:
    """Make a function a worker.

    `concurrency` calls run at a time, and `prefetch` more messages wait for them. A call that takes longer than
    `timeout_ms` (or the job's own limit) is aborted and the message is retried. Leases of `lease_ms` are renewed as
    long as the process lives. After a signal, running calls get `drain_ms` to end.
    """
    options = WorkerOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()

    def decorate(function: Callable[P, R]) -> Worker[P, R]:
        return Worker(function, WorkerSubscription(topic, group, task, label, start), options)

    return decorate


# --- the process around workers ---


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
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # not in the main thread: the program handles signals itself
            loop.add_signal_handler(number, on_signal)
    return await run_async(*workers, broker=broker, drain=drain, stop=stop)


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

"""Workers: a function over the messages of a group. It returns to ack, raises to retry; see `claims`.

    @driftq.worker("orders", group="billing", concurrency=8)
    def charge(message: driftq.Message) -> None: ...

    charge(message)          # still a function, for tests
    charge.run(broker)       # until SIGTERM; then it finishes what it has begun

The function may be plain (it runs on threads) or async. This module is the decorator; the process around workers is in
`runner`, and how messages move is in `worker_loop`. Both are imported when a worker runs: a program that only enqueues
tasks does not wait for asyncio to be imported.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from driftq.client.worker.options import Handler, WorkerCounts, WorkerOptions, WorkerSubscription

if TYPE_CHECKING:
    import asyncio

    from driftq.client.api import AsyncDriftQ
    from driftq.client.worker.runner import Broker
    from driftq.client.worker.worker_loop import WorkerLoop

P = ParamSpec("P")
R = TypeVar("R")


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

    @property
    def full_name(self) -> str:
        """The function's module and name."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def handler(self) -> Handler:
        """The function that is called with a message."""
        return self.function

    def with_options(self, options: WorkerOptions) -> Worker[P, R]:
        """The same worker with other options."""
        return Worker(self.function, self.subscription, options)

    def new_loop(self, client: AsyncDriftQ) -> WorkerLoop:
        """The loop for one run of this worker."""
        from driftq.client.worker.worker_loop import WorkerLoop  # noqa: PLC0415  # imports asyncio

        return WorkerLoop(self.subscription, self.options, self.handler(), client, is_async=self.is_async)

    def run(self, broker: Broker = "", *, drain: bool = False) -> WorkerCounts:
        """Work until SIGTERM or SIGINT. With `drain`, only until nothing is left to claim."""
        from driftq.client.worker.runner import run  # noqa: PLC0415  # imports asyncio

        return run(self, broker=broker, drain=drain)[0]

    async def run_async(
        self, broker: Broker = "", *, drain: bool = False, stop: asyncio.Event | None = None
    ) -> WorkerCounts:
        """The same on the running event loop. Set `stop` (or cancel) to end it."""
        from driftq.client.worker.runner import run_async  # noqa: PLC0415  # imports asyncio

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

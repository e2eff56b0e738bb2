"""Workers: a function over the messages of a group. Return = ack, raise = retry, and the verdicts say the rest.

    @driftq.worker("orders", group="billing", concurrency=8)
    def charge(message: driftq.Message) -> None: ...

    charge(message)          # still a function, for tests
    charge.run(broker)       # until SIGTERM; then it finishes what it has begun

The function may be plain (it runs on threads) or async. This module is the decorator; the process around it is in
`running`, and how the messages move is in `working`. Both are fetched when a worker runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

from driftq.client.api import AsyncDriftQ, DriftQ
from driftq.client.subscription import Counts, Handler, Subscription, WorkOptions

if TYPE_CHECKING:
    import asyncio

    from driftq.client.working import Working

P = ParamSpec("P")
R = TypeVar("R")
Broker = str | DriftQ | AsyncDriftQ


class Worker(Generic[P, R]):
    """A function with a subscription. Calling it calls the function, and nothing else happens."""

    def __init__(self, function: Callable[P, R], subscription: Subscription, options: WorkOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.subscription = subscription
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def handler(self) -> Handler:
        """What is called with a message."""
        return self.function

    def working(self, client: AsyncDriftQ) -> Working:
        """The machinery for one run of this worker."""
        from driftq.client.working import Working  # noqa: PLC0415

        return Working(self.subscription, self.options, self.handler(), client, is_async=self.is_async)

    def run(self, broker: Broker = "", *, drain: bool = False) -> Counts:
        """Work until SIGTERM or SIGINT. With `drain`, only until nothing is left to be claimed now."""
        from driftq.client.running import run  # noqa: PLC0415

        return run(self, broker=broker, drain=drain)[0]

    async def run_async(self, broker: Broker = "", *, drain: bool = False, stop: asyncio.Event | None = None) -> Counts:
        """The same on the loop that runs. Set `stop` (or cancel) to end it."""
        from driftq.client.running import run_async  # noqa: PLC0415

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

    `concurrency` calls run at a time and `prefetch` more messages wait for them. A call that takes longer than
    `timeout_ms` (or the job's own limit) is broken off and the message is retried. Leases of `lease_ms` are renewed
    while the process lives. After a signal, running calls have `drain_ms` to end.
    """
    options = WorkOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()

    def decorate(function: Callable[P, R]) -> Worker[P, R]:
        return Worker(function, Subscription(topic, group, task, label, start), options)

    return decorate

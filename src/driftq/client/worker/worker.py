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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from driftq.client import trace
from driftq.client.worker.options import Handler, WorkerCounts, WorkerOptions, WorkerSubscription

if TYPE_CHECKING:
    import asyncio

    from driftq.client.api import AsyncDriftQ
    from driftq.client.transport.sansio import Call
    from driftq.client.worker.hooks import Middleware
    from driftq.client.worker.runner import Broker
    from driftq.client.worker.worker_loop import WorkerLoop

P = ParamSpec("P")
R = TypeVar("R")


class Worker(Generic[P, R]):
    """A function with a subscription. Calling it calls the function, and nothing else happens."""

    def __init__(
        self,
        function: Callable[P, R],
        subscription: WorkerSubscription,
        options: WorkerOptions,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.subscription = subscription
        self.options = options
        self.middleware = tuple(middleware)
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

    def registration(self) -> Call[Any] | None:
        """What to ask of the broker before a run; None if there is nothing."""
        return None

    def changed(self, options: WorkerOptions, middleware: Iterable[Middleware]) -> Worker[P, R]:
        """The same worker with other options and middleware."""
        return Worker(self.function, self.subscription, options, middleware)

    def new_loop(self, client: AsyncDriftQ, middleware: Iterable[Middleware] = ()) -> WorkerLoop:
        """The loop for one run of this worker, with more middleware around its own."""
        from driftq.client.worker.hooks import HookChain  # noqa: PLC0415  # imports asyncio
        from driftq.client.worker.worker_loop import WorkerLoop  # noqa: PLC0415  # imports asyncio

        traced = () if trace.active is None else (trace.active.middleware(),)
        hooks = HookChain.of((*traced, *middleware, *self.middleware))
        return WorkerLoop(self.subscription, self.options, self.handler(), client, is_async=self.is_async, hooks=hooks)

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
    middleware: Iterable[Middleware] = (),
) -> Callable[[Callable[P, R]], Worker[P, R]]:
    """Make a function a worker: it is called with each message of a topic.

    Parameters:
        topic: Where the messages come from.
        group: The group that shares the messages. Each message goes to one worker of a group.
        concurrency: How many calls run at a time. A plain function runs on as many threads.
        prefetch: How many more messages wait in the worker. By default as many as run, and more while calls are quick:
            what they handle in a twentieth of a second, at most 15 for each.
        lease_ms: How long the worker holds a message. Leases are renewed as long as the process lives.
        timeout_ms: A call that takes longer (or longer than the job allows) is aborted, and the message is retried.
        drain_ms: How much time running calls get to end after a signal.
        task: Claim only messages with this task.
        label: Claim only messages with this label.
        start: Where a new group starts: "earliest", "latest" or an RFC 3339 time.
        middleware: Hooks around each call; see `driftq.Middleware`.

    Returning acks the message. Raising makes the broker retry it; `Retry`, `Reject` and `Release` say how.
    """
    options = WorkerOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()

    def decorate(function: Callable[P, R]) -> Worker[P, R]:
        return Worker(function, WorkerSubscription(topic, group, task, label, start), options, middleware)

    return decorate

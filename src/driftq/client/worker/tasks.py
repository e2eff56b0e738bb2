"""Tasks: functions whose calls travel. Their arguments are the JSON of a job, by name.

@driftq.task("email.send.v1", topic="emails")
async def send_email(to: str, subject: str) -> None: ...

await send_email("ann@example.org", "hello")                 # a plain call
send_email.enqueue(broker, "ann@example.org", "hello")       # a job; arguments are checked here, types over there
send_email.run(broker)                                       # a worker for this task
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from driftq.client.calls import admin, queue
from driftq.client.errors import InvalidCall
from driftq.client.worker.handler_results import Reject
from driftq.client.worker.worker import Worker
from driftq.client.worker.worker_loop import Handler, WorkerSubscription, WorkOptions

if typing.TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ, DriftQ
    from driftq.client.message import MessageMethods
    from driftq.wire.queue import ProduceItem

P = ParamSpec("P")
R = TypeVar("R")


class Task(Worker[P, R]):
    """A function, a worker for it, and a way to call it from afar."""

    def __init__(
        self, function: Callable[P, R], subscription: WorkerSubscription, options: WorkOptions, words: dict[str, Any]
    ) -> None:
        super().__init__(function, subscription, options)
        self._signature = inspect.signature(function)
        self._words = words
        if any(
            each.kind in (each.VAR_POSITIONAL, each.POSITIONAL_ONLY) for each in self._signature.parameters.values()
        ):
            raise InvalidCall(f"{function.__name__}: arguments of a task travel by name; *args and / have none")

    @property
    def name(self) -> str:
        assert self.subscription.task is not None
        return self.subscription.task

    def options_for(
        self,
        *,
        id: str = "",
        key: str = "",
        priority: int = 0,
        delay_ms: int = 0,
        timeout_ms: int = 0,
        **words: Any,
    ) -> Task[P, R]:
        """The same task with other words for its jobs: `id`, `key`, `priority`, `delay_ms`, `deadline`, `tenant`, …"""
        given = {"id": id, "key": key, "priority": priority, "delay_ms": delay_ms, "timeout_ms": timeout_ms, **words}
        merged = self._words | {name: value for name, value in given.items() if value}
        return Task(self.function, self.subscription, self.options, merged)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> ProduceItem:
        """The job that stands for a call. Raises TypeError for arguments that do not fit."""
        bound = self._signature.bind(*args, **kwargs)
        return queue.item(bound.arguments | bound.arguments.pop("kwargs", {}), task=self.name, **self._words)

    @overload
    def enqueue(self, broker: DriftQ, *args: P.args, **kwargs: P.kwargs) -> admin.Enqueued: ...
    @overload
    def enqueue(self, broker: AsyncDriftQ, *args: P.args, **kwargs: P.kwargs) -> Awaitable[admin.Enqueued]: ...
    def enqueue(self, broker: DriftQ | AsyncDriftQ, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send a call to whoever works on this task."""
        return broker.jobs.enqueue(self.subscription.topic, self.job(*args, **kwargs))

    def handler(self) -> Handler:
        read = _reader(self.function, self._signature)
        function = self.function
        if self.is_async:

            async def handle_async(message: MessageMethods) -> None:
                await function(**read(message))  # type: ignore[call-arg, misc]

            return handle_async

        def handle(message: MessageMethods) -> None:
            function(**read(message))  # type: ignore[call-arg]

        return handle


def _reader(function: Callable[..., Any], signature: inspect.Signature) -> Callable[[MessageMethods], dict[str, Any]]:
    """Arguments from a message, checked against the function's types; what does not fit will never fit."""
    hints = typing.get_type_hints(function)

    def read(message: MessageMethods) -> dict[str, Any]:
        try:
            found = message.json(dict[str, Any])
            signature.bind(**found)
            return {name: msgspec.convert(value, hints.get(name, Any)) for name, value in found.items()}
        except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
            raise Reject(f"arguments do not fit {function.__name__}: {error}") from None

    return read


def task(
    name: str,
    *,
    topic: str = "tasks",
    group: str = "workers",
    concurrency: int = 1,
    prefetch: int | None = None,
    lease_ms: int = 30_000,
    timeout_ms: int = 300_000,
    drain_ms: int = 30_000,
    **words: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a task. `words` go with each of its jobs: `priority`, `retry`, `deadline`, `tenant`, …"""
    options = WorkOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, WorkerSubscription(topic, group, name), options, words)

    return decorate

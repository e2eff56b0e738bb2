"""Tasks: functions that are called through the queue. A job's value is the call's arguments by name, as JSON.

@driftq.task("email.send.v1", topic="emails")
async def send_email(to: str, subject: str) -> str: ...

await send_email("ann@example.org", "hello")                       # a plain call
handle = send_email.enqueue(broker, "ann@example.org", "hello")    # a job; the worker checks the types of the arguments
handle.result(timeout=10)                                          # what the worker returned
send_email.run(broker)                                             # a worker for this task

What the function returns is stored as the job's result, in the same write as the ack.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from driftq.client.calls import queue
from driftq.client.claims import Reject
from driftq.client.endpoint import SyncApi
from driftq.client.errors import InvalidCall
from driftq.client.job_handle import AsyncJobHandle, JobHandle
from driftq.client.message import json_of
from driftq.client.worker.options import Handler, WorkerOptions, WorkerSubscription
from driftq.client.worker.worker import Worker

if typing.TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ, DriftQ
    from driftq.client.message import MessageMethods
    from driftq.client.worker.hooks import Middleware
    from driftq.wire.produce import ProduceItem

P = ParamSpec("P")
R = TypeVar("R")


class Task(Worker[P, R]):
    """A function, a worker for it, and a way to enqueue calls of it."""

    def __init__(
        self,
        function: Callable[P, R],
        subscription: WorkerSubscription,
        options: WorkerOptions,
        job_options: dict[str, Any],
        middleware: Iterable[Middleware] = (),
    ) -> None:
        super().__init__(function, subscription, options, middleware)
        self._signature = inspect.signature(function)
        self._job_options = job_options
        if any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY)
            for parameter in self._signature.parameters.values()
        ):
            raise InvalidCall(
                f"{function.__name__}: a task's arguments are sent by name; *args and positional-only have none"
            )

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
        **options: Any,
    ) -> Task[P, R]:
        """The same task with other options for its jobs: `id`, `key`, `priority`, `delay_ms`, `deadline`, …"""
        options |= {"id": id, "key": key, "priority": priority, "delay_ms": delay_ms, "timeout_ms": timeout_ms}
        merged = self._job_options | {name: value for name, value in options.items() if value}
        return Task(self.function, self.subscription, self.options, merged, self.middleware)

    def changed(self, options: WorkerOptions, middleware: Iterable[Middleware]) -> Task[P, R]:
        """The same task with other options and middleware of its worker."""
        return Task(self.function, self.subscription, options, self._job_options, middleware)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> ProduceItem:
        """The job of a call. Raises TypeError for arguments that do not match the signature."""
        bound = self._signature.bind(*args, **kwargs)
        return queue.item(bound.arguments | bound.arguments.pop("kwargs", {}), task=self.name, **self._job_options)

    @overload
    def enqueue(self, broker: DriftQ, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]: ...
    @overload
    def enqueue(self, broker: AsyncDriftQ, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncJobHandle[R]]: ...
    def enqueue(self, broker: DriftQ | AsyncDriftQ, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a call for the workers of this task. Returns a handle, to wait for the result."""
        job = self.job(*args, **kwargs)
        options: dict[str, Any] = {
            "group": self.subscription.group,
            "tenant": job.envelope.tenant_id if job.envelope is not None else "",
            "returns": _return_type(self.function),
        }
        topic = self.subscription.topic
        if isinstance(broker, SyncApi):
            enqueued = broker.jobs.enqueue(topic, job)
            return JobHandle(broker._transport, topic, enqueued.id, reply=enqueued, **options)
        enqueueing, transport = broker.jobs.enqueue(topic, job), broker._transport

        async def handle() -> AsyncJobHandle[R]:
            reply = await enqueueing
            return AsyncJobHandle(transport, topic, reply.id, reply=reply, **options)

        return handle()

    def handler(self) -> Handler:
        read = _reader(self.function, self._signature)
        function = self.function
        if self.is_async:

            async def handle_async(message: MessageMethods) -> Any:
                return _keep_result(message, await function(**read(message)))  # type: ignore[call-arg, misc]

            return handle_async

        def handle(message: MessageMethods) -> Any:
            return _keep_result(message, function(**read(message)))  # type: ignore[call-arg]

        return handle


def _keep_result(message: MessageMethods, value: Any) -> Any:
    """The ack of the message stores what its task returned. A result that is not JSON will not be JSON the next time
    either, and the work is done: the job is rejected."""
    if value is not None:
        try:
            message.result_json = json_of("result", value)
        except InvalidCall as error:
            raise Reject(error.message) from None
    return value


def _return_type(function: Callable[..., Any]) -> Any:
    """What results are converted to; anything if the function does not say."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any


def _reader(function: Callable[..., Any], signature: inspect.Signature) -> Callable[[MessageMethods], dict[str, Any]]:
    """Decodes arguments and checks them against the function's types. A mismatch is permanent: the job is rejected."""
    hints = typing.get_type_hints(function)

    def read(message: MessageMethods) -> dict[str, Any]:
        try:
            arguments = message.json(dict[str, Any])
            signature.bind(**arguments)
            return {name: msgspec.convert(value, hints.get(name, Any)) for name, value in arguments.items()}
        except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
            raise Reject(f"arguments do not match {function.__name__}: {error}") from None

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
    middleware: Iterable[Middleware] = (),
    **job_options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a task: calls of it are enqueued as jobs, and workers run them.

    Parameters:
        name: The name of the task in its jobs. Change it when the arguments change: `email.send.v2`.
        topic: Where its jobs are stored.
        group: The group of its workers.
        concurrency, prefetch, lease_ms, timeout_ms, drain_ms, middleware: As for `driftq.worker`.
        job_options: Options for each of its jobs, as for `broker.send`: `priority`, `retry`, `deadline`, `tenant`, …

    The arguments travel by name, as JSON. They are checked when a job is enqueued, and against the types of the
    function when it runs; a job that does not fit becomes a dead letter.
    """
    options = WorkerOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, WorkerSubscription(topic, group, name), options, job_options, middleware)

    return decorate

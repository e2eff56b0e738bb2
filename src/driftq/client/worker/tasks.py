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
from datetime import timedelta
from typing import Any, NamedTuple, ParamSpec, TypeVar, overload

import msgspec

from driftq.client.calls import jobs, queue
from driftq.client.calls.schedules import create_schedule
from driftq.client.claims import Reject
from driftq.client.endpoint import SyncApi
from driftq.client.errors import InvalidCall
from driftq.client.job_batch_handle import results_of
from driftq.client.job_handle import AsyncJobHandle, JobHandle
from driftq.client.message import json_of
from driftq.client.worker.composition import Composition, TaskCall
from driftq.client.worker.options import Handler, WorkerOptions, WorkerSubscription
from driftq.client.worker.worker import Worker

if typing.TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ, DriftQ
    from driftq.client.message import AsyncMessage, Message, MessageMethods
    from driftq.client.transport.sansio import Call
    from driftq.client.worker.hooks import Middleware
    from driftq.wire.message import JobBatchPart
    from driftq.wire.produce import ProduceItem
    from driftq.wire.schedules import CatchUpPolicy

P = ParamSpec("P")
R = TypeVar("R")


class TaskSchedule(NamedTuple):
    """When a task is called without arguments; see `broker.schedules.create`."""

    name: str
    cron: str
    timezone: str
    every: timedelta | None
    jitter_ms: int
    catch_up: CatchUpPolicy


class Task(Worker[P, R]):
    """A function, a worker for it, and a way to enqueue calls of it."""

    def __init__(
        self,
        function: Callable[P, R],
        subscription: WorkerSubscription,
        options: WorkerOptions,
        job_options: dict[str, Any],
        middleware: Iterable[Middleware] = (),
        schedule: TaskSchedule | None = None,
    ) -> None:
        super().__init__(function, subscription, options, middleware)
        self.schedule = schedule  # registered when a worker starts
        self._signature = inspect.signature(function)
        self._job_options = job_options
        if any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY)
            for parameter in self._signature.parameters.values()
        ):
            raise InvalidCall(
                f"{function.__name__}: a task's arguments are sent by name; *args and positional-only have none"
            )
        if schedule is not None:
            self._check_schedule()

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def _check_schedule(self) -> None:
        try:
            self._signature.bind()
        except TypeError as error:
            message = f"{self.name}: a schedule calls it without arguments, so they need defaults: {error}"
            raise InvalidCall(message) from None

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
        unique: bool | None = None,
        **options: Any,
    ) -> Task[P, R]:
        """The same task with other options for its jobs: `id`, `unique`, `key`, `priority`, `delay_ms`, …"""
        options |= {"id": id, "key": key, "priority": priority, "delay_ms": delay_ms, "timeout_ms": timeout_ms}
        merged = self._job_options | {name: value for name, value in options.items() if value or name == "id_ttl_ms"}
        if unique is not None:
            merged["unique"] = unique
        return Task(self.function, self.subscription, self.options, merged, self.middleware, self.schedule)

    def changed(self, options: WorkerOptions, middleware: Iterable[Middleware]) -> Task[P, R]:
        """The same task with other options and middleware of its worker."""
        return Task(self.function, self.subscription, options, self._job_options, middleware, self.schedule)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> ProduceItem:
        """The job of a call. Raises TypeError for arguments that do not match the signature."""
        bound = self._signature.bind(*args, **kwargs)
        options = dict(self._job_options)
        if options.pop("unique", False):
            every = self._signature.bind(*args, **kwargs)
            every.apply_defaults()  # a default that is given is the same call
            options = jobs.unique_options(self.name, every.arguments, options)
        return queue.item(bound.arguments | bound.arguments.pop("kwargs", {}), task=self.name, **options)

    def _plain_options(self) -> dict[str, Any]:
        """The options of a call in a composition, which is not unique by its arguments."""
        return {name: value for name, value in self._job_options.items() if name not in ("unique", "id_ttl_ms")}

    def registration(self) -> Call[Any] | None:
        """Creates the schedule of the task, or changes it to what its decorator says."""
        schedule = self.schedule
        if schedule is None:
            return None
        return create_schedule(
            schedule.name or self.name,
            self.subscription.topic,
            self.options_for(unique=False).job(),  # type: ignore[call-arg]
            cron=schedule.cron,
            timezone=schedule.timezone,
            every=schedule.every,
            jitter_ms=schedule.jitter_ms,
            catch_up=schedule.catch_up,
            replace=True,
        )

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

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call for `driftq.chain` and `driftq.group`. It may leave open the argument that the result of the step
        before it fills. Raises TypeError for arguments that do not match the signature."""
        bound = self._signature.bind_partial(*args, **kwargs)
        arguments = bound.arguments | bound.arguments.pop("kwargs", {})
        missing = tuple(name for name in _required(self._signature) if name not in arguments)
        job = queue.item(arguments, task=self.name, **self._plain_options())
        return TaskCall(self, job, missing, _return_type(self.function))

    def map(self, values: Iterable[Any], **options: Any) -> Composition:
        """A call for each value, as its first argument, all at the same time. `result()` of the handle is the list of
        what they return. The options are those of `driftq.group`."""
        return Composition("group", (self.call(value) for value in values), **options)  # type: ignore[call-arg]

    def handler(self) -> Handler:
        arguments = JobArguments(self.function, self._signature)
        function = self.function
        if self.is_async:

            async def handle_async(message: AsyncMessage) -> Any:
                given = arguments.of(message)
                if given.results_of:
                    flow = results_of(message._transport, given.results_of, raises=False)
                    given.fill(await message._transport.execute(flow))
                return _keep_result(message, await function(**given.read()))  # type: ignore[call-arg, misc]

            return handle_async

        def handle(message: Message) -> Any:
            given = arguments.of(message)
            if given.results_of:
                flow = results_of(message._transport, given.results_of, raises=False)
                given.fill(message._transport.execute(flow))
            return _keep_result(message, function(**given.read()))  # type: ignore[call-arg]

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


def _required(signature: inspect.Signature) -> list[str]:
    """The arguments without a default."""
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]


class GivenArguments:
    """The arguments of one job. `results_of` is the job batch whose results fill the one that is open."""

    __slots__ = ("_arguments", "_job", "_open", "results_of")

    def __init__(self, job: JobArguments, arguments: dict[str, Any]) -> None:
        self._job = job
        self._arguments = arguments
        self._open = next((name for name in job.required if name not in arguments), "")
        self.results_of = ""

    def take(self, part: JobBatchPart) -> None:
        """Fill the argument that is open with what the part in a batch brings."""
        if self._open and part.previous is not msgspec.UNSET:
            self.fill(msgspec.json.decode(part.previous))
        elif self._open:
            self.results_of = part.previous_batch or (part.id if part.role != "member" else "")

    def fill(self, value: Any) -> None:
        self._arguments[self._open] = value

    def has_open(self) -> bool:
        return bool(self._open)

    def read(self) -> dict[str, Any]:
        return self._job.checked(self._arguments)


class JobArguments:
    """Decodes arguments and checks them against the function's types. A mismatch is permanent: the job is rejected."""

    def __init__(self, function: Callable[..., Any], signature: inspect.Signature) -> None:
        self._name = function.__name__
        self._signature = signature
        self._hints = typing.get_type_hints(function)
        self.required = _required(signature)

    def of(self, message: MessageMethods) -> GivenArguments:
        try:
            given = GivenArguments(self, message.json(dict[str, Any]))
            if given.has_open() and (part := message.job_batch) is not None:
                given.take(part)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._mismatch(error) from None
        return given

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            self._signature.bind(**arguments)
            return {name: msgspec.convert(value, self._hints.get(name, Any)) for name, value in arguments.items()}
        except (msgspec.ValidationError, TypeError) as error:
            raise self._mismatch(error) from None

    def _mismatch(self, error: Exception) -> Reject:
        return Reject(f"arguments do not match {self._name}: {error}")


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
    unique: bool = False,
    cron: str = "",
    timezone: str = "UTC",
    every: timedelta | None = None,
    jitter_ms: int = 0,
    catch_up: CatchUpPolicy = "last",
    schedule: str = "",
    **job_options: Any,
) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a function a task: calls of it are enqueued as jobs, and workers run them.

    Parameters:
        name: The name of the task in its jobs. Change it when the arguments change: `email.send.v2`.
        topic: Where its jobs are stored.
        group: The group of its workers.
        concurrency, prefetch, lease_ms, timeout_ms, drain_ms, middleware: As for `driftq.worker`.
        unique: A call with equal arguments is not enqueued again until the job of the first one has ended, and for
            `id_ttl_ms` after that: the second handle is of the first job, with `duplicate`.
        cron, timezone, every, jitter_ms, catch_up: When to call it without arguments, as for
            `broker.schedules.create`. A worker that starts registers the schedule, or changes it to this.
        schedule: The name of that schedule; by default that of the task.
        job_options: Options for each of its jobs, as for `broker.send`: `priority`, `retry`, `deadline`, `tenant`, …

    The arguments travel by name, as JSON. They are checked when a job is enqueued, and against the types of the
    function when it runs; a job that does not fit becomes a dead letter.
    """
    options = WorkerOptions(concurrency, prefetch, lease_ms, timeout_ms, drain_ms)
    options.check()
    if unique:
        job_options["unique"] = True
    if schedule and not (cron or every):
        raise InvalidCall(f"{name}: a schedule needs cron or every")
    times = TaskSchedule(schedule, cron, timezone, every, jitter_ms, catch_up) if cron or every else None

    def decorate(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, WorkerSubscription(topic, group, name), options, job_options, middleware, times)

    return decorate

"""Calls of tasks that belong together: `chain`, `group` and `Task.map`, on top of job batches.

import driftq

thumbnails = driftq.group(resize.call(name) for name in names)           # all at the same time
report = driftq.chain(fetch.call(url), parse.call(), store.call("main"))   # each with the result of the one before it
both = driftq.chain(thumbnails, album.call())                            # album gets the list of results
handle = both.enqueue(broker)
handle.result(timeout=60)

In a chain, the result of a step is the first argument without a default that the call of the next step leaves open. A
step that is a group hands on the list of its results. A call that leaves nothing open runs without it. The same holds
for the calls that are produced at the end of a composition: `on_success`, and `on_complete` and `on_failure` with None
for jobs that failed. The broker produces each of them in the write that ends the job before it: whatever crashes, a
step is neither lost nor started twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

import msgspec
from msgspec.structs import replace

from driftq.client.calls import job_batches
from driftq.client.endpoint import SyncApi
from driftq.client.errors import InvalidCall
from driftq.client.job_batch_handle import AsyncJobBatchHandle, JobBatchHandle
from driftq.client.transport.sansio import Flow, retrying_call
from driftq.wire.job_batches import CreateJobBatchRequest, JobBatchItem

if TYPE_CHECKING:
    from driftq.client.api import AsyncDriftQ, DriftQ
    from driftq.client.worker.tasks import Task
    from driftq.wire.job_batches import JobBatchMemberItem, Kind
    from driftq.wire.produce import ProduceItem, ProduceRequest

JOBS_PER_CALL = 500


class TaskCall:
    """A call of a task that was not made yet. Made by `Task.call`."""

    def __init__(self, task: Task[Any, Any], job: ProduceItem, missing: tuple[str, ...], returns: Any) -> None:
        self.task = task
        self.job = job
        self.missing = missing  # arguments without a default that it leaves open
        self.returns = returns

    def __repr__(self) -> str:
        return f"<call of {self.task.name}>"

    def check(self, has_input: bool) -> None:
        """Whether it can be made where it is: with the result of another step, or without."""
        if len(self.missing) > has_input:
            reason = "only the first of them is filled by what comes before" if has_input else "nothing fills them here"
            raise InvalidCall(f"the call of {self.task.name} leaves {', '.join(self.missing)} open: {reason}")

    def member(self) -> JobBatchMemberItem:
        return job_batches.member_of(self.task.subscription.topic, self.job)

    def convert(self, result: Any) -> Any:
        return msgspec.convert(result, self.returns)


class Composition:
    """Calls that belong together. Made by `chain`, `group` and `Task.map`."""

    def __init__(
        self,
        kind: Kind,
        parts: Iterable[TaskCall | Composition],
        *,
        id: str = "",
        on_complete: TaskCall | None = None,
        on_success: TaskCall | None = None,
        on_failure: TaskCall | None = None,
        ttl_ms: int = 0,
    ) -> None:
        self.kind = kind
        self.parts = tuple(parts)
        self.id = id
        self.messages = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
        self.ttl_ms = ttl_ms
        messages = [message for message in self.messages.values() if message is not None]
        for part in self.parts:
            if not isinstance(part, TaskCall | Composition):
                raise _no_call(part)
        for message in messages:
            if not isinstance(message, TaskCall):
                raise _no_call(message)
            message.check(has_input=True)

    def __repr__(self) -> str:
        return f"<{self.kind} of {len(self.parts)}>"

    def check(self, has_input: bool) -> None:
        """Whether every call has all of its arguments where it is."""
        for index, part in enumerate(self.parts):
            part.check(has_input or (self.kind == "chain" and index > 0))

    @overload
    def enqueue(self, broker: DriftQ) -> JobBatchHandle: ...
    @overload
    def enqueue(self, broker: AsyncDriftQ) -> Awaitable[AsyncJobBatchHandle]: ...
    def enqueue(self, broker: DriftQ | AsyncDriftQ) -> Any:
        """Enqueue all of it. Returns a handle, to wait for the results. With an `id` it is safe to repeat."""
        self.check(has_input=False)
        id = self.id or secrets.token_hex(8)
        item = self.item(id, self._group())
        if isinstance(broker, SyncApi):
            broker._transport.execute(self._create(broker._transport, item))
            return JobBatchHandle(broker._transport, id, self.convert)
        transport = broker._transport
        creating = transport.execute(self._create(transport, item))

        async def handle() -> AsyncJobBatchHandle:
            await creating
            return AsyncJobBatchHandle(transport, id, self.convert)

        return handle()

    def _create(self, transport: Any, item: JobBatchItem) -> Flow[None]:
        """In one call if it is small. The jobs of a large group are added by several, each of which can be repeated."""
        jobs, whole = item.jobs, item.kind == "chain" or len(item.jobs) <= JOBS_PER_CALL
        fields = {name: getattr(item, name) for name in item.__struct_fields__}
        fields["jobs"] = jobs if whole else ()
        request = CreateJobBatchRequest(**fields, sealed=whole, ttl_ms=self.ttl_ms)
        if not whole:
            request = replace(request, topic=jobs[0].topic or self._topic())
        yield from retrying_call(job_batches.create_from(request), transport.retry, transport.peer)
        for first in range(0, 0 if whole else len(jobs), JOBS_PER_CALL):
            part = jobs[first : first + JOBS_PER_CALL]
            call = job_batches.add_jobs(item.id, part, first=first, seal=first + len(part) == len(jobs))
            yield from retrying_call(call, transport.retry, transport.peer)

    def item(self, id: str, group: str) -> JobBatchItem:
        """The composition as the broker gets it."""
        members = tuple(
            part.member() if isinstance(part, TaskCall) else job_batches.nested(part.item(part.id, group))
            for part in self.parts
        )
        messages: dict[str, ProduceRequest | None] = {
            role: job_batches.message_of(call.member()) if call is not None else None
            for role, call in self.messages.items()
        }
        topic = "" if members or any(messages.values()) else self._topic()
        return JobBatchItem(id=id, kind=self.kind, topic=topic, group=group, jobs=members, **messages)

    def calls(self) -> Iterable[TaskCall]:
        """Every call of a member, also of what is nested."""
        for part in self.parts:
            if isinstance(part, TaskCall):
                yield part
            else:
                yield from part.calls()

    def _group(self) -> str:
        """The group of workers whose end of a job counts."""
        groups = {call.task.subscription.group for call in self.calls()}
        if len(groups) > 1:
            raise InvalidCall(f"the tasks have workers of several groups: {', '.join(sorted(groups))}. Use one group")
        return groups.pop() if groups else ""

    def _topic(self) -> str:
        """Of a composition without jobs of its own: who may use this topic may use the composition."""
        call = next(iter(self.calls()), None) or next((call for call in self.messages.values() if call), None)
        if call is None:
            raise InvalidCall(f"a {self.kind} without any call has nothing to do")
        return call.task.subscription.topic

    @property
    def convert(self) -> Callable[[Any], Any]:
        """Turns results from JSON into what the tasks say that they return."""

        def convert(results: Any) -> Any:
            if self.kind == "chain":
                return self.parts[-1].convert(results) if self.parts else None
            return [part.convert(result) for part, result in zip(self.parts, results, strict=True)]

        return convert


def group(*parts: TaskCall | Composition | Iterable[TaskCall | Composition], **options: Any) -> Composition:
    """Calls that run at the same time. `result()` of its handle is the list of what they return.

    Parameters:
        parts: Calls (`task.call(…)`), chains and groups; or one iterable of them.
        options: `id`, with which it is safe to repeat `enqueue`; `on_complete`, `on_success` and `on_failure`, calls
            that are enqueued when the last one has ended; `ttl_ms`, how long its results are kept after that.
    """
    return Composition("group", _flat(parts), **options)


def chain(*parts: TaskCall | Composition | Iterable[TaskCall | Composition], **options: Any) -> Composition:
    """Calls that run one after the other, each with the result of the one before it. `result()` of its handle is what
    the last one returns. Parameters as for `group`."""
    return Composition("chain", _flat(parts), **options)


def _flat(parts: tuple[Any, ...]) -> Iterable[Any]:
    return parts[0] if len(parts) == 1 and isinstance(parts[0], Iterable) else parts


def _no_call(part: object) -> InvalidCall:
    return InvalidCall(f"{part!r} is no call of a task: use `.call(…)` of the task")

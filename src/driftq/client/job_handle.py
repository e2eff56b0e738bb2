"""Handles of jobs: wait for the result of a job that was enqueued, watch it, cancel it.

handle = resize.enqueue(broker, "photo-7.jpg")
handle.result(timeout=10)     # what the worker returned; raises JobFailed with its traceback

`JobHandle` blocks, `AsyncJobHandle` is awaited. A handle knows where the job is stored, so it can be made again from
its id: `broker.jobs.handle("photos", id)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from driftq.client.calls import interventions, jobs
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.errors import JobCancelled, JobFailed, ResultExpired, ResultTimeout
from driftq.client.transport.sansio import Call, Flow, retrying_call

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.jobs import EnqueueReply, JobResult, RetryReply

R = TypeVar("R")

WAIT_MS = 20_000  # of one long poll


class JobHandleMethods(Generic[R]):
    """What both handles do. `group` is the group of workers whose result counts; empty: every group that claims it."""

    _transport: Any

    def __init__(
        self, topic: str, id: str, *, group: str = "", tenant: str = "", returns: Any = Any, reply: EnqueueReply | None
    ) -> None:
        self.topic = topic
        self.id = id
        self.group = group
        self.tenant = tenant
        self.partition = reply.partition if reply is not None else -1
        self.offset = reply.offset if reply is not None else -1
        self.duplicate = reply is not None and reply.duplicate  # a job with this id existed; nothing was enqueued
        self._returns = returns
        # An id is forgotten sooner than a result; the position in the log is not.
        self._name = f"{reply.topic}:{reply.partition}:{reply.offset}" if reply is not None else id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.id}>"

    @bound_endpoint
    def result(self, timeout: float | None = None) -> Flow[R]:
        """Wait for the end of the job and return what its worker returned.

        Raises `JobFailed` if the job became a dead letter, `JobCancelled` if it was cancelled, and `ResultTimeout` if
        it has not ended after `timeout` seconds (None: no limit).
        """
        return self._await_result(timeout, time.monotonic)

    @bound_endpoint
    def look(self) -> Call[JobResult]:
        """The state of the job, its progress while it runs, and its result if it has ended."""
        return self._look(0)

    @bound_endpoint
    def cancel(self) -> Call[bool]:
        """No worker gets the job any more. False if it had ended before."""
        return jobs.cancel_job(self.topic, self._name, tenant=self.tenant)

    @bound_endpoint
    def retry(self) -> Call[RetryReply]:
        """Do not wait for the backoff or the delay: the job is due now. A dead one is sent back."""
        return interventions.retry_job(self.topic, self._name, tenant=self.tenant)

    def _look(self, wait_ms: int) -> Call[JobResult]:
        return jobs.job_result(self.topic, self._name, group=self.group, wait_ms=wait_ms, tenant=self.tenant)

    def _await_result(self, timeout: float | None, now_s: Callable[[], float]) -> Flow[R]:
        transport = self._transport
        until_s = now_s() + timeout if timeout is not None else None
        while True:
            left_ms = max(0, int((until_s - now_s()) * 1_000)) if until_s is not None else WAIT_MS
            call = self._look(min(WAIT_MS, left_ms))
            ended = yield from retrying_call(call, transport.retry, transport.peer)
            if ended.done:
                return self._read(ended)
            if until_s is not None and now_s() >= until_s:
                raise ResultTimeout(f"job {self.id} of topic {self.topic} has not ended yet: it is {ended.state}")

    def _read(self, ended: JobResult) -> R:
        if ended.state == "dead":
            raise JobFailed(self.id, ended.error, ended.traceback)
        if ended.state == "cancelled":
            raise JobCancelled(f"job {self.id} was cancelled")
        if ended.expired:
            raise ResultExpired(f"job {self.id} has {ended.state}, and its result is not kept any more")
        value = None if ended.result is msgspec.UNSET else ended.result
        result: R = msgspec.convert(value, self._returns)
        return result


class JobHandle(JobHandleMethods[R], SyncApi):
    """A job that was enqueued. Threads may share it."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        id: str,
        *,
        group: str = "",
        tenant: str = "",
        returns: Any = Any,
        reply: EnqueueReply | None = None,
    ) -> None:
        self._transport = transport
        JobHandleMethods.__init__(self, topic, id, group=group, tenant=tenant, returns=returns, reply=reply)


class AsyncJobHandle(JobHandleMethods[R], AsyncApi):
    """A job that was enqueued; its methods are awaited."""

    def __init__(
        self,
        transport: AsyncTransport,
        topic: str,
        id: str,
        *,
        group: str = "",
        tenant: str = "",
        returns: Any = Any,
        reply: EnqueueReply | None = None,
    ) -> None:
        self._transport = transport
        JobHandleMethods.__init__(self, topic, id, group=group, tenant=tenant, returns=returns, reply=reply)

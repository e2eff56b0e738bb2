"""Handles of job batches: wait for the end, collect the results, cancel.

handle = driftq.group(resize.call(name) for name in names).enqueue(broker)
handle.result(timeout=60)     # what the workers returned, in the order of the calls

`JobBatchHandle` blocks, `AsyncJobBatchHandle` is awaited. A handle needs nothing but the id of its batch, so it can be
made again anywhere: `broker.job_batches.handle(id)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.client.calls import job_batches
from driftq.client.endpoint import AsyncApi, SyncApi, bound_endpoint
from driftq.client.errors import JobCancelled, JobFailed, ResultExpired, ResultTimeout
from driftq.client.transport.sansio import Call, Flow, retrying_call

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sync_transport import Transport
    from driftq.wire.job_batches import JobBatchInfo, JobBatchMember

WAIT_MS = 20_000  # of one long poll
Convert = Callable[[Any], Any]


class JobBatchHandleMethods:
    """What both handles do."""

    _transport: Any

    def __init__(self, id: str, convert: Convert | None = None) -> None:
        self.id = id
        self._convert = convert or (lambda results: results)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @bound_endpoint
    def result(self, timeout: float | None = None) -> Flow[Any]:
        """Wait for the end of the batch. Of a group: what its workers returned, in the order of its jobs. Of a chain:
        what the worker of its last step returned.

        Raises `JobFailed` for the first job that failed, `JobCancelled` if the batch was cancelled, and `ResultTimeout`
        if it has not ended after `timeout` seconds (None: no limit).
        """
        return self._await_result(timeout, time.monotonic)

    @bound_endpoint
    def wait(self, timeout: float | None = None) -> Flow[JobBatchInfo]:
        """Wait for the end of the batch, however it ends. Raises `ResultTimeout` if it has not ended in time."""
        return self._await_end(timeout, time.monotonic)

    @bound_endpoint
    def look(self) -> Call[JobBatchInfo]:
        """The state of the batch, and how many of its jobs have ended."""
        return job_batches.describe_job_batch(self.id)

    @bound_endpoint
    def cancel(self) -> Call[bool]:
        """Cancel all jobs that have not ended. False if the batch had ended before."""
        return job_batches.cancel_job_batch(self.id)

    def _await_end(self, timeout: float | None, now_s: Callable[[], float]) -> Flow[JobBatchInfo]:
        transport = self._transport
        until_s = now_s() + timeout if timeout is not None else None
        while True:
            left_ms = max(0, int((until_s - now_s()) * 1_000)) if until_s is not None else WAIT_MS
            call = job_batches.describe_job_batch(self.id, wait_ms=min(WAIT_MS, left_ms))
            info = yield from retrying_call(call, transport.retry, transport.peer)
            if info.ended_at is not None:
                return info
            if until_s is not None and now_s() >= until_s:
                raise ResultTimeout(f"job batch {self.id} has not ended yet: it is {info.state}")

    def _await_result(self, timeout: float | None, now_s: Callable[[], float]) -> Flow[Any]:
        info = yield from self._await_end(timeout, now_s)
        if info.state == "cancelled":
            raise JobCancelled(f"job batch {self.id} was cancelled")
        results = yield from results_of(self._transport, self.id, raises=True)
        return self._convert(results)


def results_of(transport: Any, id: str, *, raises: bool) -> Flow[Any]:
    """The results of a batch that has ended: a list, or of a chain that of its last step. A job without a result, and
    without `raises` one that failed, counts as None. What is nested is a result of its own."""
    results: list[Any] = []
    after: str | None = ""
    kind = ""
    while after is not None:
        page = yield from retrying_call(job_batches.results_page(id, after), transport.retry, transport.peer)
        if page.results_lost:
            raise ResultExpired(f"job batch {id} did not keep {page.results_lost} results: all of them were too large")
        for member in page.jobs:
            if raises:
                _raise_failure(member)
            if member.batch and member.state in ("succeeded", "failed", "cancelled"):
                results.append((yield from results_of(transport, member.batch, raises=raises)))
            else:
                results.append(member.result if member.result is not msgspec.UNSET else None)
        after, kind = page.after, page.kind
    if kind == "chain":
        return results[-1] if results else None
    return results


def _raise_failure(member: JobBatchMember) -> None:
    if member.batch or member.state in ("succeeded", "waiting", "running"):
        return
    name = member.id or f"{member.topic}:{member.partition}:{member.offset}"
    if member.state == "failed":
        raise JobFailed(name, member.error, member.traceback)
    if member.state == "dropped":
        raise JobFailed(name, "it was never run: retention, a deleted topic or a moved group took it away")
    raise JobCancelled(f"job {name} was cancelled")


class JobBatchHandle(JobBatchHandleMethods, SyncApi):
    """A job batch. Threads may share it."""

    def __init__(self, transport: Transport, id: str, convert: Convert | None = None) -> None:
        self._transport = transport
        JobBatchHandleMethods.__init__(self, id, convert)


class AsyncJobBatchHandle(JobBatchHandleMethods, AsyncApi):
    """A job batch; its methods are awaited."""

    def __init__(self, transport: AsyncTransport, id: str, convert: Convert | None = None) -> None:
        self._transport = transport
        JobBatchHandleMethods.__init__(self, id, convert)

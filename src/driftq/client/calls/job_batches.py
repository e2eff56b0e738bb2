"""Calls of job batches as pure functions: create, add jobs, show, wait, results, cancel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.client.calls.admin import pages
from driftq.client.calls.queue import Value, get, item, json_reader, post, segment
from driftq.client.endpoint import Page, Pages
from driftq.wire.job_batches import (
    AddJobsRequest,
    CancelJobBatchReply,
    CreateJobBatchRequest,
    JobBatchChange,
    JobBatchesReply,
    JobBatchInfo,
    JobBatchItem,
    JobBatchMember,
    JobBatchMemberItem,
    JobBatchMembersReply,
)
from driftq.wire.produce import ProduceItem, ProduceRequest

if TYPE_CHECKING:
    from driftq.client.transport.sansio import Call

RESULTS_PAGE = 500


def _batch(id: str) -> str:
    return f"/v1/job-batches/{segment(id)}"


def job(value: Value, *, topic: str = "", **options: Any) -> JobBatchMemberItem:
    """A job of a batch: a value, its topic if it is not that of the batch, and options as in `jobs.enqueue`."""
    return member_of(topic, item(value, **options))


def member_of(topic: str, message: ProduceItem) -> JobBatchMemberItem:
    fields: tuple[Any, ...] = (*msgspec.structs.astuple(message)[: len(ProduceItem.__struct_fields__)], topic)
    return JobBatchMemberItem(*fields)


def nested(batch: JobBatchItem) -> JobBatchMemberItem:
    """A job batch as a member of another."""
    return JobBatchMemberItem(batch=batch)


def create_job_batch(
    jobs: Iterable[JobBatchMemberItem] = (),
    *,
    id: str = "",
    kind: str = "group",
    topic: str = "",
    group: str = "",
    on_complete: ProduceRequest | None = None,
    on_success: ProduceRequest | None = None,
    on_failure: ProduceRequest | None = None,
    sealed: bool = True,
    parent: str = "",
    ttl_ms: int = 0,
) -> Call[JobBatchChange]:
    """Create a job batch: jobs that belong together, and messages that are produced when the last one has ended.

    Parameters:
        jobs: Made by `job_batches.job`. All of them are enqueued, or none; at most 1,000 in one call.
        id: With an id it is safe to repeat the call. Without one the broker makes one.
        kind: "group" to run all jobs at the same time, "chain" to run each with the result of the one before it.
        topic: Of jobs and messages that name none.
        group: The consumer group whose end of a job counts; "workers" if it is not given.
        on_complete, on_success, on_failure: Made by `job_batches.job`.
        sealed: Whether these are all jobs. If not, `job_batches.add` adds more, and seals it.
        parent: The id of an open batch of which this one becomes a member.
        ttl_ms: How long it is kept after its end.
    """
    request = CreateJobBatchRequest(
        id=id,
        kind=kind,  # type: ignore[arg-type]  # the broker checks it
        topic=topic,
        group=group,
        jobs=tuple(jobs),
        on_complete=message_of(on_complete),
        on_success=message_of(on_success),
        on_failure=message_of(on_failure),
        sealed=sealed,
        parent=parent,
        ttl_ms=ttl_ms,
    )
    return create_from(request)


def message_of(job: ProduceRequest | None) -> ProduceRequest | None:
    """A job without the fields that only members have."""
    if job is None:
        return None
    fields = {name: getattr(job, name) for name in ProduceRequest.__struct_fields__}
    return ProduceRequest(**fields)


def create_from(request: CreateJobBatchRequest) -> Call[JobBatchChange]:
    return post("/v1/job-batches", request, json_reader(JobBatchChange), idempotent=bool(request.id))


def add_jobs(
    id: str, jobs: Iterable[JobBatchMemberItem] = (), *, first: int, topic: str = "", seal: bool = False
) -> Call[JobBatchChange]:
    """Add jobs to an open batch. `first` is the index of the first of them, which is how many jobs the batch has: so it
    is safe to repeat the call. `seal`: nothing is added after these."""
    request = AddJobsRequest(first=first, topic=topic, jobs=tuple(jobs), seal=seal)
    return post(f"{_batch(id)}/jobs", request, json_reader(JobBatchChange), idempotent=True)


def describe_job_batch(id: str, *, wait_ms: int = 0) -> Call[JobBatchInfo]:
    """The state of a batch, its counts, and what its end produced. Waits up to `wait_ms` for its end."""
    return get(_batch(id), JobBatchInfo, {"wait_ms": wait_ms or None}, wait_ms)


def list_job_batches(state: str = "", *, limit: int | None = None) -> Pages[JobBatchInfo]:
    """Job batches, the newest first; with a state only those that are in it."""
    query = {"state": state}
    return pages("/v1/job-batches", JobBatchesReply, lambda reply: Page(reply.job_batches, reply.after), query, limit)


def job_batch_jobs(id: str, state: str = "", *, limit: int | None = None) -> Pages[JobBatchMember]:
    """The members of a batch with their states, by index."""
    path = f"{_batch(id)}/jobs"
    return pages(path, JobBatchMembersReply, lambda reply: Page(reply.jobs, reply.after), {"state": state}, limit)


def job_batch_results(id: str, state: str = "", *, limit: int | None = None) -> Pages[JobBatchMember]:
    """The members of a batch with their results and errors, by index."""
    path = f"{_batch(id)}/results"
    return pages(path, JobBatchMembersReply, lambda reply: Page(reply.jobs, reply.after), {"state": state}, limit)


def results_page(id: str, after: str) -> Call[JobBatchMembersReply]:
    return get(f"{_batch(id)}/results", JobBatchMembersReply, {"after": after, "limit": RESULTS_PAGE})


def cancel_job_batch(id: str) -> Call[bool]:
    """Cancel all jobs of a batch that have not ended, and what is nested in it. False if it had ended before."""
    call = post(f"{_batch(id)}/cancel", {}, json_reader(CancelJobBatchReply), idempotent=True)
    read = call.read
    return post(f"{_batch(id)}/cancel", {}, lambda reply: read(reply).cancelled, idempotent=True)

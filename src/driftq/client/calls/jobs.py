"""Calls of jobs as pure functions: enqueue, look up, wait for the result, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftq.client.calls.queue import (
    Value,
    decode_body,
    get,
    is_keyed,
    item,
    json_reader,
    post,
    segment,
    to_topic,
)
from driftq.wire.jobs import CancelReply, EnqueueReply, JobResult
from driftq.wire.produce import ProduceItem

if TYPE_CHECKING:
    from driftq.client.transport.sansio import Call


def _job(topic: str, id: str) -> str:
    return f"/v1/jobs/{segment(topic)}/{segment(id)}"


def enqueue(topic: str, value: Value | ProduceItem, *, task: str = "", **options: Any) -> Call[EnqueueReply]:
    """Enqueue a job: a message with a task, an id, or both.

    Parameters:
        topic: Where the job is stored.
        value: Bytes, text, or anything that JSON can represent. For a task, its arguments by name.
        task: The name of the work; workers claim jobs of their own tasks.
        options: As in `send`: `id`, `key`, `priority`, `delay_ms`, `not_before`, `timeout_ms`, `deadline`, `retry`, …

    With an `id` it is safe to repeat: a second job of that id is not stored while the first has not ended.
    """
    message = value if isinstance(value, ProduceItem) else item(value, task=task, **options)
    return post("/v1/jobs", to_topic(topic, message), json_reader(EnqueueReply), idempotent=is_keyed(message))


def find_job(topic: str, id: str, *, tenant: str = "") -> Call[dict[str, Any]]:
    """A job's state for each group."""
    return get(_job(topic, id), dict[str, Any], {"tenant_id": tenant})


def job_result(topic: str, id: str, *, group: str = "", wait_ms: int = 0, tenant: str = "") -> Call[JobResult]:
    """How a job ended, and with what result. Waits up to `wait_ms` for its end: for one group of workers, or for every
    group that claims it."""
    query = {"group": group, "wait_ms": wait_ms or None, "tenant_id": tenant}
    return get(f"{_job(topic, id)}/result", JobResult, query, wait_ms)


def cancel_job(topic: str, id: str, *, tenant: str = "") -> Call[bool]:
    """No worker gets the job any more. A worker that runs it is notified at its next heartbeat."""
    path = f"{_job(topic, id)}/cancel" + (f"?tenant_id={segment(tenant)}" if tenant else "")
    return post(path, {}, lambda reply: decode_body(reply, CancelReply).cancelled, idempotent=True)

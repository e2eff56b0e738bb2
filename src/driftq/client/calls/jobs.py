"""Calls of jobs as pure functions: enqueue, look up, wait for the result, cancel."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.client import trace
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
from driftq.client.errors import InvalidCall
from driftq.wire.jobs import CancelReply, EnqueueReply, JobResult
from driftq.wire.produce import ProduceItem

if TYPE_CHECKING:
    from driftq.client.transport.sansio import Call


TASK_SHOWN = 180  # characters of the task in the id of a unique job


def _job(topic: str, id: str) -> str:
    return f"/v1/jobs/{segment(topic)}/{segment(id)}"


def unique_id(task: str, value: object) -> str:
    """The id of a job that is unique by its task and arguments. Equal arguments give the same id, whatever the order of
    their names."""
    text = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else _canonical(value)
    return f"{task[:TASK_SHOWN]}:{blake2b(text, digest_size=16, person=b'driftq-unique').hexdigest()}"


def unique_options(task: str, value: object, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a unique job: its id, and for how long the id is taken after its end."""
    if options.get("id"):
        raise InvalidCall("a job is unique by its id or by its arguments, not by both")
    if not task:
        raise InvalidCall("a job is unique by its arguments within a task: name the task")
    return {"id_ttl_ms": 0, **options, "id": unique_id(task, value)}


def _canonical(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidCall(f"the arguments of a unique job are no JSON: {error}") from None


def enqueue(
    topic: str, value: Value | ProduceItem, *, task: str = "", unique: bool = False, **options: Any
) -> Call[EnqueueReply]:
    """Enqueue a job: a message with a task, an id, or both.

    Parameters:
        topic: Where the job is stored.
        value: Bytes, text, or anything that JSON can represent. For a task, its arguments by name.
        task: The name of the work; workers claim jobs of their own tasks.
        unique: The id is made from task and value, so that an equal job is not stored again until this one has ended.
        options: As in `send`: `id`, `key`, `priority`, `delay_ms`, `not_before`, `timeout_ms`, `deadline`, `retry`, …

    With an `id` it is safe to repeat: a second job of that id is not stored while the first has not ended, and for
    `id_ttl_ms` after that (by default the broker's `idempotency.ttl_ms`; 0 for a unique job).
    """
    if unique:
        options = unique_options(task, value, options)
    message = value if isinstance(value, ProduceItem) else item(value, task=task, **options)
    on_end = None
    if trace.active is not None:
        (message,), on_end = trace.active.sent(topic, [message])
    call = post("/v1/jobs", to_topic(topic, message), json_reader(EnqueueReply), idempotent=is_keyed(message))
    call.on_end = on_end
    return call


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

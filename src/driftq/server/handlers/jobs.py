"""Jobs: messages with a task, an id and a schedule. A job is looked up and cancelled by its id.

A job without an id of its own is named `topic:partition:offset`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model.commands import EffectKey, ProduceKey
from driftq.core.state.effects import EffectStatus, effect_scope
from driftq.core.state.idempotency_keys import ProducedKey, job_key, produce_scope
from driftq.core.state.jobs import Attempt, claims
from driftq.core.state.progress import MessageState
from driftq.server.handlers.codec import json_response, read_message, refusal, refused
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.produced_message import TRACE_HEADER, prepare, produce_command, traced
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.jobs import (
    CancelReply,
    EnqueueReply,
    JobAttempt,
    JobGroupState,
    JobReply,
    JobRequest,
    JobStateName,
)
from driftq.wire.message import Job, Routing, read_head
from driftq.wire.records import read_header, unpack

if TYPE_CHECKING:
    from driftq.core.model.replies import Produced
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Entry
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.wire.produce import ProduceItem

_NUMBER = re.compile(r"[0-9]{1,16}", re.ASCII)

# The state of a job over all groups that claim it: the least finished one, then the worst end.
_STATE_ORDER: tuple[JobStateName, ...] = (
    "running", "retrying", "scheduled", "ready", "dead", "cancelled", "finished", "succeeded", "skipped",
)  # fmt: skip
_FINAL_STATES: dict[str, JobStateName] = {
    "succeeded": "succeeded", "dead": "dead", "cancelled": "cancelled", "skipped": "skipped",
}  # fmt: skip


class JobsHandlers:
    """Handlers of `/v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def enqueue(self, request: Request) -> Answer:
        body = read_message(request.body, JobRequest)
        if not body.topic:
            raise BadRequest("topic and value are required")
        if not (body.id or body.task):
            raise BadRequest("a job has a task, an id, or both")
        trace = request.head.fields.get(TRACE_HEADER)
        if trace is not None:
            body = traced(body, trace)
        router = self._context.router
        if router is None:
            return self._enqueue(body.topic, body)
        return router.then([(body.topic, body)], lambda routes: self._enqueue(body.topic, *routes[0]))

    def _enqueue(self, topic: str, item: ProduceItem, routing: Routing | None = None) -> Answer:
        message = prepare(item, topic, self._engine.now_ms(), routing=routing)
        command = produce_command(topic, item.envelope, message, self._context.any_partition(topic, item))
        rejected = self._context.charge(item.envelope, 1, command.payload_bytes)
        if rejected is not None:
            return refusal(rejected)

        def respond(reply: Produced) -> Response:
            job_id = item.id or f"{reply.topic}:{reply.partition}:{reply.first_offset}"
            body = EnqueueReply(job_id, reply.topic, reply.partition, reply.first_offset, reply.duplicate)
            return json_response(body, 200 if reply.duplicate else 201)

        return self._context.ask(command, respond)

    async def get(self, request: Request, topic_name: str, job_id: str) -> Response:
        """A job's state for each group that reads its topic. The record is read after the query, when it is durable."""
        tenant = request.query.get("tenant_id", "")
        status = await self._engine.queries.result(lambda view: _status(view, tenant, topic_name, job_id))
        if status is None:
            return _unknown(topic_name, job_id)
        job = self._job(status)
        not_before_ms = job.not_before_ms if job is not None else 0
        return json_response(
            JobReply(
                id=job_id,
                topic=status.topic,
                partition=status.partition,
                offset=status.offset,
                task=job.task if job is not None else "",
                priority=job.priority if job is not None else 0,
                not_before=to_rfc3339(not_before_ms) if not_before_ms else None,
                state=status.state or ("scheduled" if not_before_ms > self._engine.now_ms() else "ready"),
                groups=status.groups,
            )
        )

    def _job(self, status: _JobStatus) -> Job | None:
        """The job in the record's head. None if retention deleted the record, or if it is a plain message."""
        batches = self._engine.read(status.log_id, status.offset, status.offset + 1, 1) if status.is_kept else []
        if not batches:
            return None
        header = read_header(batches[0])
        (record,) = unpack(batches[0], header, first=status.offset - header.first_offset, count=1)
        return read_head(record.head).job

    def cancel(self, request: Request, topic_name: str, job_id: str) -> Answer:
        """No worker gets the job any more. A worker that runs it is notified at its next heartbeat."""
        state, tenant = self._engine.latest_state, request.query.get("tenant_id", "")
        key = _find(state, self._engine.now_ms(), tenant, topic_name, job_id)
        if key is None:
            return self._context.hold(_unknown(topic_name, job_id))
        log = state.logs[key.log_id]
        command = c.Cancel(log.topic, log.partition, key.offset)
        return self._context.ask(command, lambda reply: json_response(CancelReply(job_id, reply.changed)))


class _JobStatus(NamedTuple):
    """Where a job is, and its state."""

    log_id: int
    topic: str
    partition: int
    offset: int
    is_kept: bool  # its record is not deleted
    state: JobStateName | None  # None: no group claims it yet
    groups: list[JobGroupState]


def _status(view: StateView, tenant: str, topic_name: str, job_id: str) -> _JobStatus | None:
    state = view.state
    key = _find(state, view.now_ms, tenant, topic_name, job_id)
    log = state.logs[key.log_id] if key is not None else None
    if key is None or log is None or key.offset >= log.end:
        return None
    is_kept = key.offset >= log.start
    if not (is_kept or key.ttl_ms):
        return None  # named by its offset, and deleted
    groups = [
        _group_state(view, group, log, key.offset, tenant, job_id)
        for group in state.topics[log.topic].groups.values()
        if not group.commits_offsets  # it reads jobs, it does not run them
    ]
    overall = _overall(groups)
    if overall is None and key.offset in log.cancelled:
        overall = "cancelled"
    elif overall is None and not is_kept:
        overall = "finished"
    return _JobStatus(log.log_id, log.topic, log.partition, key.offset, is_kept, overall, groups)


def _find(state: State, now_ms: int, tenant: str, topic_name: str, job_id: str) -> ProducedKey | None:
    key = state.keys.find_job(produce_scope(ProduceKey(tenant, topic_name, job_key(job_id))), now_ms)
    return key if key is not None and key.log_id in state.logs else _by_offset(state, job_id)


def _by_offset(state: State, job_id: str) -> ProducedKey | None:
    """The job named `topic:partition:offset`."""
    name, _, offset = job_id.rpartition(":")
    name, _, partition = name.rpartition(":")
    topic = state.topics.get(name)
    if topic is None or not all(_NUMBER.fullmatch(part) for part in (partition, offset)):
        return None
    if int(partition) >= len(topic.log_ids):
        return None
    return ProducedKey(topic.log_ids[int(partition)], int(offset), 1, 0, 0)


def _group_state(view: StateView, group: Group, log: Log, offset: int, tenant: str, job_id: str) -> JobGroupState:
    """The job's state for one group, its attempts, and the result if a worker committed one under the job's id."""
    state = view.state
    place, lease, entry = group.progress[log.partition].state_of(offset)
    history = state.job_attempts.of(log.log_id, offset)
    attempts = [attempt for attempt in history if attempt.group_id == group.group_id]
    name = _state_name(place, entry, attempts, view.now_ms)
    if name == "finished" and history:
        name = "skipped"  # other groups have attempts, this one has none
    if not (place in (MessageState.SETTLED, MessageState.HELD) or attempts or claims(group, log, offset)):
        name = "unclaimed"
    is_waiting = entry is not None and place is MessageState.RESTING
    is_held = lease is not None and place is MessageState.HELD
    effect = state.effects.find(effect_scope(EffectKey(tenant, log.topic, group.name, job_id)))
    is_committed = effect is not None and effect.status is EffectStatus.COMMITTED
    return JobGroupState(
        group=group.name,
        state=name,
        due_at=to_rfc3339(entry.retry_at_ms) if entry is not None and is_waiting else None,
        owner=lease.owner if lease is not None and is_held else None,
        lease_until=to_rfc3339(lease.until_ms) if lease is not None and is_held else None,
        attempts=[_attempt(attempt) for attempt in attempts if attempt.number],
        result=effect.result.decode("utf-8", "replace") if effect is not None and is_committed else None,
    )


def _state_name(place: MessageState, entry: Entry | None, attempts: list[Attempt], now_ms: int) -> JobStateName:
    if place is MessageState.SETTLED:
        return _FINAL_STATES.get(attempts[-1].end if attempts else "", "finished")
    if place is MessageState.RESTING and entry is not None:
        if entry.attempts or entry.releases:
            return "retrying"
        return "scheduled" if entry.retry_at_ms > now_ms else "ready"
    return "running" if place is MessageState.HELD else "ready"


def _attempt(attempt: Attempt) -> JobAttempt:
    return JobAttempt(
        attempt=attempt.number,
        owner=attempt.owner,
        began_at=to_rfc3339(attempt.began_ms),
        ended_at=to_rfc3339(attempt.ended_ms) if attempt.end else None,
        end=attempt.end or "running",  # type: ignore[arg-type]  # one of the names that `core.state.jobs` uses
        error=attempt.error,
    )


def _overall(groups: list[JobGroupState]) -> JobStateName | None:
    """The state over all groups that claim the job; None if no group claims it."""
    names = {group.state for group in groups}
    return next((name for name in _STATE_ORDER if name in names), None)


def _unknown(topic_name: str, job_id: str) -> Response:
    message = f"topic {topic_name} knows no job {job_id!r} (ids are kept for a while)"
    return refused(Code.NOT_FOUND, message)

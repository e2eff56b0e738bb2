"""Jobs: messages with an id, a task and a schedule. A job is looked up by its id and cancelled by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model.commands import EffectKey, ProduceKey
from driftq.core.state.idempotency import EffectStatus, effect_scope
from driftq.core.state.jobs import Attempt, claims
from driftq.core.state.produced_keys import ProducedKey, job_key, produce_scope
from driftq.core.state.progress import MessageState
from driftq.server.handlers.base import Context, error_response, json_response, read_json, refusal
from driftq.server.handlers.queue import produce_command
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.produced_message import HEADER as TRACE_HEADER
from driftq.server.produced_message import outgoing, traced
from driftq.wire.admin import JobRequest
from driftq.wire.message import Job, Routing, read_head, to_rfc3339
from driftq.wire.records import read_header, unpack

if TYPE_CHECKING:
    from driftq.core.model.replies import Produced
    from driftq.core.state.groups import Group
    from driftq.core.state.leases import Entry
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State
    from driftq.engine.queries import StateView
    from driftq.wire.queue import ProduceItem

_PLACE = re.compile(r"[0-9]{1,16}", re.ASCII)


class JobsHandlers:
    """Handlers of `/v1/jobs`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def enqueue(self, request: Request) -> Answer:
        body = read_json(request.body, JobRequest)
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

    def _enqueue(self, requested: str, item: ProduceItem, routing: Routing | None = None) -> Answer:
        message = outgoing(item, requested, self._engine.now_ms(), routing=routing)
        command = produce_command(requested, item.envelope, message, self._context.any_partition(requested, item))
        refused = self._context.charge(item.envelope, 1, command.payload_bytes)
        if refused is not None:
            return refusal(refused)

        def respond(reply: Produced) -> Response:
            job_id = item.id or f"{reply.topic}:{reply.partition}:{reply.first_offset}"
            shown = {
                "id": job_id,
                "topic": reply.topic,
                "partition": reply.partition,
                "offset": reply.first_offset,
                "duplicate": reply.duplicate,
            }
            return json_response(shown, 200 if reply.duplicate else 201)

        return self._context.ask(command, respond)

    async def get(self, request: Request, topic_name: str, job_id: str) -> Response:
        """A job's state for each group that reads its topic. Its record is read when it is durable for certain."""
        tenant = request.query.get("tenant_id", "")
        found = await self._engine.queries.result(lambda view: _look(view, tenant, topic_name, job_id))
        if found is None:
            return _unknown(topic_name, job_id)
        job = self._job(found)
        not_before_ms = job.not_before_ms if job is not None else 0
        shown: dict[str, Any] = {
            "id": job_id,
            "topic": found.topic,
            "partition": found.partition,
            "offset": found.offset,
            "task": job.task if job is not None else "",
            "priority": job.priority if job is not None else 0,
            "not_before": to_rfc3339(not_before_ms) if not_before_ms else None,
            "state": found.state or ("scheduled" if not_before_ms > self._engine.now_ms() else "ready"),
            "groups": found.groups,
        }
        return json_response(shown)

    def _job(self, found: _Found) -> Job | None:
        """What its record says; None if retention took it, or if it is a plain message."""
        batches = self._engine.read(found.log_id, found.offset, found.offset + 1, 1) if found.is_kept else []
        if not batches:
            return None
        header = read_header(batches[0])
        (record,) = unpack(batches[0], header, first=found.offset - header.first_offset, count=1)
        return read_head(record.head).job

    def cancel(self, request: Request, topic_name: str, job_id: str) -> Answer:
        """Nobody gets it any more; whoever runs it hears of it at the next heartbeat."""
        state, tenant = self._engine.latest_state, request.query.get("tenant_id", "")
        found = _find(state, self._engine.now_ms(), tenant, topic_name, job_id)
        if found is None:
            return self._context.hold(_unknown(topic_name, job_id))
        log = state.logs[found.log_id]
        command = c.Cancel(log.topic, log.partition, found.offset)
        return self._context.ask(command, lambda reply: json_response({"id": job_id, "cancelled": reply.changed}))


class _Found(NamedTuple):
    """Where a job is, its state in one word (empty: no group claims it yet), and its state for each group."""

    log_id: int
    topic: str
    partition: int
    offset: int
    is_kept: bool
    state: str
    groups: list[dict[str, Any]]


def _look(view: StateView, tenant: str, topic_name: str, job_id: str) -> _Found | None:
    state = view.state
    found = _find(state, view.now_ms, tenant, topic_name, job_id)
    log = state.logs[found.log_id] if found is not None else None
    if found is None or log is None or found.offset >= log.end:
        return None
    is_kept = found.offset >= log.start
    if not (is_kept or found.ttl_ms):
        return None  # called by its place, and gone
    groups = state.topics[log.topic].groups.values()
    states = [_state(view, group, log, found.offset, tenant, job_id) for group in groups]
    word = _overall(states)
    if not word and found.offset in log.cancelled:
        word = "cancelled"
    elif not word and not is_kept:
        word = "finished"
    return _Found(log.log_id, log.topic, log.partition, found.offset, is_kept, word, states)


def _find(state: State, now_ms: int, tenant: str, topic_name: str, job_id: str) -> ProducedKey | None:
    found = state.keys.find_job(produce_scope(ProduceKey(tenant, topic_name, job_key(job_id))), now_ms)
    return found if found is not None and found.log_id in state.logs else _by_place(state, job_id)


def _by_place(state: State, job_id: str) -> ProducedKey | None:
    """Jobs without an id of their own are called topic:partition:offset."""
    name, _, rest = job_id.rpartition(":")
    name, _, partition = name.rpartition(":")
    topic = state.topics.get(name)
    if topic is None or not all(_PLACE.fullmatch(part) for part in (partition, rest)):
        return None
    if int(partition) >= len(topic.log_ids):
        return None
    return ProducedKey(topic.log_ids[int(partition)], int(rest), 1, 0, 0)


def _state(view: StateView, group: Group, log: Log, offset: int, tenant: str, job_id: str) -> dict[str, Any]:
    """Where the job is for one group, what was tried, and the result if its worker committed one under its id."""
    state = view.state
    place, lease, entry = group.progress[log.partition].place_of(offset)
    known = state.job_attempts.of(log.log_id, offset)
    attempts = [each for each in known if each.group_id == group.group_id]
    word = _word(place, entry, attempts, view.now_ms)
    if word == "finished" and known:
        word = "skipped"  # what happened to it is known, and this group is not in it
    if not (place in (MessageState.SETTLED, MessageState.HELD) or attempts or claims(group, log, offset)):
        word = "unclaimed"
    shown: dict[str, Any] = {"group": group.name, "state": word}
    if entry is not None and place is MessageState.RESTING:
        shown["due_at"] = to_rfc3339(entry.retry_at_ms)
    if lease is not None and place is MessageState.HELD:
        shown |= {"owner": lease.owner, "lease_until": to_rfc3339(lease.until_ms)}
    shown["attempts"] = [_attempt(each) for each in attempts if each.number]
    effect = state.effects.find(effect_scope(EffectKey(tenant, log.topic, group.name, job_id)))
    if effect is not None and effect.status is EffectStatus.COMMITTED:
        shown["result"] = effect.result.decode("utf-8", "replace")
    return shown


def _word(place: MessageState, entry: Entry | None, attempts: list[Attempt], now_ms: int) -> str:
    if place is MessageState.SETTLED:
        ended = attempts[-1].end if attempts else ""
        return ended if ended in ("succeeded", "dead", "cancelled", "skipped") else "finished"
    if place is MessageState.RESTING and entry is not None:
        if entry.attempts or entry.releases:
            return "retrying"
        return "scheduled" if entry.retry_at_ms > now_ms else "ready"
    return "running" if place is MessageState.HELD else "ready"


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "owner": attempt.owner,
        "began_at": to_rfc3339(attempt.began_ms),
        "ended_at": to_rfc3339(attempt.ended_ms) if attempt.end else None,
        "end": attempt.end or "running",
        "error": attempt.error,
    }


def _overall(states: list[dict[str, Any]]) -> str:
    """One word for all groups that claim the job: the least finished, then the worst end. Empty if none claims it."""
    words = {each["state"] for each in states}
    for state in ("running", "retrying", "scheduled", "ready", "dead", "cancelled", "finished", "succeeded", "skipped"):
        if state in words:
            return state
    return ""


def _unknown(topic_name: str, job_id: str) -> Response:
    return error_response(404, "NOT_FOUND", f"topic {topic_name} knows no job {job_id!r} (ids are kept for a while)")

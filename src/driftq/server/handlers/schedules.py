"""Schedules: create, change, list, show, pause, resume, run, delete.

A schedule sends messages to its topic: a caller that may produce there may do everything with it. Producers and readers
of the topic see it.
"""

from __future__ import annotations

import base64
import secrets
from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import schedules as s
from driftq.core.model.replies import Rejected
from driftq.core.model.schedule_facts import (
    ANY_PARTITION,
    ScheduledMessage,
    SchedulePlan,
    ScheduleSpec,
    ScheduleTimes,
)
from driftq.core.transitions.lookups import no_such_schedule
from driftq.engine.schedule_times import BadSchedule, check_times, next_plan, times_after
from driftq.server.access.identity import AccessRefused, Verdict, decide, owned, require_topic
from driftq.server.handlers.codec import json_response, no_content, page_limit, read_json, read_message, refusal
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.produced_message import prepare
from driftq.wire.errors import Code
from driftq.wire.fields import from_rfc3339, to_rfc3339
from driftq.wire.grants import PRODUCE, READ
from driftq.wire.message import Job, read_head
from driftq.wire.produce import ANY, ProduceItem
from driftq.wire.schedules import (
    MESSAGE_BYTES_MAX,
    RECENT_MS,
    TIMES_SHOWN,
    UTC,
    WINDOW_MS_MAX,
    WINDOW_MS_MIN,
    FiringInfo,
    RanReply,
    RunRequest,
    ScheduleInfo,
    ScheduleRequest,
    SchedulesReply,
    firing_id,
    requested_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from driftq.core.model.commands import Command
    from driftq.core.state.schedules import Schedule
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

NAMES_SCANNED_MAX = 5_000  # for one page
_ANY_ID = "-"  # in the place of the id that a firing gets


class SchedulesHandlers:
    """Handlers of `/v1/schedules`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    async def create(self, request: Request) -> Response:
        body = read_message(request.body, ScheduleRequest)
        require_topic(request, PRODUCE, body.topic)
        known = self._engine.latest_state.schedules.by_name.get(body.name)
        if known is not None:
            if not _is_seen(request, known):
                raise AccessRefused(
                    Code.PERMISSION_DENIED, f"the name {body.name} is taken by a schedule of others; use another"
                )
            require_topic(request, PRODUCE, known.spec.message.topic)
        item = owned(body.message, self._context.tenant) if self._context.tenant else body.message
        now_ms = self._engine.now_ms()
        spec = _spec(body, _message(body.topic, item, now_ms), known, now_ms)
        plan = SchedulePlan()
        if known is None or known.spec != spec:
            try:
                check_times(spec.times, now_ms)
            except BadSchedule as error:
                raise BadRequest(str(error)) from None
            plan = next_plan(spec, now_ms, now_ms)
        command = s.CreateSchedule(body.name, spec, plan, body.replace)
        reply = await self._engine.submit(self._context.audited(request, command, body.name, topic=body.topic))
        if isinstance(reply, Rejected):
            return refusal(reply)
        assert isinstance(reply, s.ScheduleReady)
        return await self._described(request, body.name, 201 if reply.created else 200)

    def list(self, request: Request) -> Answer:
        """A page of schedules, in the order of their names. A page may be shorter than asked for."""
        limit, query = page_limit(request), request.query
        prefix, topic, after = query.get("prefix", ""), query.get("topic", ""), query.get("after", "")

        def look(view: StateView) -> Response:
            shown: list[ScheduleInfo] = []
            name, count = "", 0
            for name in islice(view.state.schedules.names_from(prefix, after), NAMES_SCANNED_MAX):
                schedule = view.state.schedules.by_name[name]
                count += 1
                if (not topic or schedule.spec.message.topic == topic) and _is_seen(request, schedule):
                    shown.append(_info(view, schedule, list(schedule.times[:1])))
                    if len(shown) == limit:
                        break
            has_more = len(shown) == limit or count == NAMES_SCANNED_MAX
            return json_response(SchedulesReply(shown, name if has_more else None))

        return self._context.query(look)

    async def show(self, request: Request, name: str) -> Response:
        return await self._described(request, name, 200)

    def pause(self, request: Request, name: str) -> Answer:
        return self._change(request, name, s.PauseSchedule(name))

    def resume(self, request: Request, name: str) -> Answer:
        return self._change(request, name, s.PauseSchedule(name, paused=False))

    def delete(self, request: Request, name: str) -> Answer:
        return self._change(request, name, s.DeleteSchedule(name))

    def run(self, request: Request, name: str) -> Answer:
        body = read_json(request.body, RunRequest) if request.body else RunRequest()
        command = s.RunSchedule(name, body.request_id or f"run-{secrets.token_hex(6)}")

        def respond(reply: s.ScheduleRan) -> Response:
            ran = RanReply(name, reply.job, reply.topic, reply.partition, reply.offset, reply.duplicate)
            return json_response(ran, 200 if reply.duplicate else 201)

        return self._require(request, name) or self._context.ask(command, respond)

    def _change(self, request: Request, name: str, command: Command) -> Answer:
        refused = self._require(request, name)
        return refused or self._context.ask(self._context.audited(request, command, name), no_content)

    def _require(self, request: Request, name: str) -> Answer | None:
        """The refusal if there is no such schedule, or the caller may not see it. Raises if the caller may not send
        what it sends."""
        schedule = self._engine.latest_state.schedules.by_name.get(name)
        if schedule is None or not _is_seen(request, schedule):
            return self._context.hold(refusal(no_such_schedule(name)))
        require_topic(request, PRODUCE, schedule.spec.message.topic)
        return None

    async def _described(self, request: Request, name: str, status: int) -> Response:
        def look(view: StateView) -> Response:
            schedule = view.state.schedules.by_name.get(name)
            if schedule is None or not _is_seen(request, schedule):
                return refusal(no_such_schedule(name))
            times = list(islice(_times(schedule, view.now_ms), TIMES_SHOWN))
            return json_response(_info(view, schedule, times), status)

        return await self._engine.queries.result(look)


def _is_seen(request: Request, schedule: Schedule) -> bool:
    topic = schedule.spec.message.topic
    return any(decide(request.identity, verb, topic) is Verdict.ALLOWED for verb in (READ, PRODUCE))


# --- what a request means ---------------------------------------------------------------------------------------------


def _message(topic: str, item: ProduceItem, now_ms: int) -> ScheduledMessage:
    envelope = item.envelope
    if item.id or item.delay_ms or item.not_before:
        raise BadRequest("the message of a schedule has no id, delay_ms or not_before: each firing has its own")
    if envelope is not None and (envelope.target_topic or envelope.deadline or envelope.idempotency_key):
        raise BadRequest("the envelope of a schedule has no target_topic, deadline or idempotency_key")
    message = prepare(replace(item, id=_ANY_ID), topic, now_ms)
    record, mark = message.record, message.schedule
    assert mark is not None, "a message with an id has a schedule"
    if record.size_bytes > MESSAGE_BYTES_MAX:
        raise BadRequest(f"the message of a schedule has at most {MESSAGE_BYTES_MAX} bytes, not {record.size_bytes}")
    partition = envelope.partition_override if envelope is not None else None
    if partition is None and item.partition == ANY and not record.key:
        partition = ANY_PARTITION
    return ScheduledMessage(topic, record.value, record.key, record.head, mark, partition)


def _spec(body: ScheduleRequest, message: ScheduledMessage, known: Schedule | None, now_ms: int) -> ScheduleSpec:
    start_ms, end_ms = _time("start", body.start), _time("end", body.end)
    if body.every_ms and not body.cron and body.timezone != UTC:
        raise BadRequest("timezone is the zone of cron: an interval counts real time and knows no zones")
    timezone = body.timezone if body.cron else ""
    times = ScheduleTimes(body.cron, body.every_ms, timezone, 0, start_ms, end_ms, body.jitter_ms)
    if body.every_ms:
        kept = known.spec.times if known is not None else times
        is_kept = replace(kept, anchor_ms=0) == times and known is not None
        times = replace(times, anchor_ms=start_ms or (kept.anchor_ms if is_kept else now_ms))
    window_ms = body.catch_up_window_ms or (RECENT_MS if body.catch_up == "none" else WINDOW_MS_MAX)
    if not WINDOW_MS_MIN <= window_ms <= WINDOW_MS_MAX:
        raise BadRequest(f"catch_up_window_ms must be {WINDOW_MS_MIN} to {WINDOW_MS_MAX} (366 days)")
    return ScheduleSpec(message, times, body.catch_up, window_ms)


def _time(field: str, text: str) -> int:
    if not text:
        return 0
    try:
        return from_rfc3339(text)
    except ValueError as error:
        raise BadRequest(f"invalid {field}: {error}") from None


# --- descriptions -----------------------------------------------------------------------------------------------------


def _times(schedule: Schedule, now_ms: int) -> Iterator[int]:
    """The times to come: those of the plan, and those after it."""
    if schedule.paused:
        return
    yield from schedule.times
    if not schedule.is_final:
        last_ms = schedule.times[-1] if schedule.times else max(schedule.cursor_ms, now_ms)
        yield from times_after(schedule.spec.times, last_ms)


def _info(view: StateView, schedule: Schedule, times: list[int]) -> ScheduleInfo:
    spec, rhythm = schedule.spec, schedule.spec.times
    return ScheduleInfo(
        name=schedule.name,
        topic=spec.message.topic,
        state="ended" if schedule.has_ended else "paused" if schedule.paused else "active",
        message=_item(spec.message),
        catch_up=spec.catch_up,
        catch_up_window_ms=spec.window_ms,
        created_at=to_rfc3339(schedule.created.at_ms),
        firings=schedule.firings,
        missed=schedule.missed,
        next_times=[] if schedule.paused else [to_rfc3339(time_ms) for time_ms in times],
        cron=rhythm.cron,
        timezone=rhythm.timezone,
        every_ms=rhythm.every_ms,
        jitter_ms=rhythm.jitter_ms,
        start=to_rfc3339(rhythm.start_ms) if rhythm.start_ms else "",
        end=to_rfc3339(rhythm.end_ms) if rhythm.end_ms else "",
        last=_last(view, schedule),
        error=schedule.error,
        error_at=to_rfc3339(schedule.error_ms) if schedule.error_ms else "",
    )


def _last(view: StateView, schedule: Schedule) -> FiringInfo | None:
    last = schedule.last
    if last is None:
        return None
    log = view.state.logs.get(last.log_id)  # None: its topic was deleted
    name = schedule.name
    id = requested_id(name, last.request_id) if last.request_id else firing_id(name, last.time_ms)
    partition = log.partition if log is not None else -1
    return FiringInfo(id, to_rfc3339(last.time_ms), to_rfc3339(last.at_ms), partition, last.offset)


def _item(message: ScheduledMessage) -> ProduceItem:
    """The message as it was requested."""
    head = read_head(message.head)
    job = head.job or Job()
    value, value_base64 = _content(message.value)
    return ProduceItem(
        value=value,
        value_base64=value_base64,
        key=message.key.decode(),
        envelope=head.envelope,
        task=job.task,
        priority=job.priority,
        timeout_ms=job.timeout_ms,
        partition=ANY if message.partition == ANY_PARTITION else None,
    )


def _content(value: bytes) -> tuple[str | None, str | None]:
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(value).decode("ascii")

"""Schedules: create, change, pause, delete, plan, run by hand, fire.

A firing is a produce in the frame that records it: no crash can separate the two, and no time has both a message and a
second chance. What is decided for the times that have passed:

    times that passed longer ago than the window   missed
    catch_up "all"                                 each of the others fires, in order
    catch_up "last" or "none"                      the last of the others fires, the rest is missed

("none" has a window of a minute, unless it is set.) To know which time is the last one before now, the plan must reach
beyond now. If it ends before, the schedule is marked as overdue and waits for its next plan.

A message that is refused for good, because its topic is gone for example, is skipped, and the schedule shows the error.
One that is refused for now, because its partition is full, is tried again until it is outside the window.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import schedule_facts as f
from driftq.core.model.commands import Produce, ProduceKey
from driftq.core.model.replies import Done, Produced, Rejected, Reply
from driftq.core.model.schedules import ScheduleRan, ScheduleReady
from driftq.core.state.idempotency_keys import job_key
from driftq.core.transitions.lookups import bad_schedule_name, no_such_schedule, no_such_topic, over_quota
from driftq.wire.errors import Code
from driftq.wire.message import Job, encode_head, read_head
from driftq.wire.namespaces import own_name
from driftq.wire.partitions import partition_of
from driftq.wire.records import Record, pack_one
from driftq.wire.schedules import requested_id

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model import schedules as s
    from driftq.core.state.schedules import Schedule

FIRINGS_MAX = 50  # of one command, so that others are served in between
RETRY_MS_MIN, RETRY_MS_MAX = 1_000, 60_000  # between two tries of a message that is refused for now


def create(ctx: DecisionContext, command: s.CreateSchedule) -> Reply:
    name, spec = command.schedule, command.spec
    refused = bad_schedule_name(ctx, name)
    if refused is not None:
        return refused
    if spec.message.topic not in ctx.state.topics:
        return no_such_topic(spec.message.topic)
    schedules = ctx.state.schedules
    known = schedules.by_name.get(name)
    if known is None:
        if len(schedules) >= ctx.limits.schedules_max:
            message = f"there are {ctx.limits.schedules_max} schedules, the most allowed; delete some"
            return Rejected(Code.OVERLOADED, message, {"reason": "too_many_schedules"})
        refused = over_quota(ctx, name, "schedules")
        if refused is not None:
            return refused
        plan = _after(command.plan, ctx.now_ms)
        ctx.facts.append(f.ScheduleCreated(schedules.next_number, name, spec, plan, ctx.now_ms))
        return ScheduleReady(name, created=True)
    if spec == known.spec:
        return ScheduleReady(name)
    if not command.replace:
        return Rejected(Code.ALREADY_EXISTS, f"schedule {name} exists and is different; with replace it is changed")
    plan = _after(command.plan, max(ctx.now_ms, known.cursor_ms))
    ctx.facts.append(f.ScheduleChanged(known.number, spec, plan, ctx.now_ms))
    return ScheduleReady(name, changed=True)


def pause(ctx: DecisionContext, command: s.PauseSchedule) -> Reply:
    schedule = ctx.state.schedules.by_name.get(command.schedule)
    if schedule is None:
        return no_such_schedule(command.schedule)
    if schedule.paused == command.paused:
        return Done(changed=False)
    ctx.facts.append(f.SchedulePaused(schedule.number, command.paused, ctx.now_ms))
    return Done()


def delete(ctx: DecisionContext, command: s.DeleteSchedule) -> Reply:
    schedule = ctx.state.schedules.by_name.get(command.schedule)
    if schedule is None:
        return no_such_schedule(command.schedule)
    ctx.facts.append(f.ScheduleDeleted(schedule.number, ctx.now_ms))
    return Done()


def plan(ctx: DecisionContext, command: s.PlanSchedules) -> Reply:
    """Plans are made from an earlier state. Times that are done since are left out."""
    for item in command.plans:
        schedule = ctx.state.schedules.by_number.get(item.number)
        if schedule is None or schedule.revision != item.revision or not schedule.needs_plan():
            continue
        ctx.facts.append(f.SchedulePlanned(schedule.number, _after(item.plan, schedule.cursor_ms)))
    return Done(changed=bool(ctx.facts))


def _after(planned: f.SchedulePlan, cursor_ms: int) -> f.SchedulePlan:
    """A plan without what is done: whatever the planner says, no time fires twice, and times fire in order."""
    times = tuple(sorted({time_ms for time_ms in planned.times if time_ms > cursor_ms}))
    return planned if times == planned.times else replace(planned, times=times)


# --- firing ---


def fire(ctx: DecisionContext, command: s.FireSchedules) -> Reply:
    room = FIRINGS_MAX
    overdue: list[int] = []
    for schedule in ctx.state.schedules.due(ctx.now_ms):
        if room <= 0 or ctx.is_full():
            break
        passed = _passed(ctx, schedule)
        if _waits_for_plan(schedule, passed):
            overdue.append(schedule.number)
            room -= 1
        else:
            room -= _fire(ctx, schedule, passed, room)
    if overdue:
        ctx.facts.append(f.SchedulesOverdue(tuple(overdue)))
    return Done(changed=bool(ctx.facts))


def _passed(ctx: DecisionContext, schedule: Schedule) -> list[int]:
    return list(takewhile(lambda time_ms: schedule.due_ms(time_ms) <= ctx.now_ms, schedule.times))


def _waits_for_plan(schedule: Schedule, passed: list[int]) -> bool:
    return schedule.spec.catch_up != "all" and len(passed) == len(schedule.times) and not schedule.is_final


def _fire(ctx: DecisionContext, schedule: Schedule, passed: list[int], room: int) -> int:
    """Fire what its policy asks for. Returns how much of the room it took."""
    window_ms = schedule.spec.window_ms
    recent = [time_ms for time_ms in passed if ctx.now_ms - schedule.due_ms(time_ms) <= window_ms]
    if not recent:
        ctx.facts.append(f.ScheduleMissed(schedule.number, passed[-1], ctx.now_ms, len(passed)))
        return 1
    chosen = recent[:room] if schedule.spec.catch_up == "all" else recent[-1:]
    missed = passed.index(chosen[0])
    for count, time_ms in enumerate(chosen, 1):
        if not _fire_time(ctx, schedule, time_ms, missed) or ctx.is_full():
            return count
        missed = 0
    return len(chosen)


def _fire_time(ctx: DecisionContext, schedule: Schedule, time_ms: int, missed: int) -> bool:
    """Produce the message for a time, or record why not. False if the schedule can do no more for now."""
    savepoint = ctx.savepoint()
    reply = _produce(ctx, schedule, schedule.id_of(time_ms))
    if isinstance(reply, Produced):
        log_id = ctx.state.topics[reply.topic].log_ids[reply.partition]
        fact = f.ScheduleFired(schedule.number, time_ms, ctx.now_ms, log_id, reply.first_offset, missed)
        ctx.facts.append(fact)
        return True
    assert isinstance(reply, Rejected)
    ctx.roll_back(savepoint)
    error = _own_text(schedule, reply.message)
    if reply.code is Code.OVERLOADED:
        late_ms = ctx.now_ms - schedule.due_ms(time_ms)
        retry_at_ms = ctx.now_ms + min(max(late_ms, RETRY_MS_MIN), RETRY_MS_MAX)
        ctx.facts.append(f.ScheduleDelayed(schedule.number, ctx.now_ms, retry_at_ms, error))
        return False
    ctx.facts.append(f.ScheduleMissed(schedule.number, time_ms, ctx.now_ms, missed + 1, error))
    return True


def _own_text(schedule: Schedule, message: str) -> str:
    """An error as the tenant of the schedule may read it."""
    return message.replace(schedule.spec.message.topic, own_name(schedule.spec.message.topic))


def run(ctx: DecisionContext, command: s.RunSchedule) -> Reply:
    """Produce now. The times of the plan stay as they are, and a paused schedule can be run, too."""
    schedule = ctx.state.schedules.by_name.get(command.schedule)
    if schedule is None:
        return no_such_schedule(command.schedule)
    job = requested_id(own_name(schedule.name), command.request_id)
    reply = _produce(ctx, schedule, job)
    if not isinstance(reply, Produced):
        return reply
    log_id = ctx.state.topics[reply.topic].log_ids[reply.partition]
    if not reply.duplicate:
        ctx.facts.append(
            f.ScheduleFired(
                schedule.number, ctx.now_ms, ctx.now_ms, log_id, reply.first_offset, request_id=command.request_id
            )
        )
    return ScheduleRan(reply.topic, reply.partition, reply.first_offset, job, reply.duplicate)


def _produce(ctx: DecisionContext, schedule: Schedule, job_id: str) -> Reply:
    message = schedule.spec.message
    head = read_head(message.head)
    job = replace(head.job, id=job_id) if head.job is not None else Job(job_id)
    record = Record(message.value, message.key, encode_head(replace(head, job=job)))
    tenant = head.envelope.tenant_id if head.envelope is not None else ""
    partition, topic = message.partition, ctx.state.topics.get(message.topic)
    if partition == f.ANY_PARTITION:
        partition = partition_of(schedule.name.encode(), len(topic.log_ids)) if topic is not None else None
    return ctx.decide(
        Produce(
            topic=message.topic,
            batch=pack_one(record.value, record.key, record.head, scheduled=True),
            count=1,
            payload_bytes=record.size_bytes,
            key=record.key,
            partition=partition,
            marks=(message.mark,),
            job=ProduceKey(tenant, message.topic, job_key(job_id)),
        )
    )

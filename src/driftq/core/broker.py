"""The broker: a deterministic state machine. `decide` turns a command into facts and a reply, `apply` folds facts.

It does no I/O and knows no clock: records come from a reader, time and randomness are arguments. What drives it (the
engine, or the simulation) must do the following:

1. **Recover.** Apply the facts of the newest snapshot, then those of the journal after it, in order, with `apply_all`.
2. **Decide.** Call `decide(command, now_ms)` for one command at a time. It changes nothing.
3. **Append and apply.** Append the facts to the journal as one frame and call `apply_all` with them, before the next
   `decide`. If there is no room for the frame, drop the decision: nothing has changed yet.
4. **Sync, then reply.** Send a reply only after every frame up to its lsn is durable, also if the reply has no facts of
   its own: it may show what an earlier frame did.
5. **Publish the ends.** Move `LogReader.end` of each log when its records are durable. Claims and reads stop there.
6. **Keep time.** When `next_deadline_ms` has passed, call `due(now_ms)` and decide the command that it returns. Every
   ten seconds or so decide the `regular_sweeps`. A late call delays an expiry or a firing and breaks nothing.
   Schedules in `state.schedules.unplanned` need their next times: decide `PlanSchedules` soon.
7. **Snapshot.** Write `snapshot()` to disk now and then, between two commands; the journal before it can be trimmed.

    command --decide--> facts + reply --append--> journal --sync--> reply to the caller
                          |
                          +--apply--> state
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from driftq.core.context import Chance, DecisionContext, LogReader
from driftq.core.model import access as a
from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model import job_batches as j
from driftq.core.model import schedules as d
from driftq.core.model import subscriptions as w
from driftq.core.model import tenants as t
from driftq.core.model.queries import ListStreams, ReadPartition, ReadProducer, ReadStates, ReadStream, ReadSubscription
from driftq.core.model.replies import Decision, Rejected, Reply
from driftq.core.rules import (
    access_tokens,
    audit,
    effects,
    interventions,
    job_batches,
    queries,
    schedules,
    settle,
    stages,
    streams,
    subscriptions,
    tenants,
    topic_history,
    topics,
)
from driftq.core.rules.claim import claim
from driftq.core.rules.group_offsets import commit_offsets
from driftq.core.rules.outcome import outcome
from driftq.core.rules.produce import produce
from driftq.core.rules.queries import read_states
from driftq.core.rules.redrive import redrive
from driftq.core.rules.sweep import regular_sweeps, set_clock, sweep
from driftq.core.state.fold import Fold
from driftq.core.state.snapshot import SnapshotRestore, snapshot_facts
from driftq.core.state.state import State
from driftq.core.transitions.claim_selection import next_ms
from driftq.core.transitions.job_batches import end_members
from driftq.core.transitions.wakes import react

if TYPE_CHECKING:
    from driftq.core.model.commands import Subject
    from driftq.core.model.facts import Fact
    from driftq.core.model.limits import BrokerLimits

SWEEP_AGAIN_MS = 100  # what a sweep had no room for is swept again after this time
SUBJECTS_MAX = 200  # of one sweep

Rule = Callable[[DecisionContext, Any], Reply]


def create_job_batch(ctx: DecisionContext, command: j.CreateJobBatch) -> Reply:
    """The first batch may end, or start its first step, at once. If there are others, `decide` looks at all of them."""
    reply = job_batches.create(ctx, command)
    if not isinstance(reply, Rejected) and not ctx.state.job_batches.unended:
        end_members(ctx, command)
    return reply


RULES: dict[type[c.Command], Rule] = {
    c.Produce: produce,
    c.AdmittedProduce: produce,
    c.Claim: claim,
    c.Ack: settle.ack,
    c.AckThrough: settle.ack_through,
    c.Nack: settle.nack,
    c.ReleaseMessages: settle.release,
    c.RejectMessages: settle.reject,
    c.Extend: settle.extend,
    c.Keep: settle.keep_leases,
    c.Cancel: settle.cancel,
    v.Redrive: redrive,
    v.RetryMessages: interventions.retry,
    v.PurgeTopic: interventions.purge,
    v.MoveMessages: interventions.move,
    v.DeleteDeadLetters: interventions.delete_letters,
    c.AppendStream: streams.append,
    c.CreateStream: streams.create,
    c.DeleteStream: streams.delete,
    ReadStream: queries.read_stream,
    ReadPartition: queries.read_partition,
    ReadProducer: queries.read_producer,
    ReadStates: read_states,
    ListStreams: queries.list_streams,
    c.TrimStream: streams.trim,
    c.BeginEffect: effects.begin,
    c.CommitEffect: effects.commit,
    c.FailEffect: effects.fail,
    c.CommitOutcome: outcome,
    c.Stage: stages.stage,
    c.Publish: stages.publish,
    c.ForgetStages: stages.forget,
    c.CreateTopic: topics.create_topic,
    c.ConfigureTopic: topics.configure_topic,
    c.DeleteTopic: topics.delete_topic,
    c.TrimTopic: topics.trim_topic,
    c.CreateGroup: topics.create_group,
    c.SeekGroup: topics.seek_group,
    c.CommitOffsets: commit_offsets,
    c.PauseGroup: topics.pause_group,
    c.DeleteGroup: topics.delete_group,
    c.SetClock: set_clock,
    c.Sweep: sweep,
    w.MakeSigningKey: subscriptions.make_key,
    w.CreateSubscription: subscriptions.create,
    ReadSubscription: subscriptions.read,
    w.DeleteSubscription: subscriptions.delete,
    w.LinkStreams: subscriptions.link,
    w.UnlinkStream: subscriptions.unlink,
    w.ClaimWake: subscriptions.claim,
    w.AckWake: subscriptions.ack,
    w.FinishWake: subscriptions.finish,
    a.CreateAccessToken: access_tokens.create,
    a.NarrowAccessToken: access_tokens.narrow,
    a.RotateAccessToken: access_tokens.rotate,
    a.RevokeAccessToken: access_tokens.revoke,
    a.NoteAccessTokens: access_tokens.note_use,
    j.CreateJobBatch: create_job_batch,
    j.AddToJobBatch: job_batches.add,
    j.CancelJobBatch: job_batches.cancel,
    t.CreateTenant: tenants.create,
    t.ChangeTenant: tenants.change,
    t.DeleteTenant: tenants.delete,
    a.OpenAudit: audit.open_audit,
    a.NoteAudit: audit.note,
    d.CreateSchedule: schedules.create,
    d.PauseSchedule: schedules.pause,
    d.DeleteSchedule: schedules.delete,
    d.RunSchedule: schedules.run,
    d.PlanSchedules: schedules.plan,
    d.FireSchedules: schedules.fire,
}


class TimedTable(Protocol):
    """A table whose oldest entries a sweep drops."""

    def next_ms(self) -> int | None:
        """When the next sweep is due."""


class Broker:
    """The state machine: its state, the rules by type of command and the folds by type of fact."""

    def __init__(self, limits: BrokerLimits, reader: LogReader, chance: Chance) -> None:
        self.limits = limits
        self.reader = reader
        self.chance = chance
        self.state = State()
        self.folds = {**Fold(self.state).folds, **SnapshotRestore(self.state).folds}
        self._fired_last = False  # whether the last thing that was due was a firing
        self._tried_timer: tuple[int, int] | None = None  # the first schedule that was due then, and ...
        self._fire_again_ms = 0  # ... when to try it again if it still is the first
        state = self.state
        self._job_batches = state.job_batches
        self._tables: dict[str, TimedTable] = {  # by the kind of their subject
            "keys": state.keys, "outcomes": state.outcomes, "results": state.results, "stages": state.stages,
            "job_batches": state.job_batches,
        }  # fmt: skip

    def decide(self, command: c.Command, now_ms: int) -> Decision:
        """The facts of a command and the reply to it. A refusal has no facts."""
        ctx = DecisionContext(self.state, self.limits, self.reader, self.chance, now_ms, RULES)
        reply = RULES[type(command)](ctx, command)
        if isinstance(reply, Rejected):
            return Decision([], reply)
        if self._job_batches.unended:
            end_members(ctx, command)
        if ctx.facts and self.state.history_logs:
            refused = topic_history.record(ctx, command)
            if refused is not None:
                return Decision([], refused)
        if ctx.facts and self.state.subscriptions.by_number:
            react(ctx)
        if command.audit is not None:
            audit.record(ctx, command.audit)
        return Decision(ctx.facts, reply)

    def apply(self, fact: Fact) -> None:
        """Fold a fact. Never fails on a fact that `decide` returned."""
        self.folds[type(fact)](fact)

    def apply_all(self, facts: list[Fact]) -> None:
        """Fold the facts of a frame."""
        folds = self.folds
        for fact in facts:
            folds[type(fact)](fact)

    def snapshot(self) -> Iterator[Fact]:
        """Facts that rebuild this state."""
        return snapshot_facts(self.state)

    def next_deadline_ms(self) -> int | None:
        """When to call `due` next, at the latest."""
        times = (self.state.deadlines.next_ms(), self._next_firing_ms())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def due(self, now_ms: int) -> c.Sweep | d.FireSchedules | None:
        """What is necessary at this time: a sweep, or to fire schedules. They take turns, so that neither can hold up
        the other."""
        if self._fired_last:
            return self._due_sweep(now_ms) or self._due_firings(now_ms)
        return self._due_firings(now_ms) or self._due_sweep(now_ms)

    def _next_firing_ms(self) -> int | None:
        first = self.state.schedules.first_timer()
        if first is None:
            return None
        return max(first[0], self._fire_again_ms) if first == self._tried_timer else first[0]

    def _due_firings(self, now_ms: int) -> d.FireSchedules | None:
        """A command may be refused. Then the first schedule that is due is still the same, and is left for a while."""
        at_ms = self._next_firing_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        self._tried_timer, self._fire_again_ms = self.state.schedules.first_timer(), now_ms + SWEEP_AGAIN_MS
        self._fired_last = True
        return d.FireSchedules()

    def _due_sweep(self, now_ms: int) -> c.Sweep | None:
        """The sweep that is necessary at this time. A subject whose time has moved is scheduled again. A sweep is
        bounded and may be refused, so what is due is looked at again soon."""
        self._fired_last = False
        state = self.state
        due: list[tuple[int, Subject]] = []
        for subject in state.deadlines.take(now_ms, SUBJECTS_MAX):
            at_ms = self._time_of(subject)
            if at_ms is None:
                continue
            if at_ms > now_ms:
                state.deadlines.push(subject, at_ms)
                continue
            due.append((at_ms, subject))
            state.deadlines.push(subject, self._sweep_again_ms(subject, now_ms))
        due.sort()  # by their times: what is only a hint, and is lost by a restart, has no effect on the order
        return c.Sweep(tuple(subject for _, subject in due)) if due else None

    def regular_sweeps(self) -> Iterator[c.Sweep]:
        """A round of sweeps of what has no deadline: retention, idle groups, effect keys. Decide them one after the
        other, with other work between them."""
        return regular_sweeps(self.state, self.limits)

    def _sweep_again_ms(self, subject: Subject, now_ms: int) -> int | None:
        """A group without expired leases needs no sweep: its due messages wake claims once, then it waits for its next
        time."""
        kind, number, log_id = subject
        if kind == "group":
            progress = self.state.progress_of(number, log_id)
            lease_ms = progress.lease_timers.next_ms()
            if lease_ms is None or lease_ms > now_ms:
                return next_ms(progress, now_ms)
        return now_ms + SWEEP_AGAIN_MS

    def _time_of(self, subject: Subject) -> int | None:
        """When a subject is due according to the state; None if it is gone."""
        kind, number, log_id = subject
        state = self.state
        if kind == "group":
            known = number in state.groups and log_id in state.logs
            return state.progress_of(number, log_id).next_ms() if known else None
        if kind == "job_batch":
            return state.job_batches.sweep_ms(number)
        if kind == "wake":
            subscription = state.subscriptions.by_number.get(number)
            return subscription.until_ms or None if subscription is not None else None
        if kind == "stream":
            stream = state.streams.by_log.get(number)
            return stream.expires_ms() if stream is not None and not stream.soft_deleted else None
        return self._tables[kind].next_ms()

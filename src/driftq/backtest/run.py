"""A backtest: the recorded messages arrive once more, at a broker with another policy, and workers work on them.

The broker is the real one (`core.broker`), without a disk: every decision is durable at once. Which message a worker
gets, when a retry is due, when a lease ends and what becomes a dead letter is decided by the same rules as in
production. The backtest adds what the broker does not know, in the order of time:

    arrival   a recorded message is produced, at its time, after the policy's rules have routed it
    end       a worker ends an attempt as the record has it (`backtest.recorded_messages`), and settles it
    wake      a backoff or a lease may be over

After each of them, idle workers claim one message at a time. The same record, policy and seed give the same figures.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.backtest.figures import Figures, Tally
from driftq.backtest.recorded_messages import AttemptOutcome, FailureModel, RecordedMessage, attempt_of
from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Delivery, Rejected, Reply
from driftq.wire.message import Envelope, Head, Job, encode_head
from driftq.wire.records import Record, pack_one
from driftq.wire.router import RouteInput, Rules

if TYPE_CHECKING:
    from driftq.backtest.policy import Policy

TOPIC, GROUP = "backtest", "backtest"
HORIZON_MS = 24 * 3_600_000  # how long the workers continue after the last arrival
WITHOUT_LIMITS = BrokerLimits(
    partition_messages=1 << 40, partition_bytes=1 << 50, in_flight_max=1 << 20, lanes_per_log_max=100_000
)


class Options(NamedTuple):
    """How to read the record. `workers` is for policies that name none."""

    workers: int = 1
    failures: FailureModel = "attempts"
    seed: int = 1
    horizon_ms: int = HORIZON_MS


class _Work(NamedTuple):
    """An attempt under way. `label` is that of the worker."""

    label: str
    held: c.Held
    message: RecordedMessage
    attempt: AttemptOutcome


class _SeededChance:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tokens = count()

    def uniform(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return str(next(self._tokens))


class _Records:
    """The broker's reader: all that was appended is durable, and messages have no values."""

    broker: Broker

    def __init__(self) -> None:
        self.messages: dict[int, list[tuple[RecordedMessage, bytes]]] = {}  # by log: message and head

    def end(self, log_id: int) -> int:
        return self.broker.state.logs[log_id].end

    def record(self, log_id: int, offset: int) -> Record:
        message, head = self.messages[log_id][offset]
        return Record(b"", message.key, head)

    def head(self, log_id: int, offset: int) -> bytes:
        return self.messages[log_id][offset][1]

    def batch_end(self, log_id: int, offset: int) -> int:
        return offset + 1

    def time_of(self, log_id: int, offset: int) -> int:
        return self.messages[log_id][offset][0].produced_ms

    def offset_at(self, log_id: int, at_ms: int) -> int:
        return 0

    def spans(self, log_id: int) -> Sequence[tuple[int, int, int, int]]:
        return ()


AS_RECORDED = Options()


def backtest(messages: Sequence[RecordedMessage], policy: Policy, options: Options = AS_RECORDED) -> Figures:
    """The figures of these messages under a policy. Raises `BadPolicies`."""
    return Backtest(messages, policy, options).run()


class Backtest:
    """One run."""

    def __init__(self, messages: Sequence[RecordedMessage], policy: Policy, options: Options) -> None:
        self._messages = sorted(messages, key=lambda message: (message.produced_ms, message.partition, message.offset))
        self._policy = policy
        self._options = options
        self._rules: Rules | None = policy.router()
        self._tally = Tally()
        self._now_ms = 0
        self._events: list[tuple[int, int, RecordedMessage | _Work | None]] = []
        self._numbers = count()
        self._wakes: set[int] = set()
        self._started_ms: dict[tuple[int, int], int] = {}  # by log and offset: when the first attempt began
        workers = policy.workers or options.workers
        self._idle = dict(workers) if isinstance(workers, dict) else {"": workers}
        self._records = _Records()
        self._log_ids: tuple[int, ...] = ()
        self._broker = self._records.broker = Broker(_limits(policy), self._records, _SeededChance(options.seed))

    def run(self) -> Figures:
        policy = self._policy
        config = f.TopicConfig(
            lease_ms=policy.lease_ms, in_flight_max=policy.in_flight_max, retry=policy.retry, fair=policy.fair
        )
        partitions = max((message.partition for message in self._messages), default=0) + 1
        self._execute(c.CreateTopic(TOPIC, partitions, config))
        self._execute(c.CreateGroup(TOPIC, GROUP))
        self._log_ids = self._broker.state.topics[TOPIC].log_ids
        self._records.messages = {log_id: [] for log_id in self._log_ids}
        for message in self._messages:
            self._schedule(message.produced_ms, message)
        last_ms = self._messages[-1].produced_ms + self._options.horizon_ms if self._messages else 0
        while self._events and self._events[0][0] <= last_ms:
            self._now_ms, _, event = heapq.heappop(self._events)
            self._happen(event)
            if not self._events or self._events[0][0] > self._now_ms:
                self._claim()
        return self._tally.figures(policy.name, len(self._messages))

    def _schedule(self, at_ms: int, event: RecordedMessage | _Work | None) -> None:
        heapq.heappush(self._events, (at_ms, next(self._numbers), event))

    def _wake_at(self, at_ms: int | None) -> None:
        if at_ms is not None and at_ms not in self._wakes:
            at_ms = max(at_ms, self._now_ms + 1)
            self._wakes.add(at_ms)
            self._schedule(at_ms, None)

    def _execute(self, command: c.Command) -> Reply:
        facts, reply = self._broker.decide(command, self._now_ms)
        assert not isinstance(reply, Rejected), f"{command}: {reply.message}"
        self._broker.apply_all(facts)
        for fact in facts:
            if isinstance(fact, f.Settled) and fact.how == f.DEAD:
                self._tally.dead += sum(end - first for first, end in fact.ranges)
        return reply

    def _happen(self, event: RecordedMessage | _Work | None) -> None:
        if isinstance(event, RecordedMessage):
            self._arrive(event)
        elif event is not None:
            self._settle(event)
        else:
            self._wakes.discard(self._now_ms)
            while (sweep := self._broker.due(self._now_ms)) is not None:
                self._execute(sweep)

    def _arrive(self, message: RecordedMessage) -> None:
        partition, label = message.partition, message.label
        if self._rules is not None:
            envelope = Envelope(tenant_id=message.tenant_id, run_id=message.run_id, labels=message.labels)
            key = message.key.decode("utf-8", "replace")
            decision = self._rules.decide(RouteInput(TOPIC, message.value, key, envelope, message.task))
            label = decision.label if decision is not None else ""
            if decision is not None and decision.partition_override is not None:
                partition = min(decision.partition_override, len(self._log_ids) - 1)
        job = Job(task=message.task, priority=message.priority) if message.priority is not None else None
        head = encode_head(Head(job=job))
        schedule = f.RecordSchedule(
            0, message.priority or 0, message.task, label, tenant=message.tenant_id, tracked=job is not None
        )
        marks = () if schedule == f.RecordSchedule(0) else (schedule,)
        batch = pack_one(b"", message.key, head, scheduled=bool(marks))
        self._records.messages[self._log_ids[partition]].append((message, head))
        self._execute(c.Produce(TOPIC, batch, 1, len(message.key) + len(head), partition=partition, marks=marks))

    def _claim(self) -> None:
        """Idle workers claim until nothing is left for them, and wake when something may be."""
        for label in self._idle:
            while self._idle[label]:
                reply = self._execute(c.Claim(TOPIC, GROUP, label or "any", 1, label=label or None))
                assert isinstance(reply, Claimed)
                if not reply.deliveries:
                    self._wake_at(reply.next_ms)
                    break
                self._begin(label, reply.deliveries[0], reply.token, reply.until_ms)
        self._wake_at(self._broker.next_deadline_ms())

    def _begin(self, label: str, delivery: Delivery, token: str, until_ms: int) -> None:
        message, _ = self._records.messages[delivery.log_id][delivery.first]
        place = delivery.log_id, delivery.first
        if place not in self._started_ms:
            self._started_ms[place] = self._now_ms
            self._tally.delivered(message.tenant_id, self._now_ms - message.produced_ms)
        elapsed_ms = self._now_ms - self._started_ms[place]
        attempt = attempt_of(message, delivery.attempts, elapsed_ms, self._options.failures)
        held = c.Held(delivery.partition, delivery.first, delivery.end, token)
        end_ms = self._now_ms + attempt.duration_ms
        if attempt.ending == "expired":
            end_ms = until_ms  # the worker is lost as long as its lease runs
        elif end_ms >= until_ms:
            lease_ms = min(attempt.duration_ms + 1_000, self._broker.limits.lease_ms_max)
            self._execute(c.Extend(TOPIC, GROUP, label or "any", (held,), lease_ms))
        self._idle[label] -= 1
        self._tally.worked(end_ms - self._now_ms)
        self._tally.unseen += not attempt.seen
        self._schedule(end_ms, _Work(label, held, message, attempt))

    def _settle(self, work: _Work) -> None:
        self._idle[work.label] += 1
        owner = work.label or "any"
        if work.attempt.ending == "acked":
            self._execute(c.Ack(TOPIC, GROUP, owner, (work.held,)))
            self._tally.acked(self._now_ms - work.message.produced_ms)
        elif work.attempt.ending == "rejected":
            self._execute(c.RejectMessages(TOPIC, GROUP, owner, (work.held,), "as recorded"))
        elif work.attempt.ending != "expired":
            self._execute(c.Nack(TOPIC, GROUP, owner, (work.held,), "as recorded"))


def _limits(policy: Policy) -> BrokerLimits:
    limits = WITHOUT_LIMITS
    if policy.retry_ratio is not None:
        limits = replace(limits, retry_ratio=policy.retry_ratio)
    if policy.ageing_ms is not None:
        limits = replace(limits, ageing_ms=policy.ageing_ms)
    return limits

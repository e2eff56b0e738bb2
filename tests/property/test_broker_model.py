"""The broker against a model that keeps one object for each message. Hypothesis draws the actions.

After every step: each offset is in exactly one state, the same as in the model; counts agree; the in-flight limit
holds; a snapshot rebuilds the state; and `decide` has changed nothing.
"""

from __future__ import annotations

import collections

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.frames import encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Decision, OutcomeReply, Produced, Rejected, Settlement
from driftq.core.state.progress import MessageState
from driftq.wire.errors import Code
from driftq.wire.message import Envelope, Head, Job, RetryPolicy
from tests.property.model import FRESH, HELD, RESTING, SETTLED, Message, Model
from tests.support.broker_fixture import BrokerFixture, produce

TOPICS = ("t", "dlq.t")
GROUPS = ("g", "h")
OWNERS = ("ann", "bob")
IN_FLIGHT_MAX = 6
PARTITIONS = 2
PLACES = {
    FRESH: MessageState.FRESH,
    HELD: MessageState.HELD,
    RESTING: MessageState.RESTING,
    SETTLED: MessageState.SETTLED,
}
LIMITS = BrokerLimits(
    in_flight_max=IN_FLIGHT_MAX, sweep_max=4, partition_messages=60, ageing_ms=4_000, lease_ms_min=1,
    retry=RetryPolicy(max_attempts=0, backoff_ms=200, max_backoff_ms=1_000, jitter="full"),
)  # fmt: skip

done: collections.Counter[str] = collections.Counter()

short_ms = st.sampled_from([0, 1, 50, 300, 1_500, 6_000])
POLICY = Head(envelope=Envelope(retry_policy=RetryPolicy(max_attempts=2, backoff_ms=100, max_backoff_ms=150)))
heads = st.sampled_from(
    [
        None,
        None,
        POLICY,
        Head(job=Job(task="mail")),
    ]
)


class BrokerMachine(RuleBasedStateMachine):
    """Commands against one topic of two partitions, its dead letters, and two groups of each."""

    def __init__(self) -> None:
        super().__init__()
        self.fixture = BrokerFixture(LIMITS, held_back=True)
        self.model = Model()
        self.floors: dict[tuple[int, int], int] = {}
        self.keys: dict[str, tuple[int, Produced]] = {}
        self.seqs: dict[int, int] = {}
        self.outcomes: list[tuple[int, c.CommitOutcome, OutcomeReply]] = []
        self.eager = False  # whether every append is durable at once

    # --- every command ---

    def take(self, command: c.Command) -> Decision:
        before = encode(list(self.fixture.broker.snapshot()))
        facts, reply = self.fixture.decide(command)
        assert encode(list(self.fixture.broker.snapshot())) == before, "decide changed something"
        if facts:
            frame = encode(facts)
            self.fixture.fold(frame)
            self.model.fold(facts, self.fixture.now_ms)
            for fact in facts:
                if isinstance(fact, f.GroupSought):
                    self.floors[fact.group_id, fact.log_id] = 0
        if self.eager:
            self.commit()
        done[type(command).__name__] += 1
        if isinstance(reply, Rejected):
            done["refused"] += 1
        return Decision(facts, reply)

    @initialize(eager=st.booleans(), values=st.integers(0, 12), history=st.booleans())
    def begin(self, eager, values, history) -> None:
        self.take(c.CreateTopic("t", PARTITIONS, f.TopicConfig(history=history)))
        for number in range(values):
            self.take(produce(f"v{number}", partition=number % PARTITIONS, head=POLICY if number % 3 == 0 else None))
        self.take(c.CreateGroup("t", "g"))
        self.commit()
        self.eager = eager

    def _any(self, *states: str) -> bool:
        return any(message.state in states for messages in self.model.messages.values() for message in messages)

    # --- producing ---

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        count=st.integers(1, 4),
        head=heads,
        priority=st.sampled_from([0, 0, 0, 3, 9]),
        label=st.sampled_from(["", "", "x"]),
        delay_ms=st.sampled_from([0, 0, 0, 10, 2_000]),
        deadline_in_ms=st.sampled_from([0, 0, 0, 20, 3_000]),
        tenant=st.sampled_from(["", "", "acme", "bolt"]),
    )
    def produce(self, partition, count, head, priority, label, delay_ms, deadline_in_ms, tenant) -> None:
        marks: tuple[f.RecordSchedule, ...] = ()
        now_ms = self.fixture.now_ms
        if priority or label or delay_ms or deadline_in_ms or tenant:
            due_ms = now_ms + delay_ms if delay_ms else 0
            over_ms = now_ms + deadline_in_ms if deadline_in_ms else 0
            marks = tuple(
                f.RecordSchedule(index, priority, "", label, due_ms, over_ms, tenant) for index in range(count)
            )
        self._produced(produce(*["v"] * count, partition=partition, head=head, marks=marks))

    def _produced(self, command: c.Produce) -> None:
        assert command.partition is not None
        log_id = self.model.log_ids["t"][command.partition]
        log, start = self.model.logs[log_id], self.model.starts[log_id]
        end = len(log)
        waits = [
            end - self._model_floor(group_id, log_id)
            for group_id in self.model.groups
            if (group_id, log_id) in self.model.messages
        ]
        _, reply = self.take(command)
        if waits and max(waits) + command.count > LIMITS.partition_messages:
            assert isinstance(reply, Rejected)
            assert reply.code is Code.OVERLOADED
            return
        assert isinstance(reply, Produced), reply
        assert reply.first_offset == end
        assert start <= end

    def _model_floor(self, group_id: int, log_id: int) -> int:
        messages = self.model.messages[group_id, log_id]
        return next((offset for offset, message in enumerate(messages) if message.state != SETTLED), len(messages))

    @rule(
        key=st.sampled_from(["k1", "k2", "k3"]),
        partition=st.integers(0, PARTITIONS - 1),
        ttl_ms=st.sampled_from([0, 500]),
    )
    def produce_once(self, key, partition, ttl_ms) -> None:
        first = self.keys.get(key)
        command = produce("once", partition=partition, once=c.ProduceKey("", "t", key, ttl_ms=ttl_ms))
        facts, reply = self.take(command)
        if first is not None and first[0] > self.fixture.now_ms:
            assert not facts
            assert isinstance(reply, Produced)
            assert reply.duplicate
            assert (reply.partition, reply.first_offset) == (first[1].partition, first[1].first_offset)
        elif isinstance(reply, Produced):
            assert not reply.duplicate
            self.keys[key] = self.fixture.now_ms + (ttl_ms or LIMITS.key_ttl_ms), reply

    @rule(seq_step=st.integers(-2, 2), partition=st.integers(0, PARTITIONS - 1))
    def produce_in_sequence(self, seq_step, partition) -> None:
        last = self.seqs.get(partition, -1)
        seq = max(0, last + seq_step)
        by = f.ProducerSequence("p", 0, seq, digest=seq)
        _, reply = self.take(produce("s", partition=partition, producer=by))
        if seq > last + 1:
            assert isinstance(reply, Rejected)
            assert reply.code is Code.SEQUENCE_GAP
        elif isinstance(reply, Produced):
            assert reply.duplicate == (seq <= last)
            self.seqs[partition] = max(last, seq)

    # --- consuming ---

    @rule(
        topic=st.sampled_from(["t", "t", "t", "dlq.t"]),
        group=st.sampled_from(GROUPS),
        owner=st.sampled_from(OWNERS),
        count=st.integers(1, 8),
        lease_ms=st.sampled_from([1, 100, 2_000]),
        label=st.sampled_from([None, None, None, "x"]),
        start=st.sampled_from(["earliest", "earliest", "latest"]),
    )
    def claim_with_options(self, **choice) -> None:
        self.claim(**choice)

    def claim(self, topic, group, owner, count, lease_ms, label, start, acks=()) -> Claimed:
        facts, reply = self.take(c.Claim(topic, group, owner, count, lease_ms, start, label=label, acks=acks))
        assert isinstance(reply, Claimed)
        group_id = self.model.group_id(topic, group)
        assert reply.group_id == group_id
        given = 0
        for delivery in reply.deliveries:
            given += delivery.end - delivery.first
            for offset in range(delivery.first, delivery.end):
                message = self.model.messages[group_id, delivery.log_id][offset]
                assert message.state == HELD
                assert message.token == reply.token
                assert message.until_ms == reply.until_ms
                assert delivery.attempts == message.attempts
                assert delivery.version > message.version, "lease versions only rise"
                message.version = delivery.version
                assert delivery.error == message.error
        assert given <= count
        if given < count and group_id not in self.model.paused:
            self._check_nothing_left(group_id, label, reply, facts)
        return reply

    def _check_nothing_left(self, group_id: int, label: str | None, reply: Claimed, facts) -> None:
        """A claim that returns fewer messages than asked for has left nothing that it could deliver, or it asks for an
        immediate repeat, because a frame holds a limited number of dead letters."""
        now_ms = self.fixture.now_ms
        over = sum(isinstance(fact, f.Failed) for fact in facts)
        if sum(isinstance(fact, f.Settled) and fact.how != f.ACKED for fact in facts) >= LIMITS.sweep_max:
            assert reply.deliveries or reply.next_ms == now_ms
            return
        for _, log_id, offset, message in self.model.of(group_id):
            shared = self.model.logs[log_id][offset]
            if label not in (None, shared.lane[2]) or offset >= self.model.durable.get(log_id, 0):
                continue
            if self.model.in_flight(group_id, log_id) >= IN_FLIGHT_MAX or over:
                continue
            assert message.state != FRESH, f"fresh {offset} of log {log_id} was left"
            if message.state == RESTING:
                assert message.retry_at_ms > now_ms, f"due {offset} of log {log_id} was left"

    @rule(owner=st.sampled_from(OWNERS), count=st.integers(1, 8), lease_ms=st.sampled_from([100, 2_000]))
    def claim_plainly(self, owner, count, lease_ms) -> None:
        self.commit()
        self.claim("t", "g", owner, count, lease_ms, None, "earliest")

    @rule(data=st.data(), count=st.integers(1, 8), lease_ms=st.sampled_from([1, 100, 2_000]))
    def claim_with_acks(self, data, count, lease_ms) -> None:
        """The acks have the same results as in an ack call, and their messages are not delivered again."""
        chosen = self._pick(data, (HELD, RESTING, SETTLED))
        if chosen is None:
            return
        topic, group, _, picked = chosen
        owner, held = self._named(data, picked)
        expected = {
            run.first: self._expected(c.Ack, run, owner, message)
            for run, (_, _, message) in zip(held, picked, strict=True)
        }
        reply = self.claim(topic, group, owner, count, lease_ms, None, "earliest", held)
        refused = {refusal.offset: refusal.code for refusal in reply.refused}
        assert refused == {offset: code for offset, code in expected.items() if code != "fine"}
        for _, offset, message in picked:
            if expected[offset] == "fine":
                assert message.state == SETTLED, f"{offset} was acked and is {message.state}"

    # --- settling ---

    def _pick(self, data, states=(HELD,), count_max=3) -> tuple[str, str, int, list[tuple[int, int, Message]]] | None:
        """Some messages of one group in one partition, of those that are held (or in another state)."""
        if HELD in states and not self._any(HELD):
            self.claim_plainly("ann", 5, 2_000)
        candidates = collections.defaultdict(list)
        for group_id, (topic, group) in self.model.groups.items():
            for partition, _, offset, message in self.model.of(group_id):
                if message.state in states:
                    candidates[topic, group, partition].append((partition, offset, message))
        if not candidates:
            return None
        topic, group, partition = data.draw(st.sampled_from(sorted(candidates)))
        messages = candidates[topic, group, partition]
        picked = data.draw(st.lists(st.sampled_from(range(len(messages))), min_size=1, max_size=count_max, unique=True))
        return topic, group, partition, [messages[index] for index in picked]

    def _named(self, data, picked) -> tuple[str, tuple[c.Held, ...]]:
        """Name messages by token or owner, sometimes by a wrong one."""
        by_token = data.draw(st.booleans())
        wrong = data.draw(st.integers(0, 7)) == 0
        owner = "eve" if wrong else picked[0][2].owner
        return owner, tuple(
            c.Held(partition, offset, offset + 1, ("wrong" if wrong else message.token) if by_token else "")
            for partition, offset, message in picked
        )

    def _expected(self, kind: type[c.Command], held: c.Held, owner: str, message: Message) -> str:
        """`kind` is the command; the acks of an outcome are stricter."""
        if message.state == SETTLED:
            return self._expected_of_settled(kind, held, owner, message)
        if not message.token:
            return Code.NOT_OWNER if message.state == RESTING else Code.NOT_DELIVERED
        if message.state == FRESH:
            return Code.NOT_DELIVERED
        holds = held.token == message.token if held.token else owner == message.owner
        if kind is c.CommitOutcome and message.state == RESTING and not message.lost:
            return Code.NOT_OWNER
        return "fine" if holds else Code.NOT_OWNER

    def _expected_of_settled(self, kind: type[c.Command], held: c.Held, owner: str, message: Message) -> str:
        if kind in (c.ReleaseMessages, c.Extend):
            return "fine"
        dead = message.how == f.DEAD
        if kind is c.Ack:
            return Code.NOT_OWNER if dead else "fine"
        if kind is c.CommitOutcome or not dead or not message.token:
            return Code.NOT_OWNER
        return "fine" if (held.token == message.token if held.token else owner == message.owner) else Code.NOT_OWNER

    def _settle(self, data, kind, states=(HELD, RESTING, SETTLED), **more) -> None:
        chosen = self._pick(data, states)
        if chosen is None:
            return
        topic, group, _, picked = chosen
        owner, held = self._named(data, picked)
        expected = {
            run.first: self._expected(kind, run, owner, message)
            for run, (_, _, message) in zip(held, picked, strict=True)
        }
        explains = [
            message
            for _, offset, message in picked
            if kind is c.Nack and message.state == RESTING and message.lost and expected[offset] == "fine"
        ]
        if kind is c.Extend:
            lost = {offset: Code.NOT_OWNER for _, offset, message in picked if message.state in (RESTING, SETTLED)}
            expected |= lost
        before = {offset: (message.state, message.attempts) for _, offset, message in picked}
        _, reply = self.take(kind(topic, group, owner, held, **more))
        assert isinstance(reply, Settlement), reply
        if not any(refusal.code is Code.OVERLOADED for refusal in reply.refused):
            assert all(message.error == (more["reason"] or "nack") for message in explains), "a reason was dropped"
        refused = {refusal.offset: refusal.code for refusal in reply.refused if refusal.code is not Code.OVERLOADED}
        assert refused == {offset: code for offset, code in expected.items() if code != "fine"}
        for _, offset, message in picked:
            if offset in refused:
                assert (message.state, message.attempts) == before[offset], "a refusal changes nothing"

    @rule(data=st.data())
    def ack(self, data) -> None:
        self._settle(data, c.Ack)

    @rule(data=st.data(), reason=st.sampled_from(["", "boom"]), delay_ms=st.sampled_from([None, None, 0, 500]))
    def nack(self, data, reason, delay_ms) -> None:
        self._settle(data, c.Nack, reason=reason, delay_ms=delay_ms)

    @rule(data=st.data())
    def reject(self, data) -> None:
        self._settle(data, c.RejectMessages, reason="no")

    @rule(data=st.data(), sent=st.booleans(), delay_ms=st.sampled_from([0, 0, 400]))
    def release(self, data, sent, delay_ms) -> None:
        self._settle(data, c.ReleaseMessages, (HELD, HELD, RESTING), sent=sent, delay_ms=delay_ms)

    @rule(data=st.data())
    def extend(self, data) -> None:
        self._settle(data, c.Extend, lease_ms=1_000)

    @rule(group=st.sampled_from(GROUPS), partition=st.integers(0, PARTITIONS - 1), beyond=st.integers(0, 5))
    def ack_what_was_never_delivered(self, group, partition, beyond) -> None:
        group_id = self.model.group_id("t", group)
        if group_id is None:
            return
        log_id = self.model.log_ids["t"][partition]
        offset = len(self.model.logs[log_id]) + beyond
        facts, reply = self.take(c.Ack("t", group, "ann", (c.Held(partition, offset, offset + 1),)))
        assert not facts
        assert isinstance(reply, Settlement)
        assert [refusal.code for refusal in reply.refused] == [Code.NOT_DELIVERED]

    @rule(
        group=st.sampled_from(GROUPS),
        partition=st.integers(0, PARTITIONS - 1),
        owner=st.sampled_from(OWNERS),
        data=st.data(),
    )
    def ack_through(self, group, partition, owner, data) -> None:
        group_id = self.model.group_id("t", group)
        if group_id is None:
            return
        messages = self.model.messages[group_id, self.model.log_ids["t"][partition]]
        if not messages:
            return
        offset = data.draw(st.integers(0, len(messages) - 1))
        fine = all(m.state == SETTLED or (m.state == HELD and m.owner == owner) for m in messages[: offset + 1])
        _, reply = self.take(c.AckThrough("t", group, owner, partition, offset))
        assert isinstance(reply, Settlement) == fine, reply

    @rule(data=st.data())
    def finish_with_an_outcome(self, data) -> None:
        chosen = self._pick(data, (HELD, HELD, RESTING, SETTLED))
        if chosen is None:
            return
        topic, group, _partition, picked = chosen
        owner, held = self._named(data, picked)
        expected = {
            self._expected(c.CommitOutcome, run, owner, message)
            for run, (_, _, message) in zip(held, picked, strict=True)
        }
        before = [message.state for _, _, message in picked]
        ends = {log_id: len(log) for log_id, log in self.model.logs.items()}
        produces = (produce("next"), produce("more", partition=1))
        number = str(len(self.outcomes)).encode()
        command = c.CommitOutcome(acks=(c.Ack(topic, group, owner, held),), produces=produces, digest=number)
        _, reply = self.take(command)
        if isinstance(reply, Rejected):
            assert ends == {log_id: len(log) for log_id, log in self.model.logs.items()}, "all or nothing"
            assert [message.state for _, _, message in picked] == before
            assert expected != {"fine"} or reply.code is Code.OVERLOADED
        else:
            assert expected == {"fine"}
            assert all(message.state == SETTLED for _, _, message in picked)
            if all(run.token for run in held):
                self.outcomes.append((self.fixture.now_ms + LIMITS.key_ttl_ms, command, reply))

    @rule(data=st.data(), same=st.booleans())
    def repeat_an_outcome(self, data, same) -> None:
        if not self.outcomes:
            return
        until_ms, command, first = data.draw(st.sampled_from(self.outcomes))
        if not same:
            command = msgspec.structs.replace(command, digest=b"other")
        facts, reply = self.take(command)
        assert not facts
        if same and until_ms > self.fixture.now_ms:
            assert reply == msgspec.structs.replace(first, duplicate=True)
        else:
            assert isinstance(reply, Rejected)

    @rule(data=st.data())
    def cancel(self, data) -> None:
        chosen = self._pick(data, (FRESH, HELD, RESTING), count_max=1)
        if chosen is None:
            return
        topic, _group, partition, [(_, offset, message)] = chosen
        was_pending = message.state in (HELD, RESTING)
        _, reply = self.take(c.Cancel(topic, partition, offset))
        # A fresh message that its group filters out is finished if every other group has settled it.
        assert message.state == SETTLED or not (was_pending or reply.changed)

    # --- groups, retention, time, durability ---

    @rule(group=st.sampled_from(GROUPS), data=st.data())
    def seek(self, group, data) -> None:
        if self.model.group_id("t", group) is None or data.draw(st.integers(0, 2)):
            return
        partition = data.draw(st.integers(0, PARTITIONS - 1))
        log_id = self.model.log_ids["t"][partition]
        offset = data.draw(st.integers(self.model.starts[log_id], len(self.model.logs[log_id])))
        self.take(c.SeekGroup("t", group, offset, partition))

    @rule(group=st.sampled_from(GROUPS), paused=st.booleans())
    def pause(self, group, paused) -> None:
        self.take(c.PauseGroup("t", group, paused))

    @rule(group=st.sampled_from(GROUPS), really=st.integers(0, 3))
    def delete_group(self, group, really) -> None:
        if not really:
            group_id = self.model.group_id("t", group)
            self.take(c.DeleteGroup("t", group))
            self.floors = {key: floor for key, floor in self.floors.items() if key[0] != group_id}

    @rule(partition=st.integers(0, PARTITIONS - 1), data=st.data())
    def trim(self, partition, data) -> None:
        log_id = self.model.log_ids["t"][partition]
        durable = self.model.durable.get(log_id, 0)
        start = self.model.starts[log_id]
        if durable > start and not data.draw(st.integers(0, 3)):
            self.take(c.TrimTopic("t", partition, data.draw(st.integers(start, durable))))

    @rule(milliseconds=short_ms, sweep=st.booleans())
    def time_passes(self, milliseconds, sweep) -> None:
        self.fixture.clock.move(milliseconds)
        for _ in range(200):
            command = self.fixture.broker.due(self.fixture.now_ms) if sweep else None
            if command is None:
                return
            self.take(command)
        raise AssertionError("the sweep does not end")

    @rule()
    def everything_is_swept(self) -> None:
        """What a sweep leaves is swept soon after: half a second later no lease is overdue."""
        cut_ms = self.fixture.now_ms
        for _ in range(50):
            self.fixture.clock.move(10)
            for _ in range(200):
                command = self.fixture.broker.due(self.fixture.now_ms)
                if command is None:
                    break
                self.take(command)
        for group_id in self.model.groups:
            for _, log_id, offset, message in self.model.of(group_id):
                assert message.state != HELD or message.until_ms > cut_ms, (
                    f"lease on {offset} of {log_id} never expired"
                )

    @rule()
    def commit(self) -> None:
        self.fixture.commit()
        self.model.durable = {log_id: len(log) for log_id, log in self.model.logs.items()}

    @rule(how=st.sampled_from(["restarted", "replayed"]))
    def restart(self, how) -> None:
        """Continue with a broker that was folded from the snapshot, or from the journal."""
        self.commit()
        self.fixture.broker = getattr(self.fixture, how)()

    # --- invariants ---

    @invariant()
    def every_offset_is_in_exactly_one_place(self) -> None:
        state = self.fixture.broker.state
        for group_id in self.model.groups:
            counts: dict[int, collections.Counter[str]] = collections.defaultdict(collections.Counter)
            for _, log_id, offset, message in self.model.of(group_id):
                progress = state.progress_of(group_id, log_id)
                place, _, entry = progress.state_of(offset)
                assert place is PLACES[message.state], f"log {log_id} offset {offset}: {place}, not {message.state}"
                if message.state == RESTING:
                    assert entry is not None
                    assert entry.retry_at_ms == message.retry_at_ms
                if message.state == FRESH:
                    assert offset in progress.ready or not self._is_below_cursor(log_id, offset, progress)
                if entry is not None:
                    assert entry.attempts == message.attempts
                counts[log_id][message.state] += 1
            for log_id, count in counts.items():
                progress = state.progress_of(group_id, log_id)
                assert progress.in_flight == count[HELD] <= IN_FLIGHT_MAX
                assert progress.resting == count[RESTING]
                assert sum(count.values()) == len(self.model.logs[log_id]) - self.model.starts[log_id]

    def _is_below_cursor(self, log_id: int, offset: int, progress) -> bool:
        """Whether the cursor of its lane has passed an offset."""
        log = self.fixture.broker.state.logs[log_id]
        key = log.lanes.key_of(offset)
        return offset < (progress.cursor if key is None else progress.lane_cursors.get(key, 0))

    @invariant()
    def floors_only_rise(self) -> None:
        state = self.fixture.broker.state
        for group_id, log_id in self.model.messages:
            floor = state.progress_of(group_id, log_id).floor
            assert floor >= self.floors.get((group_id, log_id), 0)
            self.floors[group_id, log_id] = floor
            assert state.logs[log_id].low_floor <= state.activity.lowest_floor(state.logs[log_id])

    @invariant()
    def a_snapshot_rebuilds_the_state(self) -> None:
        before = encode(list(self.fixture.broker.snapshot()))
        assert encode(list(self.fixture.restarted().snapshot())) == before

    def teardown(self) -> None:
        done["examples"] += 1
        done["frames"] += len(self.fixture.journal)
        replayed = encode(list(self.fixture.replayed().snapshot()))
        assert replayed == encode(list(self.fixture.broker.snapshot())), "the journal folds to another state"


@pytest.mark.timeout(600)
def test_the_broker_agrees_with_a_model_of_single_messages():
    run_state_machine_as_test(BrokerMachine)
    examples, frames = done.pop("examples"), done.pop("frames")
    refused = done.pop("refused")
    print(f"\n{examples} examples, {sum(done.values())} commands, {refused} refused, {frames} frames: {dict(done)}")

"""Sweeps are bounded: thousands of topics, groups, streams and keys take many commands, each of them short."""

from __future__ import annotations

import time

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.rules.sweep import EFFECTS_CHECKED, PENDING_TRIMMED, SWEEP_SUBJECTS
from tests.support.broker_fixture import BrokerFixture, packed

COMMAND_S = 0.02


def cpu_s(fixture: BrokerFixture, command: c.Command) -> float:
    start_s = time.thread_time()
    fixture.take(command)
    return time.thread_time() - start_s


def test_retention_and_idle_groups_of_many_topics_are_swept_a_few_at_a_time():
    fixture = BrokerFixture(BrokerLimits(groups_idle_ms=500))
    for number in range(1_000):
        name = f"t{number}"
        fixture.topic(name, config=f.TopicConfig(retention_ms=60_000))
        fixture.produce("x", topic=name)
        fixture.do(c.CreateGroup(name, "g", "earliest"))
    fixture.advance(200_000)
    facts: list[f.Fact] = []
    for command in fixture.broker.regular_sweeps():
        assert len(command.subjects) <= SWEEP_SUBJECTS + 1
        start_s = time.thread_time()
        facts += fixture.take(command).facts
        assert time.thread_time() - start_s < COMMAND_S
    assert sum(isinstance(fact, f.GroupIdled) for fact in facts) == 1_000
    assert sum(isinstance(fact, f.Trimmed) for fact in facts) == 1_000


def test_what_is_deleted_during_a_round_is_passed_over():
    fixture = BrokerFixture(BrokerLimits(groups_idle_ms=500))
    for number in range(100):
        name = f"t{number}"
        fixture.topic(name, config=f.TopicConfig(retention_ms=60_000))
        fixture.produce("x", topic=name)
        fixture.do(c.CreateGroup(name, "g", "earliest"))
        batch, count, payload_bytes = packed("x")
        fixture.do(c.CreateStream(f"s{number}", "text/plain", retention_ms=60_000))
        fixture.do(c.AppendStream(f"s{number}", "text/plain", batch, count, payload_bytes))
    fixture.advance(200_000)
    facts: list[f.Fact] = []
    for number, command in enumerate(fixture.broker.regular_sweeps()):
        facts += fixture.take(command).facts
        fixture.do(c.DeleteTopic(f"t{99 - number}"))
        fixture.do(c.DeleteStream(f"s{99 - number}"))
    assert 180 < sum(isinstance(fact, f.Trimmed) for fact in facts) < 200


def test_streams_that_expire_together_are_deleted_some_at_a_time():
    fixture = BrokerFixture(BrokerLimits(sweep_max=100))
    for number in range(1_000):
        fixture.do(c.CreateStream(f"s{number}", "text/plain", ttl_s=1))
    fixture.advance(2_000, sweep=False)
    sweeps = 0
    while fixture.broker.state.streams.by_path:
        command = fixture.broker.due(fixture.now_ms)
        if command is None:
            fixture.advance(100, sweep=False)
            continue
        assert len(fixture.take(command).facts) <= 100
        sweeps += 1
    assert sweeps == 10


def test_expired_effect_keys_are_forgotten_without_new_ones():
    fixture = BrokerFixture()
    for number in range(2 * EFFECTS_CHECKED + 1_000):
        key = c.EffectKey("", "t", "g", str(number))
        fixture.do(c.BeginEffect(key, "ann"))
        fixture.do(c.CommitEffect(key, number + 1))
    effects = fixture.broker.state.effects
    fixture.advance(700_000)
    for command in fixture.broker.regular_sweeps():
        assert cpu_s(fixture, command) < COMMAND_S
    assert len(effects) == 0
    assert fixture.regular_sweeps() == []


def test_keys_that_live_long_do_not_hide_expired_ones_after_them():
    fixture = BrokerFixture()
    effects = fixture.broker.state.effects
    for number in range(EFFECTS_CHECKED + 10):
        fixture.do(c.BeginEffect(c.EffectKey("", "t", "g", str(number)), "ann", lease_ms=3_600_000))
    *_, last = effects.snapshot()
    key = c.EffectKey("", "t", "g", last.key.rpartition("\x1f")[2])
    fixture.do(c.CommitEffect(key, last.fence, ttl_ms=1_000))
    fixture.advance(10_000)
    fixture.regular_sweeps()
    assert len(effects) == EFFECTS_CHECKED + 9


def test_retention_of_very_many_pending_messages_is_done_some_at_a_time():
    count = 40_000
    fixture = BrokerFixture(BrokerLimits(in_flight_max=count, claim_max=count, partition_messages=count))
    fixture.topic("t", config=f.TopicConfig(retention_ms=60_000))
    fixture.do(c.CreateGroup("t", "g", "earliest"))
    batch, _, payload_bytes = packed(*["x"] * count)
    fixture.do(c.Produce("t", batch, count, payload_bytes, partition=0))
    fixture.do(c.Claim("t", "g", "ann", count, 600_000))
    for first in range(0, count, 10_000):
        held = (c.Held(0, first, first + 10_000),)
        fixture.do(c.Nack("t", "g", "ann", held, "no", 10**9))
    assert fixture.broker.state.groups[1].progress[0].resting == count
    fixture.advance(200_000, sweep=False)
    trims: list[int] = []
    for command in fixture.broker.regular_sweeps():
        start_s = time.thread_time()
        facts = fixture.take(command).facts
        assert time.thread_time() - start_s < COMMAND_S
        trims += [fact.start_offset for fact in facts if isinstance(fact, f.Trimmed)]
    assert trims == [*range(PENDING_TRIMMED, count, PENDING_TRIMMED), count]
    progress = fixture.broker.state.groups[1].progress[0]
    assert (progress.floor, progress.resting, len(progress.entries)) == (count, 0, 0)

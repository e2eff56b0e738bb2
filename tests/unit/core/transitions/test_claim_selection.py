"""What a claim may take, asked of the broker: each of these once went wrong, or would be easy to get wrong."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected, Settlement
from driftq.core.state.lanes import SHARED_TENANT
from driftq.wire.errors import Code
from tests.support.broker_fixture import BrokerFixture, held, offsets, produce


def nack(fixture: BrokerFixture, *runs: int | tuple[int, int], delay_ms: int = 0) -> None:
    assert fixture.do(c.Nack("t", "g", "w", held(*runs), "no", delay_ms)) == Settlement()


def test_a_retry_that_takes_the_last_slot_leaves_no_empty_delivery():
    fixture = BrokerFixture(BrokerLimits(in_flight_max=1))
    fixture.topic()
    fixture.produce("a", "b")
    fixture.claim(1)
    nack(fixture, 0)
    claimed = fixture.claim(5)
    assert [(delivery.first, delivery.end) for delivery in claimed.deliveries] == [(0, 1)]


def test_a_message_that_came_to_rest_twice_at_one_time_is_given_once():
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a", "b")
    fixture.claim(2)
    nack(fixture, 0)
    nack(fixture, 1)
    assert offsets(fixture.claim(1)) == [0]
    assert offsets(fixture.claim(1)) == [1]
    nack(fixture, 1)
    nack(fixture, 0)
    assert sorted(offsets(fixture.claim(5))) == [0, 1]


def test_those_due_for_longest_come_first_however_many_are_due():
    fixture = BrokerFixture(BrokerLimits(in_flight_max=10_000, claim_max=10_000))
    fixture.topic()
    fixture.produce(*["v"] * 5_000)
    fixture.claim(5_000)
    for first in range(0, 5_000, 100):
        nack(fixture, (first, first + 100), delay_ms=5_000 - first)
    fixture.advance(10_000)
    assert offsets(fixture.claim(100)) == list(range(4_900, 5_000))
    assert offsets(fixture.claim(100)) == list(range(4_800, 4_900))


def test_due_messages_of_another_task_do_not_hide_ours():
    fixture = BrokerFixture(BrokerLimits(in_flight_max=10_000))
    fixture.topic()
    for task, count in (("mail", 3_000), ("sms", 1)):
        marks = tuple(f.RecordSchedule(index, task=task) for index in range(count))
        fixture.produce(*["v"] * count, marks=marks)
    fixture.claim(3_001)
    nack(fixture, (0, 3_001))
    assert offsets(fixture.claim(1, task="sms")) == [3_000]


def test_retries_of_low_priority_are_slow_but_never_starved():
    fixture = BrokerFixture(BrokerLimits(ageing_ms=1_000))
    fixture.topic()
    fixture.produce("low")
    fixture.produce("high", marks=(f.RecordSchedule(0, priority=2),))
    fixture.claim(2)
    nack(fixture, 0, 1)
    for waited_ms, first in ((0, 1), (2_000, 1), (1_000, 0)):
        fixture.advance(waited_ms)
        assert offsets(fixture.claim(1)) == [first]
        nack(fixture, first)


def test_the_lane_of_an_offset_is_found_whatever_was_trimmed():
    fixture = BrokerFixture()
    fixture.topic()
    for number in range(300):
        fixture.produce("v", marks=(f.RecordSchedule(0, priority=number % 3, label=str(number)),))
        fixture.produce("plain")
        if number % 50 == 49:
            fixture.do(c.TrimTopic("t", 0, 2 * number - 20))
        log = fixture.broker.state.logs[1]
        for offset in range(log.start, log.end):
            key = log.lanes.key_of(offset)
            assert (key.label if key is not None else None) == (None if offset % 2 else str(offset // 2))
    again = fixture.restarted().state.logs[1]
    assert [again.lanes.key_of(offset) for offset in range(again.end)] == [
        log.lanes.key_of(offset) for offset in range(log.end)
    ]
    assert len(log.lanes.keys) < 200


def test_nothing_is_given_before_it_is_durable_not_even_when_its_delay_is_over():
    fixture = BrokerFixture(held_back=True)
    fixture.topic()
    fixture.do(c.CreateGroup("t", "g"))
    fixture.commit()
    fixture.produce("soon", marks=(f.RecordSchedule(0, not_before_ms=fixture.now_ms + 5),))
    fixture.produce("now")
    fixture.advance(10)
    assert offsets(fixture.claim(5)) == []
    fixture.commit()
    assert offsets(fixture.claim(5)) == [0, 1]


def test_messages_past_their_deadline_do_not_shorten_a_claim():
    fixture = BrokerFixture()
    fixture.topic()
    marks = tuple(f.RecordSchedule(index, deadline_ms=fixture.now_ms + 10) for index in range(8))
    fixture.produce(*["late"] * 8, marks=marks)
    fixture.produce("fine", "fine")
    fixture.advance(10)
    assert offsets(fixture.claim(2)) == [8, 9]


def test_a_claim_that_only_made_dead_letters_asks_for_an_immediate_repeat():
    fixture = BrokerFixture(BrokerLimits(sweep_max=4))
    fixture.topic()
    marks = tuple(f.RecordSchedule(index, deadline_ms=fixture.now_ms + 10) for index in range(8))
    fixture.produce(*["late"] * 8, marks=marks)
    fixture.produce("fine")
    fixture.advance(10)
    delivered = []
    for _ in range(5):
        claimed = fixture.claim(1)
        delivered += offsets(claimed)
        if not delivered:
            assert claimed.next_ms == fixture.now_ms
    assert delivered == [8]


def test_an_empty_claim_names_a_time_that_is_still_to_come():
    fixture = BrokerFixture(BrokerLimits(in_flight_max=1))
    fixture.topic()
    fixture.produce("a", "b", "c")
    fixture.claim(1, lease_ms=1_000)
    nack(fixture, 0)
    fixture.claim(1, lease_ms=700)
    assert fixture.claim(1).next_ms == fixture.now_ms + 700
    fixture.advance(10)
    assert fixture.claim(1).next_ms == fixture.now_ms + 690


def test_a_lease_ends_though_a_retry_came_due_before_it():
    """The deadline of the earlier event must not swallow that of the later one."""
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a", "b")
    fixture.claim(2, lease_ms=1_000)
    nack(fixture, 0, delay_ms=100)
    fixture.advance(100)
    fixture.advance(900)
    progress = fixture.broker.state.topics["t"].groups["g"].progress[0]
    assert progress.in_flight == 0
    assert progress.entries[1].error == "ack_timeout"


def test_what_a_full_sweep_leaves_is_swept_later():
    fixture = BrokerFixture(BrokerLimits(sweep_max=2))
    fixture.topic("t", 1)
    fixture.topic("u", 1)
    for topic in ("t", "u"):
        fixture.produce(*["v"] * 5, topic=topic)
        fixture.claim(5, topic=topic, lease_ms=1_000)
    groups = [fixture.broker.state.topics[topic].groups["g"].progress[0] for topic in ("t", "u")]
    assert [progress.in_flight for progress in groups] == [5, 5]
    for _ in range(20):
        fixture.advance(100)
    assert [progress.in_flight for progress in groups] == [0, 0]


def test_a_sweep_that_was_refused_is_asked_for_again():
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a")
    fixture.claim(1, lease_ms=1_000)
    fixture.clock.move(1_000)
    assert fixture.broker.due(fixture.now_ms) is not None  # and it is not decided: the disk was full
    assert fixture.broker.due(fixture.now_ms) is None
    fixture.clock.move(100)
    assert fixture.broker.due(fixture.now_ms) is not None


def test_a_group_that_is_only_ready_is_woken_once():
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a")
    fixture.claim(1)
    nack(fixture, 0, delay_ms=100)
    fixture.clock.move(100)
    assert fixture.broker.due(fixture.now_ms) is not None
    assert fixture.broker.next_deadline_ms() is None


def test_an_ack_far_past_the_end_is_refused():
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a")
    fixture.claim(1)
    for run in (1, 2, 10**9, (1, 10**9), (10**9, 10**10)):
        reply = fixture.do(c.Ack("t", "g", "w", held(run)))
        assert isinstance(reply, Settlement)
        assert reply.refused
        assert {refusal.code for refusal in reply.refused} == {Code.NOT_DELIVERED}


def test_a_head_that_is_no_head_fails_like_a_plain_message():
    fixture = BrokerFixture(chance=0.0)
    fixture.topic()
    from driftq.wire.records import Record, pack

    batch = pack([Record(b"v", b"", b'{"envelope": "no"}')])
    fixture.do(c.Produce("t", batch, 1, 1, partition=0))
    fixture.claim(1, lease_ms=1_000)
    fixture.advance(1_000)
    fixture.advance(50)
    assert offsets(fixture.claim(1)) == [0]
    assert fixture.do(c.RejectMessages("t", "g", "w", held(0))) == Settlement()
    assert fixture.reader.record(2, 0).value == b"v"


def test_a_policy_with_absurd_numbers_can_be_written_down():
    from driftq.wire.message import Envelope, Head, RetryPolicy

    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a", head=Head(envelope=Envelope(retry_policy=RetryPolicy(5, 2**60))))
    fixture.produce("b", head=Head(envelope=Envelope(retry_policy=RetryPolicy(5, -(2**60)))))
    fixture.claim(2)
    assert fixture.do(c.Nack("t", "g", "w", held(0, 1))) == Settlement()


def test_marks_that_name_no_record_are_refused():
    fixture = BrokerFixture()
    fixture.topic()
    for marks in (
        (f.RecordSchedule(1, 5),),
        (f.RecordSchedule(-1, 5),),
        (f.RecordSchedule(0, 5), f.RecordSchedule(0, 5)),
    ):
        reply = fixture.produce("a", marks=marks)
        assert isinstance(reply, Rejected)
        assert reply.code is Code.INVALID_ARGUMENT


def tenants_of(fixture: BrokerFixture, *tenants: str) -> None:
    for tenant in tenants:
        fixture.do(produce(tenant, marks=(f.RecordSchedule(0, tenant=tenant),)))


def test_tenants_change_nothing_in_a_topic_that_is_not_fair():
    fixture = BrokerFixture()
    fixture.topic()
    tenants_of(fixture, "a", "a", "a", "b", "a", "b")
    assert not fixture.broker.state.logs[1].lanes.by_key
    assert offsets(fixture.claim(2)) == [0, 1]
    assert offsets(fixture.claim(9)) == [2, 3, 4, 5]


def test_tenant_lanes_of_an_older_version_are_read_in_offset_order():
    fixture = BrokerFixture()
    fixture.do(c.CreateTopic("t", config=f.TopicConfig(fair="tenant")))
    tenants_of(fixture, "a", "a", "a", "b", "b")
    fixture.do(c.ConfigureTopic("t", f.TopicConfig()))
    assert len(fixture.broker.state.logs[1].lanes.by_key) == 2
    assert [offset for _ in range(5) for offset in offsets(fixture.claim(1))] == [0, 1, 2, 3, 4]


def test_a_tenant_has_lanes_of_its_own_or_shares_them_but_never_both():
    fixture = BrokerFixture(BrokerLimits(tenant_lanes_max=2))
    fixture.do(c.CreateTopic("t", config=f.TopicConfig(fair="tenant")))
    tenants_of(fixture, "a", "b", "c", "d", "c", "a")
    fixture.do(
        produce("a2", marks=(f.RecordSchedule(0, task="mail", tenant="a"),))
    )  # past the bound, but a has its own turn
    log = fixture.broker.state.logs[1]
    assert [log.lanes.key_of(offset).tenant for offset in range(7)] == [
        "a", "b", SHARED_TENANT, SHARED_TENANT, SHARED_TENANT, "a", "a",
    ]  # fmt: skip
    assert offsets(fixture.claim(9)) == [0, 1, 2, 5, 3, 6, 4]
    assert fixture.restarted().state.logs[1].lanes.tenants == log.lanes.tenants


@pytest.mark.parametrize("limit", [1, 3, 10])
@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.0, 1.0])
def test_the_share_of_retries_is_carried_from_claim_to_claim(limit, ratio):
    fixture = BrokerFixture(BrokerLimits(retry_ratio=ratio))
    fixture.topic()
    fixture.produce(*(str(number) for number in range(900)))
    fixture.claim(300)
    nack(fixture, *range(300))
    retries = fresh = 0
    while retries + fresh < 200:
        claimed = offsets(fixture.claim(limit))
        assert len(claimed) == limit
        retries += sum(offset < 300 for offset in claimed)
        fresh += sum(offset >= 300 for offset in claimed)
        assert abs(retries - ratio * (retries + fresh)) <= 1
    assert (
        fixture.restarted().state.groups[1].progress[0].retry_debt
        == fixture.broker.state.groups[1].progress[0].retry_debt
    )


def test_retries_fill_claims_when_nothing_fresh_is_there_and_fresh_messages_when_no_retry_is_due():
    fixture = BrokerFixture()
    fixture.topic()
    fixture.produce("a", "b", "c", "d")
    fixture.claim(3)
    nack(fixture, 0, 1, 2)
    assert [offset for _ in range(4) for offset in offsets(fixture.claim(1))] == [0, 3, 1, 2]
    fixture.produce("e", "f", "g")
    assert [offset for _ in range(3) for offset in offsets(fixture.claim(1))] == [4, 5, 6]

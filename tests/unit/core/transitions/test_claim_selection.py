"""What a claim may take, asked of the broker: each of these once went wrong, or would be easy to get wrong."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected, Settlement
from driftq.core.state.logs import SHARED_TENANT
from driftq.wire.errors import Code
from tests.support.broker_fixture import BrokerFixture, held, offsets, produce


def nack(desk: BrokerFixture, *runs: int | tuple[int, int], delay_ms: int = 0) -> None:
    assert desk.do(c.Nack("t", "g", "w", held(*runs), "no", delay_ms)) == Settlement()


def test_a_retry_that_takes_the_last_slot_leaves_no_empty_delivery():
    desk = BrokerFixture(BrokerLimits(in_flight_max=1))
    desk.topic()
    desk.produce("a", "b")
    desk.claim(1)
    nack(desk, 0)
    claimed = desk.claim(5)
    assert [(delivery.first, delivery.end) for delivery in claimed.deliveries] == [(0, 1)]


def test_a_message_that_came_to_rest_twice_at_one_time_is_given_once():
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a", "b")
    desk.claim(2)
    nack(desk, 0)
    nack(desk, 1)
    assert offsets(desk.claim(1)) == [0]
    assert offsets(desk.claim(1)) == [1]
    nack(desk, 1)
    nack(desk, 0)
    assert sorted(offsets(desk.claim(5))) == [0, 1]


def test_those_due_for_longest_come_first_however_many_are_due():
    desk = BrokerFixture(BrokerLimits(in_flight_max=10_000, claim_max=10_000))
    desk.topic()
    desk.produce(*["v"] * 5_000)
    desk.claim(5_000)
    for first in range(0, 5_000, 100):
        nack(desk, (first, first + 100), delay_ms=5_000 - first)
    desk.advance(10_000)
    assert offsets(desk.claim(100)) == list(range(4_900, 5_000))
    assert offsets(desk.claim(100)) == list(range(4_800, 4_900))


def test_due_messages_of_another_task_do_not_hide_ours():
    desk = BrokerFixture(BrokerLimits(in_flight_max=10_000))
    desk.topic()
    for task, count in (("mail", 3_000), ("sms", 1)):
        marks = tuple(f.RecordSchedule(index, task=task) for index in range(count))
        desk.produce(*["v"] * count, marks=marks)
    desk.claim(3_001)
    nack(desk, (0, 3_001))
    assert offsets(desk.claim(1, task="sms")) == [3_000]


def test_retries_of_low_priority_are_slow_but_never_starved():
    desk = BrokerFixture(BrokerLimits(ageing_ms=1_000))
    desk.topic()
    desk.produce("low")
    desk.produce("high", marks=(f.RecordSchedule(0, priority=2),))
    desk.claim(2)
    nack(desk, 0, 1)
    for waited_ms, first in ((0, 1), (2_000, 1), (1_000, 0)):
        desk.advance(waited_ms)
        assert offsets(desk.claim(1)) == [first]
        nack(desk, first)


def test_the_lane_of_an_offset_is_found_whatever_was_trimmed():
    desk = BrokerFixture()
    desk.topic()
    for number in range(300):
        desk.produce("v", marks=(f.RecordSchedule(0, priority=number % 3, label=str(number)),))
        desk.produce("plain")
        if number % 50 == 49:
            desk.do(c.TrimTopic("t", 0, 2 * number - 20))
        log = desk.broker.state.logs[1]
        for offset in range(log.start, log.end):
            key = log.lane_of(offset)
            assert (key.label if key is not None else None) == (None if offset % 2 else str(offset // 2))
    again = desk.restarted().state.logs[1]
    assert [again.lane_of(offset) for offset in range(again.end)] == [log.lane_of(offset) for offset in range(log.end)]
    assert len(log.lane_keys) < 200


def test_nothing_is_given_before_it_is_durable_not_even_when_its_delay_is_over():
    desk = BrokerFixture(held_back=True)
    desk.topic()
    desk.do(c.CreateGroup("t", "g"))
    desk.commit()
    desk.produce("soon", marks=(f.RecordSchedule(0, not_before_ms=desk.now_ms + 5),))
    desk.produce("now")
    desk.advance(10)
    assert offsets(desk.claim(5)) == []
    desk.commit()
    assert offsets(desk.claim(5)) == [0, 1]


def test_messages_past_their_deadline_do_not_shorten_a_claim():
    desk = BrokerFixture()
    desk.topic()
    marks = tuple(f.RecordSchedule(index, deadline_ms=desk.now_ms + 10) for index in range(8))
    desk.produce(*["late"] * 8, marks=marks)
    desk.produce("fine", "fine")
    desk.advance(10)
    assert offsets(desk.claim(2)) == [8, 9]


def test_a_claim_that_could_only_bury_says_to_come_again_at_once():
    desk = BrokerFixture(BrokerLimits(sweep_max=4))
    desk.topic()
    marks = tuple(f.RecordSchedule(index, deadline_ms=desk.now_ms + 10) for index in range(8))
    desk.produce(*["late"] * 8, marks=marks)
    desk.produce("fine")
    desk.advance(10)
    seen = []
    for _ in range(5):
        claimed = desk.claim(1)
        seen += offsets(claimed)
        if not seen:
            assert claimed.next_ms == desk.now_ms
    assert seen == [8]


def test_an_empty_claim_names_a_time_that_is_still_to_come():
    desk = BrokerFixture(BrokerLimits(in_flight_max=1))
    desk.topic()
    desk.produce("a", "b", "c")
    desk.claim(1, lease_ms=1_000)
    nack(desk, 0)
    desk.claim(1, lease_ms=700)
    assert desk.claim(1).next_ms == desk.now_ms + 700
    desk.advance(10)
    assert desk.claim(1).next_ms == desk.now_ms + 690


def test_a_lease_ends_though_a_retry_came_due_before_it():
    """The deadline of the earlier event must not swallow that of the later one."""
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a", "b")
    desk.claim(2, lease_ms=1_000)
    nack(desk, 0, delay_ms=100)
    desk.advance(100)
    desk.advance(900)
    progress = desk.broker.state.topics["t"].groups["g"].progress[0]
    assert progress.in_flight == 0
    assert progress.entries[1].error == "ack_timeout"


def test_a_sweep_that_is_full_leaves_nothing_behind_for_ever():
    desk = BrokerFixture(BrokerLimits(sweep_max=2))
    desk.topic("t", 1)
    desk.topic("u", 1)
    for topic in ("t", "u"):
        desk.produce(*["v"] * 5, topic=topic)
        desk.claim(5, topic=topic, lease_ms=1_000)
    groups = [desk.broker.state.topics[topic].groups["g"].progress[0] for topic in ("t", "u")]
    assert [progress.in_flight for progress in groups] == [5, 5]
    for _ in range(20):
        desk.advance(100)
    assert [progress.in_flight for progress in groups] == [0, 0]


def test_a_sweep_that_was_refused_is_asked_for_again():
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a")
    desk.claim(1, lease_ms=1_000)
    desk.clock.move(1_000)
    assert desk.broker.due(desk.now_ms) is not None  # and it is not decided: the disk was full
    assert desk.broker.due(desk.now_ms) is None
    desk.clock.move(100)
    assert desk.broker.due(desk.now_ms) is not None


def test_a_group_that_is_merely_ready_is_told_once():
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a")
    desk.claim(1)
    nack(desk, 0, delay_ms=100)
    desk.clock.move(100)
    assert desk.broker.due(desk.now_ms) is not None
    assert desk.broker.next_deadline_ms() is None


def test_an_ack_far_past_the_end_is_refused():
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a")
    desk.claim(1)
    for run in (1, 2, 10**9, (1, 10**9), (10**9, 10**10)):
        reply = desk.do(c.Ack("t", "g", "w", held(run)))
        assert isinstance(reply, Settlement)
        assert reply.refused
        assert {refusal.code for refusal in reply.refused} == {Code.NOT_DELIVERED}


def test_a_head_that_is_no_head_fails_like_a_plain_message():
    desk = BrokerFixture(chance=0.0)
    desk.topic()
    from driftq.wire.records import Record, pack

    batch = pack([Record(b"v", b"", b'{"envelope": "no"}')])
    desk.do(c.Produce("t", batch, 1, 1, partition=0))
    desk.claim(1, lease_ms=1_000)
    desk.advance(1_000)
    desk.advance(50)
    assert offsets(desk.claim(1)) == [0]
    assert desk.do(c.RejectMessages("t", "g", "w", held(0))) == Settlement()
    assert desk.reader.record(2, 0).value == b"v"


def test_a_policy_with_absurd_numbers_can_be_written_down():
    from driftq.wire.message import Envelope, Head, RetryPolicy

    desk = BrokerFixture()
    desk.topic()
    desk.produce("a", head=Head(envelope=Envelope(retry_policy=RetryPolicy(5, 2**60))))
    desk.produce("b", head=Head(envelope=Envelope(retry_policy=RetryPolicy(5, -(2**60)))))
    desk.claim(2)
    assert desk.do(c.Nack("t", "g", "w", held(0, 1))) == Settlement()


def test_marks_that_name_no_record_are_refused():
    desk = BrokerFixture()
    desk.topic()
    for marks in (
        (f.RecordSchedule(1, 5),),
        (f.RecordSchedule(-1, 5),),
        (f.RecordSchedule(0, 5), f.RecordSchedule(0, 5)),
    ):
        reply = desk.produce("a", marks=marks)
        assert isinstance(reply, Rejected)
        assert reply.code is Code.INVALID_ARGUMENT


def tenants_of(desk: BrokerFixture, *tenants: str) -> None:
    for tenant in tenants:
        desk.do(produce(tenant, marks=(f.RecordSchedule(0, tenant=tenant),)))


def test_tenants_change_nothing_in_a_topic_that_is_not_fair():
    desk = BrokerFixture()
    desk.topic()
    tenants_of(desk, "a", "a", "a", "b", "a", "b")
    assert not desk.broker.state.logs[1].lanes
    assert offsets(desk.claim(2)) == [0, 1]
    assert offsets(desk.claim(9)) == [2, 3, 4, 5]


def test_tenant_lanes_of_an_older_version_are_read_in_offset_order():
    desk = BrokerFixture()
    desk.do(c.CreateTopic("t", config=f.TopicConfig(fair="tenant")))
    tenants_of(desk, "a", "a", "a", "b", "b")
    desk.do(c.ConfigureTopic("t", f.TopicConfig()))
    assert len(desk.broker.state.logs[1].lanes) == 2
    assert [offset for _ in range(5) for offset in offsets(desk.claim(1))] == [0, 1, 2, 3, 4]


def test_a_tenant_has_lanes_of_its_own_or_shares_them_but_never_both():
    desk = BrokerFixture(BrokerLimits(tenant_lanes_max=2))
    desk.do(c.CreateTopic("t", config=f.TopicConfig(fair="tenant")))
    tenants_of(desk, "a", "b", "c", "d", "c", "a")
    desk.do(
        produce("a2", marks=(f.RecordSchedule(0, task="mail", tenant="a"),))
    )  # past the bound, but a has its own turn
    log = desk.broker.state.logs[1]
    assert [log.lane_of(offset).tenant for offset in range(7)] == [
        "a", "b", SHARED_TENANT, SHARED_TENANT, SHARED_TENANT, "a", "a",
    ]  # fmt: skip
    assert offsets(desk.claim(9)) == [0, 1, 2, 5, 3, 6, 4]
    assert desk.restarted().state.logs[1].tenants == log.tenants


@pytest.mark.parametrize("most", [1, 3, 10])
@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.0, 1.0])
def test_the_share_of_retries_is_carried_from_claim_to_claim(most, ratio):
    desk = BrokerFixture(BrokerLimits(retry_ratio=ratio))
    desk.topic()
    desk.produce(*(str(number) for number in range(900)))
    desk.claim(300)
    nack(desk, *range(300))
    retries = fresh = 0
    while retries + fresh < 200:
        claimed = offsets(desk.claim(most))
        assert len(claimed) == most
        retries += sum(offset < 300 for offset in claimed)
        fresh += sum(offset >= 300 for offset in claimed)
        assert abs(retries - ratio * (retries + fresh)) <= 1
    assert desk.restarted().state.groups[1].progress[0].retry_debt == desk.broker.state.groups[1].progress[0].retry_debt


def test_retries_fill_claims_when_nothing_fresh_is_there_and_fresh_messages_when_no_retry_is_due():
    desk = BrokerFixture()
    desk.topic()
    desk.produce("a", "b", "c", "d")
    desk.claim(3)
    nack(desk, 0, 1, 2)
    assert [offset for _ in range(4) for offset in offsets(desk.claim(1))] == [0, 3, 1, 2]
    desk.produce("e", "f", "g")
    assert [offset for _ in range(3) for offset in offsets(desk.claim(1))] == [4, 5, 6]

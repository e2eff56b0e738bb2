"""Every way in which a job ends counts once in its batch, and the end of the last one produces the batch's messages in
the same frame."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected
from driftq.core.rules.job_batches import MEMBERS_PER_CALL_MAX
from driftq.wire.errors import Code
from driftq.wire.message import read_head
from driftq.wire.records import unpack
from tests.support.broker_fixture import BrokerFixture

DONE = b.JobTemplate("done", "done", b"complete")
GOOD = b.JobTemplate("done", "done", b"success")
BAD = b.JobTemplate("done", "done", b"failure")


def job(value: str, job_id: str = "", topic: str = "t") -> b.JobTemplate:
    return b.JobTemplate(topic, topic, value.encode(), job_id=job_id)


def batch(batch_id: str = "all", *members, kind: int = b.GROUP, callbacks: bool = True, ttl_ms: int = 0):
    named = (DONE, GOOD, BAD) if callbacks else (None, None, None)
    return b.JobBatchTemplate(batch_id, kind, "g", members, *named, ttl_ms=ttl_ms)


def fixture(limits: BrokerLimits | None = None) -> BrokerFixture:
    broker = BrokerFixture(limits, chance=0.5)
    broker.topic("t")
    broker.topic("done")
    return broker


def create(broker: BrokerFixture, template: b.JobBatchTemplate, **more):
    reply = broker.do(j.CreateJobBatch(template, **more))
    assert isinstance(reply, j.JobBatchChanged), reply
    return broker.broker.state.job_batches.find(template.batch_id)


def ack(broker: BrokerFixture, *offsets: int, result: bytes = b""):
    """Ack single messages, each with the result. Returns the facts of the last frame."""
    facts: list[f.Fact] = []
    for offset in offsets:
        held = (c.Held(0, offset, offset + 1, result=result),)
        facts = broker.take(c.Ack("t", "g", "w", held)).facts
    return facts


def produced(broker: BrokerFixture, topic: str = "done") -> list[str]:
    """The values of a topic."""
    state = broker.broker.state
    pieces = broker.reader.pieces.get(state.topics[topic].log_ids[0], [])
    return [record.value.decode() for piece in pieces for record in unpack(piece.batch)]


def part(broker: BrokerFixture, topic: str, offset: int):
    return read_head(broker.reader.head(broker.broker.state.topics[topic].log_ids[0], offset)).job_batch


def test_the_last_ack_produces_the_messages_in_its_own_frame():
    broker = fixture()
    all_jobs = create(broker, batch("all", job("a"), job("b")))
    broker.claim()
    assert not any(isinstance(fact, f.Appended) for fact in ack(broker, 0))
    assert all_jobs.ended is None
    facts = ack(broker, 1, result=b"7")
    assert [type(fact).__name__ for fact in facts] == [
        "Settled", "ResultStored", "JobBatchMembersEnded", "Appended", "Appended", "JobBatchEnded",
    ]  # fmt: skip
    assert produced(broker) == ["complete", "success"]
    assert all_jobs.ended.state == b.SUCCEEDED
    assert all_jobs.results[1].result == b"7"
    assert part(broker, "done", 0) == part(broker, "done", 1).__class__("all", "on_complete", "succeeded")
    ack(broker, 0, 1)
    assert len(produced(broker)) == 2, "a repeated ack ends nothing again"


ENDINGS = {
    "nack": lambda broker: broker.take(c.Nack("t", "g", "w", (c.Held(0, 0, 1),), "no")),
    "reject": lambda broker: broker.take(c.RejectMessages("t", "g", "w", (c.Held(0, 0, 1),), "no")),
    "lost lease": lambda broker: broker.advance(100_000),
    "cancel": lambda broker: broker.take(c.Cancel("t", 0, 0)),
    "trim": lambda broker: broker.take(c.TrimTopic("t", 0, 1)),
    "deleted topic": lambda broker: broker.take(c.DeleteTopic("t")),
    "moved group": lambda broker: broker.take(c.SeekGroup("t", "g", "latest")),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_that_does_not_succeed_ends_its_batch_as_failed(ending):
    broker = fixture(BrokerLimits(retry=BrokerLimits().retry.__class__(max_attempts=1, backoff_ms=10)))
    only = create(broker, batch("all", job("a")))
    broker.claim()
    ENDINGS[ending](broker)
    assert only.ended is not None
    assert only.ended.state == b.FAILED
    assert produced(broker) == ["complete", "failure"]
    assert sum(only.counts[b.FAILED : b.WAITING]) == 1
    assert not broker.broker.state.job_batches.jobs


def test_a_deadline_that_passes_and_a_committed_effect_end_members_at_dispatch():
    broker = fixture()
    late = b.JobTemplate("t", "t", b"late", schedule=f.RecordSchedule(0, deadline_ms=broker.now_ms + 100))
    only = create(broker, batch("all", late))
    broker.advance(200)
    broker.claim()
    assert only.counts[b.FAILED] == 1
    assert produced(broker) == ["complete", "failure"]


def test_a_new_group_that_starts_later_never_gets_a_member():
    broker = fixture()
    only = create(broker, batch("all", job("a")))
    broker.claim(group="other")
    broker.take(c.Ack("t", "other", "w", (c.Held(0, 0, 1),)))
    assert only.ended is None, "another group does not count"
    broker.do(c.CreateGroup("t", "g", "latest"))
    assert only.ended.state == b.FAILED
    assert only.counts[b.DROPPED] == 1


def test_a_deleted_group_may_come_back_so_its_jobs_have_not_ended():
    broker = fixture()
    only = create(broker, batch("all", job("a")))
    broker.claim()
    broker.do(c.DeleteGroup("t", "g"))
    assert only.ended is None
    broker.claim()
    ack(broker, 0)
    assert only.ended.state == b.SUCCEEDED


def test_a_batch_without_members_ends_when_it_is_sealed():
    broker = fixture()
    assert create(broker, batch("empty")).ended.state == b.SUCCEEDED
    later = create(broker, batch("later", callbacks=False), sealed=False)
    assert later.ended is None
    broker.do(j.AddToJobBatch("later", 0, (), seal=True))
    assert later.ended is not None
    assert produced(broker) == ["complete", "success"]


def test_an_open_batch_ends_only_after_it_is_sealed():
    broker = fixture()
    open_batch = create(broker, batch("all", job("a")), sealed=False)
    broker.claim()
    ack(broker, 0)
    assert open_batch.ended is None
    broker.do(j.AddToJobBatch("all", 1, (job("b"),), seal=True))
    broker.claim()
    ack(broker, 1)
    assert open_batch.ended is not None
    assert produced(broker) == ["complete", "success"]


def test_creating_and_adding_again_change_nothing():
    broker = fixture()
    template = batch("all", job("a"), job("b"))
    create(broker, template, sealed=False, digest=b"1")
    again = broker.take(j.CreateJobBatch(template, sealed=False, digest=b"1"))
    assert again.facts == []
    assert again.reply == j.JobBatchChanged("all", 2, False, False)
    assert broker.do(j.CreateJobBatch(template, digest=b"2")).code is Code.CONFLICT
    more = j.AddToJobBatch("all", 2, (job("c"),))
    assert broker.do(more).changed
    assert not broker.do(more).changed
    gap = broker.do(j.AddToJobBatch("all", 5, (job("d"),)))
    assert gap.code is Code.CONFLICT
    assert gap.details == {"count": 3}
    assert produced(broker, "t") == ["a", "b", "c"]


def test_a_refused_member_refuses_all():
    broker = fixture(BrokerLimits(partition_messages=2))
    broker.do(c.CreateGroup("t", "g"))
    for bad in (job("x", topic="none"), job("y", "same")):
        template = batch("all", job("a", "same"), bad)
        decision = broker.take(j.CreateJobBatch(template))
        assert isinstance(decision.reply, Rejected)
        assert not decision.facts
    assert broker.do(j.CreateJobBatch(batch("all", job("1"), job("2"), job("3")))).code is Code.OVERLOADED
    assert not broker.broker.state.job_batches.by_number


def test_a_job_id_in_use_is_refused():
    broker = fixture()
    create(broker, batch("first", job("a", "mine"), callbacks=False))
    assert broker.do(j.CreateJobBatch(batch("second", job("b", "mine")))).code is Code.CONFLICT


def test_a_chain_passes_the_result_to_the_next_step_in_the_frame_of_the_ack():
    broker = fixture()
    chain = create(broker, batch("chain", job("a"), job("b"), job("c"), kind=b.CHAIN))
    assert produced(broker, "t") == ["a"]
    broker.claim()
    facts = ack(broker, 0, result=b'{"n":1}')
    assert [type(fact).__name__ for fact in facts][-2:] == ["Appended", "JobBatchStepStarted"]
    assert bytes(part(broker, "t", 1).previous) == b'{"n":1}'
    broker.claim()
    ack(broker, 1)
    assert bytes(part(broker, "t", 2).previous) == b"null"
    broker.claim()
    ack(broker, 2)
    assert chain.ended.state == b.SUCCEEDED
    assert produced(broker) == ["complete", "success"]


def test_a_chain_stops_at_a_failure():
    broker = fixture()
    chain = create(broker, batch("chain", job("a"), job("b"), job("c"), kind=b.CHAIN))
    broker.claim()
    broker.do(c.RejectMessages("t", "g", "w", (c.Held(0, 0, 1),), "no"))
    assert chain.ended.state == b.FAILED
    assert chain.counts[b.CANCELLED] == 2
    assert produced(broker, "t") == ["a"]
    assert produced(broker) == ["complete", "failure"]
    assert broker.broker.state.job_batches.waiting_bytes == 0


def test_a_nested_batch_is_a_step_with_the_result_before_it_and_its_results_are_passed_on():
    broker = fixture()
    fan = batch("fan", job("b"), batch("inner", job("c"), kind=b.CHAIN, callbacks=False), callbacks=False)
    chain = create(broker, batch("chain", job("a"), fan, job("d"), kind=b.CHAIN))
    broker.claim()
    ack(broker, 0, result=b"1")
    assert produced(broker, "t") == ["a", "b", "c"]
    assert [bytes(part(broker, "t", offset).previous) for offset in (1, 2)] == [b"1", b"1"]
    assert [part(broker, "t", offset).id for offset in (1, 2)] == ["fan", "inner"]
    broker.claim()
    ack(broker, 1, 2)
    assert part(broker, "t", 3).previous_batch == "fan"
    assert chain.ended is None
    broker.claim()
    ack(broker, 3)
    assert chain.ended.state == b.SUCCEEDED
    assert produced(broker) == ["complete", "success"]


def test_a_batch_added_to_an_open_one_counts_as_one_member():
    broker = fixture()
    outer = create(broker, batch("outer"), sealed=False)
    inner = create(broker, batch("inner", job("a"), callbacks=False), parent_id="outer")
    broker.do(j.AddToJobBatch("outer", 1, (), seal=True))
    assert outer.ended is None
    broker.claim()
    ack(broker, 0)
    assert inner.ended is not None
    assert outer.ended is not None
    assert produced(broker) == ["complete", "success"]


def test_cancelling_ends_everything_in_slices_and_produces_the_messages_once():
    broker = fixture(BrokerLimits(sweep_max=2))
    nested = batch("nested", *(job(f"n{number}") for number in range(3)), callbacks=False)
    outer = create(broker, batch("outer", *(job(f"{number}") for number in range(5)), nested))
    broker.claim(3)
    assert broker.do(j.CancelJobBatch("outer")).changed
    assert not broker.do(j.CancelJobBatch("outer")).changed
    assert outer.ended is None, "one frame does not do all of it"
    for _ in range(20):
        broker.advance(200)
    assert outer.ended.state == b.CANCELLED
    assert outer.counts[b.CANCELLED] == 6
    assert produced(broker) == ["complete", "failure"]
    assert not broker.claim().deliveries


def test_a_full_frame_leaves_the_messages_to_a_sweep():
    broker = fixture(BrokerLimits(slice_bytes=1))
    broker.take(c.CreateTopic("t2"))
    outer = create(broker, batch("all", job("a")))
    broker.claim()
    broker.do(c.RejectMessages("t", "g", "w", (c.Held(0, 0, 1),), "no"))
    assert outer.ended is None
    assert produced(broker) == []
    restarted = broker.restarted()
    assert restarted.next_deadline_ms() is not None
    broker.sweep()
    assert outer.ended is not None
    assert produced(broker) == ["complete", "failure"]


def test_what_cannot_be_produced_any_more_is_recorded_and_ends_the_rest():
    broker = fixture()
    only = create(broker, batch("all", job("a")))
    chain = create(broker, batch("chain", job("a"), job("b", topic="done"), kind=b.CHAIN, callbacks=False))
    broker.do(c.DeleteTopic("done"))
    broker.claim()
    ack(broker, 0, 1)
    assert [callback.log_id for callback in only.ended.callbacks] == [b.GONE, b.GONE]
    assert chain.ended.state == b.FAILED
    assert chain.counts[b.DROPPED] == 1


def test_a_message_for_the_topic_that_is_deleted_cannot_be_produced():
    broker = fixture()
    only = create(broker, batch("all", job("a", topic="done")))
    broker.do(c.DeleteTopic("done"))
    assert only.ended.state == b.FAILED
    assert [callback.log_id for callback in only.ended.callbacks] == [b.GONE, b.GONE]


def test_a_batch_is_forgotten_after_its_time_with_what_is_nested_in_it():
    broker = fixture()
    create(broker, batch("outer", batch("inner", job("a"), callbacks=False), ttl_ms=5_000))
    broker.claim()
    ack(broker, 0)
    broker.advance(4_000)
    table = broker.broker.state.job_batches
    assert len(table) == 2
    broker.advance(2_000)
    assert len(table) == 0
    assert table.waiting_bytes == 0
    restarted = broker.restarted().state.job_batches
    assert restarted.next_number == table.next_number == 3


def test_too_many_members_and_too_deep_batches_are_refused():
    broker = fixture(BrokerLimits(job_batch_depth_max=2, job_batch_jobs_max=3, job_batches_max=2))
    deep = batch("3", batch("2", batch("1")))
    assert broker.do(j.CreateJobBatch(deep)).code in (Code.INVALID_ARGUMENT, Code.OVERLOADED)
    many = batch("many", *(job("x") for _ in range(MEMBERS_PER_CALL_MAX + 1)))
    assert broker.do(j.CreateJobBatch(many)).code is Code.TOO_LARGE
    create(broker, batch("a", job("1"), job("2")), sealed=False)
    assert broker.do(j.AddToJobBatch("a", 2, (job("3"), job("4")))).code is Code.TOO_LARGE
    create(broker, batch("b", job("1")))
    assert broker.do(j.CreateJobBatch(batch("c"))).code is Code.OVERLOADED

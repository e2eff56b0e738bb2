"""The audit in the core: what is beyond the transcript `access/audit`."""

from __future__ import annotations

from msgspec import json

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model.access import NoteAudit, OpenAudit
from driftq.core.model.replies import RedriveResult, Rejected
from driftq.wire.audit import AUDIT_TOPIC, AuditRecord
from driftq.wire.records import unpack
from tests.support.broker_fixture import BrokerFixture, held, offsets, packed

NOTE = AuditRecord(
    action="a", name="name", who="ann", token_id="id", tenant="acme", address="10.0.0.1", request_id="r1",
    route="POST /x", details={"n": 1},
)  # fmt: skip


def opened() -> BrokerFixture:
    fixture = BrokerFixture()
    fixture.do(OpenAudit())
    return fixture


def records(facts: list[f.Fact], log_id: int) -> list[AuditRecord]:
    appended = [fact for fact in facts if type(fact) is f.Appended and fact.log_id == log_id]
    return [json.decode(record.value, type=AuditRecord) for fact in appended for record in unpack(fact.batch)]


def log_of(fixture: BrokerFixture) -> int:
    return fixture.broker.state.topics[AUDIT_TOPIC].log_ids[0]


def test_a_record_has_everything_that_the_caller_said_and_the_time_of_the_decision():
    fixture = opened()
    facts = fixture.take(c.CreateTopic("t", 1, audit=NOTE)).facts
    [record] = records(facts, log_of(fixture))
    assert record.at.startswith("20")
    assert record.details == {"n": 1}
    fields = (record.action, record.result, record.name, record.who, record.token_id, record.tenant, record.address)
    assert fields == ("a", "changed", "name", "ann", "id", "acme", "10.0.0.1")
    assert (record.request_id, record.route, record.count) == ("r1", "POST /x", 1)


def test_a_redrive_is_recorded_with_the_letters_that_it_moves():
    fixture = opened()
    fixture.topic()
    fixture.produce("v")
    claimed = fixture.claim(1)
    fixture.do(c.RejectMessages("t", "g", "w", held(*offsets(claimed), token=claimed.token)))
    part = v.RedrivePart(0, (0,), c.Produce("t", *packed("v"), partition=0))
    decision = fixture.take(v.Redrive("dlq.t", "redrive", (part,), audit=NOTE))
    assert isinstance(decision.reply, RedriveResult)
    assert [record.result for record in records(decision.facts, log_of(fixture))] == ["changed"]
    assert any(type(fact) is f.Settled for fact in decision.facts)
    again = fixture.take(v.Redrive("dlq.t", "redrive", (part,), audit=NOTE))
    assert [record.result for record in records(again.facts, log_of(fixture))] == ["unchanged"]


def test_dead_letters_of_the_audit_do_not_go_back_into_it():
    fixture = opened()
    fixture.do(NoteAudit((NOTE,)))
    claimed = fixture.claim(1, topic=AUDIT_TOPIC)
    fixture.do(c.RejectMessages(AUDIT_TOPIC, "g", "w", held(*offsets(claimed), token=claimed.token)))
    part = v.RedrivePart(0, (0,), c.Produce(AUDIT_TOPIC, *packed("forged"), partition=0))
    reply = fixture.do(v.Redrive(f"dlq.{AUDIT_TOPIC}", "redrive", (part,)))
    assert isinstance(reply, RedriveResult)
    assert isinstance(reply.parts[0], Rejected)
    assert fixture.broker.state.logs[log_of(fixture)].end == 1


def test_nothing_is_staged_for_the_audit_or_written_by_an_outcome():
    fixture = opened()
    batch, count, size = packed("forged")
    for command in (
        c.Stage("w", "h", batch, count, size, topic=AUDIT_TOPIC, partition=0),
        c.CommitOutcome(produces=(c.Produce(AUDIT_TOPIC, batch, count, size, partition=0),), key="k"),
    ):
        reply = fixture.do(command)
        assert isinstance(reply, Rejected)
        assert "only the broker writes there" in reply.message


def test_a_topic_of_that_name_with_several_partitions_is_not_taken_for_the_audit():
    fixture = BrokerFixture()
    batch = f.TopicCreated(AUDIT_TOPIC, 1, 3, 0, f.TopicConfig())  # of an earlier version
    fixture.broker.apply_all([batch])
    assert isinstance(fixture.do(OpenAudit()), Rejected)
    facts = fixture.take(c.CreateTopic("t", 1, audit=NOTE)).facts
    assert [type(fact) for fact in facts] == [f.TopicCreated]


def test_retention_drops_old_records_and_nothing_else_does():
    fixture = BrokerFixture()
    fixture.do(OpenAudit(f.TopicConfig(retention_ms=60_000)))
    fixture.do(NoteAudit((NOTE,)))
    fixture.advance(120_000)
    fixture.do(NoteAudit((NOTE,)))
    fixture.regular_sweeps()
    assert fixture.broker.state.logs[log_of(fixture)].start == 1

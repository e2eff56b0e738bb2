"""Two brokers get the same commands; one is folded from its own snapshot before each. They never differ.

Commands of every kind are drawn from small sets of names, so that they affect each other: topics, groups, streams with
forks and lifetimes, effects, stages and outcomes.
"""

from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.queries import ReadStream
from driftq.core.model.replies import Rejected
from driftq.core.state.idempotency_keys import job_key
from tests.support.broker_fixture import BrokerFixture, packed, produce

LIMITS = BrokerLimits(in_flight_max=4, sweep_max=3, partition_messages=30, lease_ms_min=1, touch_ms=10)

decided: collections.Counter[str] = collections.Counter()

names = st.sampled_from(["t", "u"])
groups = st.sampled_from(["g", "h"])
owners = st.sampled_from(["ann", "bob"])
paths = st.sampled_from(["/a", "/b", "/c"])
partitions = st.integers(0, 1)
offsets = st.integers(0, 6)
times = st.sampled_from([1, 50, 400, 3_000])
held = st.lists(st.builds(lambda p, o: c.Held(p, o, o + 1), partitions, offsets), min_size=1, max_size=3).map(tuple)
by = st.none() | st.builds(
    f.ProducerSequence, st.sampled_from("pq"), st.integers(-1, 2), st.integers(0, 3), st.integers(0, 1)
)
keys = st.builds(c.EffectKey, st.just(""), names, groups, st.sampled_from("kl"))
once = st.none() | st.builds(c.ProduceKey, st.just(""), names, st.sampled_from("xy"), st.integers(0, 1), times)
marks = st.just(()) | st.tuples(
    st.builds(
        f.RecordSchedule,
        st.just(0),
        st.sampled_from([0, 5]),
        st.sampled_from(["", "mail"]),
        st.just(""),
        st.just(0),
        st.just(0),
        st.sampled_from(["", "acme"]),
    )
)

jobs = st.none() | st.builds(
    c.ProduceKey, st.just(""), names, st.sampled_from([job_key("a"), job_key("b")]), st.just(0), times
)

produces = st.builds(
    lambda topic, partition, by, once, marks, job: produce(
        "v", topic=topic, partition=partition, producer=by, once=once, marks=marks, job=job
    ),
    names,
    partitions,
    by,
    once,
    marks,
    jobs,
)


def redrive(topic, partition, offsets, only):
    marks = tuple(f.RecordSchedule(index, group=only) for index in range(len(offsets))) if only else ()
    again = produce(*["v"] * len(offsets), topic=topic, partition=partition, marks=marks)
    part = v.RedrivePart(partition, tuple(offsets), again)
    return v.Redrive(f"dlq.{topic}", "redrive", (part, v.RedrivePart(partition, (0,), produce("w", topic=topic))))


sweeps = st.lists(
    st.tuples(st.sampled_from(["retention", "idle", "effects", "time", "stages"]), st.integers(0, 5), st.just(0)),
    max_size=4,
).map(lambda subjects: c.Sweep(tuple(subjects)))

configs = st.builds(f.TopicConfig, history=st.booleans())
acks = st.builds(c.Ack, names, groups, owners, held)


def append(path, by, seq, if_match, close, count):
    batch, count, payload_bytes = packed(*["v"] * count) if count else (b"", 0, 0)
    return c.AppendStream(path, "application/octet-stream", batch, count, payload_bytes, by, seq, if_match, close)


appends = st.builds(
    append, paths, by, st.sampled_from(["", "", "1", "2"]), st.none() | offsets, st.booleans(), st.integers(0, 2)
)


def stream(path, ttl_s, closed, source, fork, sub, count):
    batch, count, payload_bytes = packed(*["value"] * count) if count else (b"", 0, 0)
    return c.CreateStream(
        path, "", ttl_s, None, "", closed, source, fork if source else None, sub if source else None, batch, count,
        payload_bytes,
    )  # fmt: skip


commits = st.builds(c.CommitEffect, keys, st.integers(1, 5), st.just(b"r"), times)


def stage(writer, handle, path, ttl_ms):
    batch, count, payload_bytes = packed("v")
    where = {"path": path} if path.startswith("/") else {"topic": path, "partition": 0}
    return c.Stage(writer, handle, batch, count, payload_bytes, ttl_ms=ttl_ms, **where)


templates = st.builds(
    lambda topic, partition, job_id: b.JobTemplate(topic, topic, b"v", partition=partition, job_id=job_id),
    names, partitions, st.sampled_from(["", "", "a", "b"]),
)  # fmt: skip


def job_batch(batch_id, kind, group, jobs, nested, callback, ttl_ms):
    inner = (b.JobBatchTemplate(f"{batch_id}.0", 1 - kind, group, tuple(nested), callback),) if nested else ()
    return b.JobBatchTemplate(batch_id, kind, group, (*inner, *jobs), callback, on_failure=callback, ttl_ms=ttl_ms)


batch_ids = st.sampled_from("xyz")
few_jobs = st.lists(templates, max_size=2).map(tuple)
job_batches = st.builds(
    job_batch, batch_ids, st.sampled_from([b.GROUP, b.CHAIN]), groups, few_jobs, st.just(()) | few_jobs,
    st.none() | templates, times,
)  # fmt: skip

commands = st.one_of(
    st.builds(j.CreateJobBatch, job_batches, st.sampled_from([True, True, False]), st.sampled_from(["", "", "y"])),
    st.builds(j.AddToJobBatch, batch_ids, st.integers(0, 3), few_jobs, st.booleans()),
    st.builds(j.CancelJobBatch, batch_ids),
    st.builds(c.CreateTopic, names, st.just(2), configs),
    st.builds(c.ConfigureTopic, names, configs),
    produces,
    produces,
    st.builds(c.Claim, names, groups, owners, st.integers(1, 5), times, task=st.sampled_from([None, None, "mail"])),
    st.builds(c.Claim, names, groups, owners, st.integers(1, 5), times),
    acks,
    st.builds(c.Nack, names, groups, owners, held, st.just("no"), st.sampled_from([None, 0, 100])),
    st.builds(c.ReleaseMessages, names, groups, owners, held, st.booleans(), st.sampled_from([0, 100])),
    st.builds(c.RejectMessages, names, groups, owners, held),
    st.builds(c.Extend, names, groups, owners, held, times),
    st.builds(c.AckThrough, names, groups, owners, partitions, offsets),
    st.builds(c.Cancel, names, partitions, offsets),
    st.builds(
        redrive,
        names,
        partitions,
        st.lists(st.integers(0, 2), min_size=1, max_size=3),
        st.sampled_from(["", "g", "h"]),
    ),
    st.builds(c.SeekGroup, names, groups, offsets, partitions),
    st.builds(
        lambda topic, partition, offset: c.CommitOffsets("reader", ((topic, partition, offset),)),
        names, st.integers(0, 1), st.integers(0, 3),
    ),
    st.builds(c.PauseGroup, names, groups, st.booleans()),
    st.builds(c.TrimTopic, names, partitions, offsets),
    st.builds(c.DeleteGroup, names, groups) | st.builds(c.DeleteTopic, names) | sweeps,
    st.builds(
        stream, paths, st.none() | st.integers(0, 3), st.booleans(), st.none() | paths, st.none() | offsets,
        st.none() | st.integers(0, 3), st.integers(0, 2),
    ),
    appends,
    appends,
    st.builds(ReadStream, paths),
    st.builds(c.DeleteStream, paths) | st.builds(c.TrimStream, paths, offsets),
    st.builds(c.BeginEffect, keys, owners, times, st.none() | partitions, st.none() | offsets),
    commits,
    st.builds(c.FailEffect, keys, st.integers(1, 5)),
    st.builds(
        c.CommitOutcome, st.lists(acks, max_size=1).map(tuple), st.lists(produces, max_size=2).map(tuple),
        st.lists(appends, max_size=1).map(tuple), st.lists(commits, max_size=1).map(tuple),
    ),
    st.builds(stage, owners, st.sampled_from("12"), st.sampled_from(["t", "/a"]), times),
    st.builds(c.Publish, owners, st.integers(0, 3), st.lists(st.sampled_from("12"), max_size=2).map(tuple)),
    st.builds(c.ForgetStages, owners, st.just(("1",))),
    times,
)  # fmt: skip


def snapshot_of(fixture: BrokerFixture) -> bytes:
    return encode(list(fixture.broker.snapshot()))


@given(st.lists(commands, min_size=20, max_size=80))
def test_a_broker_folded_from_its_snapshot_gives_the_same_replies(steps):
    steady, restarting = BrokerFixture(LIMITS), BrokerFixture(LIMITS)
    for fixture in (steady, restarting):
        fixture.topic("t", 2)
        fixture.do(c.CreateStream("/a"))
    for step in steps:
        restarting.broker = restarting.restarted()
        assert snapshot_of(steady) == snapshot_of(restarting)
        if isinstance(step, int):
            decided["time"] += 1
            steady.advance(step)
            restarting.advance(step)
            assert steady.journal == restarting.journal
            continue
        before = snapshot_of(steady)
        answer = steady.decide(step)
        assert snapshot_of(steady) == before, "decide changed something"
        assert not (isinstance(answer.reply, Rejected) and answer.facts), "a refusal has no facts"
        assert decode(encode(answer.facts)) == answer.facts
        assert restarting.decide(step) == answer
        if answer.facts:
            steady.fold(encode(answer.facts))
            restarting.fold(encode(answer.facts))
        decided[type(step).__name__] += 1
        decided["refused"] += isinstance(answer.reply, Rejected)
    assert encode(list(steady.replayed().snapshot())) == snapshot_of(steady), "the journal folds to another state"


def test_the_commands_reached_every_rule():
    print(f"\n{sum(decided.values()) - decided['refused']} commands in {dict(decided)}")
    assert not decided or len(decided) > 25

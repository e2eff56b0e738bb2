"""Logs that have nothing special share their empty tables, and plain streams are columns in a snapshot."""

from __future__ import annotations

import sys

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import snapshot_facts as i
from driftq.core.model.frames import decode, encode
from driftq.core.state import logs
from driftq.core.state.logs import Log
from driftq.engine.snapshot_store import empty_broker
from driftq.wire.records import pack_one

STREAMS = 2_500


def decided(broker: Broker, command: c.Command) -> None:
    broker.apply_all(broker.decide(command, 1_000).facts)


def test_a_log_that_gets_entries_does_not_change_the_tables_of_others() -> None:
    log, other = Log(1, topic="t"), Log(2, topic="t")
    for one in (log, other):
        one.extend(10, 100, 5)
    log.add_reader(7)
    log.cancel(1)
    log.direct(2, "g")
    log.remember(f.ProducerSequence("p", 1, 0, 0), 0, 1, 5)
    log.mark((f.RecordSchedule(3, priority=1, not_before_ms=99, deadline_ms=50, timeout_ms=9, tracked=True),), 0, 5)
    log.trim(1)
    assert (log.readers, log.directed, log.deadline_of(3)) == ([7], {2: "g"}, 50)
    assert not log.is_plain()
    assert other.snapshot() == state_with_ten_records()
    assert not logs.NO_LANES.by_key
    assert not logs.NO_LANES.withdrawn
    assert not logs.NO_PRODUCERS.states
    assert not any((logs.NO_RANGES, logs.NO_NUMBERS, logs.NO_READERS, logs.NO_DELAYS, logs.NO_DIRECTED))


def state_with_ten_records() -> i.LogState:
    fresh = Log(2, topic="t")
    fresh.extend(10, 100, 5)
    return fresh.snapshot()


def test_plain_streams_are_columns_in_a_snapshot_and_others_are_not() -> None:
    broker = empty_broker()
    for number in range(STREAMS):
        batch = pack_one(b"x") if number % 3 else b""
        decided(
            broker, c.CreateStream(f"s/{number}", "text/plain", batch=batch, count=len(batch) and 1, payload_bytes=1)
        )
    decided(broker, c.CreateStream("closed", closed=True))
    decided(broker, c.CreateStream("short", ttl_s=60))
    decided(broker, c.CreateStream("fork", source="s/1"))
    facts = list(broker.snapshot())
    columns = [fact for fact in facts if isinstance(fact, i.PlainStreamsState)]
    assert sum(len(fact.paths) for fact in columns) == STREAMS
    assert sorted(fact.created.path for fact in facts if isinstance(fact, i.StreamState)) == ["closed", "fork", "short"]
    again = empty_broker()
    for fact in facts:
        again.apply_all(list(decode(encode([fact]))))
    assert list(again.snapshot()) == facts
    assert again.state.logs[broker.state.streams.by_path["s/4"].log_id].end == 1
    assert again.state.streams.by_path["s/1"].forks == 1


def test_an_idle_stream_is_small() -> None:
    log = Log(1)
    own = [getattr(log, name) for name in Log.__slots__ if getattr(log, name) is not getattr(Log(2), name)]
    assert sys.getsizeof(log) + sum(map(sys.getsizeof, own)) < 300

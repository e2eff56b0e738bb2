"""What needs attention: the sentences of the overview, and that callers see only what they may see."""

from __future__ import annotations

import asyncio
from typing import Any

from driftq.server.access.identity import Identity
from driftq.server.metrics.gauges import GaugeSample, PartitionRow, TopicRow
from driftq.server.observation.attention import attention
from driftq.server.observation.sampler import Sampler, Trend
from driftq.wire.grants import parse_grant
from driftq.wire.overview import DiskUse, Stalls
from tests.support.handler_fixture import HandlerFixture, handler_fixture

CALM = Stalls(0, 0.0, {})


def found(
    groups: list[PartitionRow] | None = None,
    topics: list[TopicRow] | None = None,
    *,
    trend: Trend | None = None,
    disk: DiskUse | None = None,
    stalls: Stalls = CALM,
    identity: Identity | None = None,
) -> list[tuple[str, str, str]]:
    async def run() -> Any:
        async with handler_fixture() as at:
            return judged(at, GaugeSample(groups or [], topics or [], {}, 0, {}))

    def judged(at: HandlerFixture, gauges: GaugeSample) -> Any:
        sampler = Sampler(at.engine, at.metrics)
        mark = sampler._mark()
        sample = sampler._made(gauges, mark, mark)
        if trend is not None:
            sampler.trend.append(trend)
        return attention(at.engine, sampler, sample, disk, stalls, identity)

    return [(item.kind, item.topic, item.severity) for item in asyncio.run(run())]


def group(lag: int, lag_s: float, in_flight: int = 0, topic: str = "t") -> PartitionRow:
    return PartitionRow(topic, "g", "0", lag, lag_s, in_flight, 0, 0)


def topic(dead_letters: int = 0, used: float = 0.0, oldest_s: float = 0.0, name: str = "t") -> TopicRow:
    return TopicRow(name, 10, 100, oldest_s, dead_letters, "g" if used else "", used)


def test_nothing_needs_attention_while_all_is_well():
    assert found([group(5, 1.0, 1)], [topic()]) == []


def test_messages_that_no_worker_takes():
    assert found([group(5, 61.0)]) == [("no_worker", "t", "warning")]
    assert found([group(5, 61.0, in_flight=1)]) == []


def test_a_lag_that_grows():
    def trend(lag: int) -> Trend:
        return Trend(-1e9, {("t", "g"): lag}, {})

    assert found([group(500, 5.0, 1)], trend=trend(100)) == [("lag_grows", "t", "warning")]
    assert found([group(500, 5.0, 1)], trend=trend(490)) == []


def test_dead_letters_that_rise_and_those_that_wait():
    assert found([], [topic(dead_letters=3)]) == [("dead_letters", "t", "notice")]
    rising = found([], [topic(dead_letters=3)], trend=Trend(0.0, {}, {"t": 1}))
    assert rising == [("dead_letters_rise", "t", "warning")]


def test_a_backlog_and_a_topic_without_groups():
    assert found([], [topic(used=0.9)]) == [("backlog", "t", "warning")]
    assert found([], [topic(used=1.0)]) == [("backlog", "t", "critical")]
    assert found([], [topic(oldest_s=100.0)]) == [("no_group", "t", "notice")]
    assert found([], [topic(oldest_s=100.0, name=name) for name in ("t.history", "_audit")]) == []


def test_a_paused_group_is_not_one_without_workers():
    assert found([group(5, 61.0)._replace(is_paused=True)]) == [("paused", "t", "notice")]
    assert found([group(5, 1.0)._replace(is_paused=True)]) == []


def test_a_disk_that_is_nearly_full_and_stalls():
    def disk(free_bytes: int) -> DiskUse:
        return DiskUse({}, free_bytes, 100 << 30, 0, 0)

    assert found(disk=disk(5 << 30)) == [("disk_nearly_full", "", "warning")]
    assert found(disk=disk(50 << 30)) == []
    assert found(stalls=Stalls(3, 500.0, {"sweep": 3})) == [("loop_stalls", "", "warning")]


def test_callers_see_only_what_their_grants_cover():
    rows = [group(5, 61.0), group(5, 61.0, topic="other.t")]
    identity = Identity("x", tuple(map(parse_grant, ("observe", "read:other.*"))))
    assert found(rows, identity=identity) == [("no_worker", "other.t", "warning")]

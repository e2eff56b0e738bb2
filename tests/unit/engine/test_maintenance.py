"""Maintenance: regular sweeps run in rounds, and other work gets its turns between the commands of a round."""

from __future__ import annotations

import asyncio

import pytest

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.engine import maintenance
from driftq.engine.engine import Engine
from driftq.testing.clock import HandClock
from driftq.wire.records import pack_one
from tests.support.loop_turns import measured
from tests.support.wait import until

TOPICS = 2_000
TURN_S = 0.02


def test_a_round_of_retention_over_many_topics_has_no_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "INTERVAL_S", 0.01)
    monkeypatch.setattr(maintenance, "RETENTION_INTERVAL_S", 0.0)

    async def run() -> None:
        clock = HandClock()
        engine = Engine.in_memory(clock=clock)
        for number in range(TOPICS):
            await engine.submit(c.CreateTopic(f"t{number}", 1, TopicConfig(retention_ms=1_000)))
            await engine.submit(c.Produce(f"t{number}", pack_one(b"value"), 1, 5))
        logs = [engine.latest_state.logs[topic.log_ids[0]] for topic in engine.latest_state.topics.values()]

        async def all_trimmed() -> bool:
            return all(log.start == log.end for log in logs)

        assert not await all_trimmed()
        clock.move(100_000)
        _, turns = await measured(until(all_trimmed, 20))
        assert turns.longest < TURN_S
        await engine.close()

    asyncio.run(run())

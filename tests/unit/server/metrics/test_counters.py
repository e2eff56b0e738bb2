"""Counters and gauges of a limited number of names, and the buckets of a histogram."""

from __future__ import annotations

import asyncio

import pytest

from driftq.core.model.limits import BrokerLimits
from driftq.server.metrics.counters import Counters, Histogram
from driftq.server.metrics.gauges import Gauges
from tests.support.handler_fixture import handler_fixture


def test_names_past_the_limit_are_counted_as_other():
    async def check():
        async with handler_fixture(limits=BrokerLimits(topics_max=50)) as at:
            counts = Counters(at.engine.latest_state, names_max=3)
            at.engine.sequencer.observers.append(counts.observe)
            for number in range(6):
                await at.call("POST", "/v1/topics", {"name": f"t{number}"})
                await at.call("POST", "/v1/produce", {"topic": f"t{number}", "value": "x"})
                await at.call("POST", "/v1/claim", {"topic": f"t{number}", "group": "g", "owner": "o"})
            assert {name: tally.messages for name, tally in counts.topics.items()} == {
                "t0": 1, "t1": 1, "t2": 1, "other": 3,
            }  # fmt: skip
            assert len(counts.groups) == 4
            assert counts.groups["other", "other"].delivered == 3
            sample = await Gauges(at.engine, rows_max=2).sample()
            assert [(row.topic, row.lag, row.in_flight) for row in sample.partitions] == [
                ("t0", 1, 1), ("t1", 1, 1), ("other", 4, 4),
            ]  # fmt: skip
            assert [(row.topic, row.messages) for row in sample.topics] == [("t0", 1), ("t1", 1), ("other", 4)]

    asyncio.run(check())


@pytest.mark.parametrize(("seconds", "bucket"), [(0.5, "1"), (1, "1"), (1.5, "2"), (9, "+Inf")])
def test_an_observation_falls_into_the_first_bucket_that_holds_it(seconds, bucket):
    histogram = Histogram((1, 2))
    histogram.observe(seconds)
    counts = dict(histogram.buckets())
    assert counts[bucket] == 1
    assert counts["+Inf"] == 1
    assert sum(counts.values()) == {"1": 3, "2": 2, "+Inf": 1}[bucket]
    assert histogram.total == seconds

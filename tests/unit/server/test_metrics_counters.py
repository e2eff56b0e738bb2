"""Counters from facts, gauges from the state, and names that stay few."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from driftq.core.model.limits import BrokerLimits
from driftq.server.metrics.counters import Counters
from driftq.server.metrics.gauges import Gauges
from driftq.server.metrics.histogram import Histogram
from driftq.server.metrics.registry import METRICS
from tests.support.handler_fixture import HandlerFixture, handler_fixture


def run(coroutine):
    return asyncio.run(coroutine)


async def scraped(at: HandlerFixture) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = (await at.call("GET", "/v1/metrics")).body.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(found, name, **labels):
    return found.get((name, tuple(sorted(labels.items()))))


async def story(at: HandlerFixture) -> None:
    """A bit of everything: produced, repeated, refused, delivered, acked, nacked, lost, buried, given back."""
    await at.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    for number in range(5):
        await at.call("POST", "/v1/produce", {"topic": "t", "value": "x" * 10, "key": str(number)})
    once = {"topic": "t", "value": "y", "envelope": {"idempotency_key": "k", "retry_policy": {"max_attempts": 1}}}
    await at.call("POST", "/v1/produce", once)
    await at.call("POST", "/v1/produce", once)
    await at.call("POST", "/v1/produce", {"topic": "missing", "value": "x"})
    claim = {"topic": "t", "group": "g", "owner": "o", "max": 6, "lease_ms": 1_000}
    held = (await at.call("POST", "/v1/claim", claim)).body["messages"]
    assert len(held) == 6
    base = {"topic": "t", "group": "g", "owner": "o", "partition": 0}
    await at.call("POST", "/v1/ack", {**base, "offset": 0})
    await at.call("POST", "/v1/ack", {**base, "offset": 1, "owner": "thief"})
    for offset in (1, 4, 5):
        await at.call("POST", "/v1/nack", {**base, "offset": offset, "reason": "no"})
    items = [{"partition": 0, "offset": 2}]
    await at.call("POST", "/v1/extend", {"topic": "t", "group": "g", "owner": "o", "messages": items, "lease_ms": 500})
    await at.call("POST", "/v1/release", {"topic": "t", "group": "g", "owner": "o", "messages": items})
    at.clock.move(2_000)
    assert (await at.call("POST", "/v1/claim", {**claim, "max": 1})).status == 200  # the lease of offset 3 has run out


def test_what_happened_is_counted():
    async def check():
        async with handler_fixture() as at:
            await story(at)
            found = await scraped(at)
            group = {"topic": "t", "group": "g"}
            assert value(found, "driftq_messages_produced_total", topic="t") == 6
            assert value(found, "driftq_produced_bytes_total", topic="t") == 56
            assert value(found, "driftq_produce_duplicates_total") == 1
            assert value(found, "driftq_produce_rejected_total", reason="not_found") == 1
            assert value(found, "produce_rejected_total", reason="not_found") == 1
            assert value(found, "driftq_deliveries_total", **group) == 7
            assert value(found, "driftq_settled_total", **group, how="acked") == 1
            assert value(found, "driftq_settled_total", **group, how="dead") == 1
            assert value(found, "driftq_failures_total", **group) == 2
            assert value(found, "driftq_lease_losses_total", **group) == 1
            assert value(found, "driftq_releases_total", **group) == 1
            assert value(found, "driftq_lease_extensions_total", **group) == 1
            assert value(found, "driftq_dlq_messages_total", topic="t", reason="max_attempts") == 1
            assert value(found, "dlq_messages_total", topic="t", reason="max_attempts") == 1
            assert value(found, "driftq_stale_lease_rejections_total") == 1
            assert value(found, "driftq_refusals_total", code="NOT_OWNER") == 1
            assert value(found, "driftq_events_total", event="topics_created") == 1

    run(check())


def test_what_is_so_now_is_shown():
    async def check():
        async with handler_fixture() as at:
            await story(at)
            at.clock.move(3_000)
            found = await scraped(at)
            place = {"topic": "t", "group": "g", "partition": "0"}
            assert value(found, "driftq_consumer_lag_messages", **place) == value(found, "consumer_lag", **place) == 4
            assert value(found, "driftq_consumer_lag_seconds", **place) == 5.0
            assert value(found, "driftq_inflight_messages", **place) == value(found, "inflight_messages", **place) == 1
            assert value(found, "driftq_resting_messages", **place) == 3
            assert value(found, "driftq_backlog_messages", topic="t") == 6
            assert value(found, "driftq_oldest_message_age_seconds", topic="t") == 5.0
            assert value(found, "driftq_dead_letters", topic="t") == 1
            assert value(found, "driftq_topics") == value(found, "driftq_groups") == 1
            assert value(found, "driftq_idempotency_keys") == 1
            assert value(found, "driftq_journal_lsn", state="durable") == at.engine.sequencer.durable_lsn

    run(check())


def test_a_redriven_letter_is_no_dead_letter_any_more():
    async def check():
        async with handler_fixture() as at:
            await story(at)
            await at.call("POST", "/v1/dlq/t/redrive", {})
            found = await scraped(at)
            assert value(found, "driftq_redriven_total", topic="t") == 1
            assert value(found, "driftq_dead_letters", topic="t") == 0

    run(check())


def test_every_metric_of_the_list_is_on_the_page_and_no_other():
    async def check():
        async with handler_fixture() as at:
            await story(at)
            page = (await at.call("GET", "/v1/metrics")).body.decode()
            kinds = {line.split()[2]: line.split()[3] for line in page.splitlines() if line.startswith("# TYPE")}
            ours = {name: kind for name, kind in kinds.items() if not name.startswith("process_")}
            assert ours == {metric.name: metric.kind for metric in METRICS}
            texts = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in page.splitlines() if "# HELP" in line}
            assert all(texts[metric.name] == metric.meaning for metric in METRICS)

    run(check())


def test_names_past_the_bound_are_counted_together():
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

    run(check())


def test_counters_outlive_the_topic_and_its_group():
    async def check():
        async with handler_fixture() as at:
            await story(at)
            await at.call("DELETE", "/v1/topics/t")
            found = await scraped(at)
            assert value(found, "driftq_messages_produced_total", topic="t") == 6
            assert value(found, "driftq_backlog_messages", topic="t") is None
            assert value(found, "driftq_events_total", event="topics_deleted") == 1

    run(check())


def test_a_name_cannot_break_out_of_its_label():
    async def check():
        async with handler_fixture() as at:
            await at.call("POST", "/v1/produce", {"topic": 'x"} 1\nevil 1', "value": "v"})
            page = (await at.call("GET", "/v1/metrics")).body.decode()
            assert "\nevil" not in page

    run(check())


@pytest.mark.parametrize(("seen", "bucket"), [(0.5, "1"), (1, "1"), (1.5, "2"), (9, "+Inf")])
def test_an_observation_falls_into_the_first_bucket_that_holds_it(seen, bucket):
    histogram = Histogram((1, 2))
    histogram.observe(seen)
    counts = dict(histogram.buckets())
    assert counts[bucket] == 1
    assert counts["+Inf"] == 1
    assert sum(counts.values()) == {"1": 3, "2": 2, "+Inf": 1}[bucket]
    assert histogram.total == seen

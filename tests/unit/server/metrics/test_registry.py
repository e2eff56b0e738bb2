"""The metrics page: counters from facts and gauges from the state, as Prometheus reads them."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from driftq.server.metrics.definitions import METRICS
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


def value(samples, name, **labels):
    return samples.get((name, tuple(sorted(labels.items()))))


async def history(at: HandlerFixture) -> None:
    """A little of everything: produced, repeated, refused, delivered, acked, nacked, expired, dead, released."""
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
    await at.call("POST", "/v1/ack", {**base, "offset": 1, "owner": "other"})
    for offset in (1, 4, 5):
        await at.call("POST", "/v1/nack", {**base, "offset": offset, "reason": "no"})
    items = [{"partition": 0, "offset": 2}]
    await at.call("POST", "/v1/extend", {"topic": "t", "group": "g", "owner": "o", "messages": items, "lease_ms": 500})
    await at.call("POST", "/v1/release", {"topic": "t", "group": "g", "owner": "o", "messages": items})
    at.clock.move(2_000)
    assert (await at.call("POST", "/v1/claim", {**claim, "max": 1})).status == 200  # the lease of offset 3 has run out


def test_facts_and_refusals_are_counted():
    async def check():
        async with handler_fixture() as at:
            await history(at)
            samples = await scraped(at)
            group = {"topic": "t", "group": "g"}
            assert value(samples, "driftq_messages_produced_total", topic="t") == 6
            assert value(samples, "driftq_produced_bytes_total", topic="t") == 126  # with an envelope of 70
            assert value(samples, "driftq_produce_duplicates_total") == 1
            assert value(samples, "driftq_produce_rejected_total", reason="not_found") == 1
            assert value(samples, "produce_rejected_total", reason="not_found") == 1
            assert value(samples, "driftq_deliveries_total", **group) == 7
            assert value(samples, "driftq_settled_total", **group, how="acked") == 1
            assert value(samples, "driftq_settled_total", **group, how="dead") == 1
            assert value(samples, "driftq_failures_total", **group) == 2
            assert value(samples, "driftq_lease_losses_total", **group) == 1
            assert value(samples, "driftq_releases_total", **group) == 1
            assert value(samples, "driftq_lease_extensions_total", **group) == 1
            assert value(samples, "driftq_dlq_messages_total", topic="t", reason="max_attempts") == 1
            assert value(samples, "dlq_messages_total", topic="t", reason="max_attempts") == 1
            assert value(samples, "driftq_stale_lease_rejections_total") == 1
            assert value(samples, "driftq_refusals_total", code="NOT_OWNER") == 1
            assert value(samples, "driftq_events_total", event="topics_created") == 1

    run(check())


def test_gauges_show_the_current_state():
    async def check():
        async with handler_fixture() as at:
            await history(at)
            at.clock.move(3_000)
            samples = await scraped(at)
            partition = {"topic": "t", "group": "g", "partition": "0"}
            assert (
                value(samples, "driftq_consumer_lag_messages", **partition)
                == value(samples, "consumer_lag", **partition)
                == 4
            )
            assert value(samples, "driftq_consumer_lag_seconds", **partition) == 5.0
            assert (
                value(samples, "driftq_inflight_messages", **partition)
                == value(samples, "inflight_messages", **partition)
                == 1
            )
            assert value(samples, "driftq_resting_messages", **partition) == 3
            assert value(samples, "driftq_backlog_messages", topic="t") == 6
            assert value(samples, "driftq_oldest_message_age_seconds", topic="t") == 5.0
            assert value(samples, "driftq_dead_letters", topic="t") == 1
            assert value(samples, "driftq_topics") == value(samples, "driftq_groups") == 1
            assert value(samples, "driftq_idempotency_keys") == 1
            assert value(samples, "driftq_journal_lsn", state="durable") == at.engine.sequencer.durable_lsn

    run(check())


def test_a_redriven_letter_is_not_counted_as_a_dead_letter():
    async def check():
        async with handler_fixture() as at:
            await history(at)
            await at.call("POST", "/v1/dlq/t/redrive", {})
            samples = await scraped(at)
            assert value(samples, "driftq_redriven_total", topic="t") == 1
            assert value(samples, "driftq_dead_letters", topic="t") == 0

    run(check())


def test_every_metric_of_the_list_is_on_the_page_and_no_other():
    async def check():
        async with handler_fixture() as at:
            await history(at)
            page = (await at.call("GET", "/v1/metrics")).body.decode()
            kinds = {line.split()[2]: line.split()[3] for line in page.splitlines() if line.startswith("# TYPE")}
            ours = {name: kind for name, kind in kinds.items() if not name.startswith("process_")}
            assert ours == {metric.name: metric.kind for metric in METRICS}
            texts = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in page.splitlines() if "# HELP" in line}
            assert all(texts[metric.name] == metric.meaning for metric in METRICS)

    run(check())


def test_counters_remain_after_the_topic_and_its_group_are_deleted():
    async def check():
        async with handler_fixture() as at:
            await history(at)
            await at.call("DELETE", "/v1/topics/t")
            samples = await scraped(at)
            assert value(samples, "driftq_messages_produced_total", topic="t") == 6
            assert value(samples, "driftq_backlog_messages", topic="t") is None
            assert value(samples, "driftq_events_total", event="topics_deleted") == 1

    run(check())


def test_a_name_cannot_break_out_of_its_label():
    async def check():
        async with handler_fixture() as at:
            await at.call("POST", "/v1/produce", {"topic": 'x"} 1\nevil 1', "value": "v"})
            page = (await at.call("GET", "/v1/metrics")).body.decode()
            assert "\nevil" not in page

    run(check())

"""Pipelines against a real broker, end to end: what they write, and that a second run continues after the first."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from driftq.client.api import DriftQ, connect
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import runs
from driftq.spark.pipelines.query_monitor import QueryFailed, Stop, watch
from driftq.spark.pipelines.registry import STREAMING_PIPELINES, decider_of, run_deadletters
from driftq.spark.pipelines.settings import Configuration, load
from driftq.spark.tables import open_table
from tests.spark.test_pipelines_frames import messages
from tests.support.server import Server, running
from tests.support.wait import until_now

WAIT_S = 400  # a second Spark starts slowly on a busy machine
RULES = """
[[rule]]
name = "invoices"
match = { labels = { kind = "invoice" }, value = { "total.currency" = ["EUR", "CHF"] } }
route = { target_topic = "invoices", label = "finance", partition = 1 }
[[rule]]
name = "one tenant apart"
match = { tenant = "ac*", key = "k?" }
route = { target_topic = "apart", meta = { reason = "noisy" } }
[[rule]]
name = "the rest stays"
match = { topic = "inbox" }
"""


def configured(server: Server, folder: Path, name: str, **values: Any) -> Configuration:
    defaults = {
        "source.url": server.url,
        "pipeline.once": True,
        "pipeline.checkpoint": str(folder / f"{name}.checkpoint"),
    }
    return load(name, values={**defaults, **{key.replace("__", "."): value for key, value in values.items()}})


def run_to_end(spark: SparkSession, configuration: Configuration) -> list[str]:
    """Run what is there to its end; the lines that were said."""
    lines: list[str] = []
    name = configuration.pipeline.name
    watch({name: lambda: STREAMING_PIPELINES[name](spark, configuration)}, Stop(), lines.append)
    return lines


def write(spark: SparkSession, server: Server, topic: str, *rows: dict[str, Any]) -> None:
    """Packed batches: they pass no router and no check of keys."""
    frame = messages(spark, *rows).drop("topic", "partition", "offset", "timestamp")
    frame.coalesce(1).write.format("driftq").options(url=server.url, topic=topic, mode="direct").mode("append").save()


def values_of(broker: DriftQ, topic: str) -> list[str]:
    values = []
    for partition in broker.topics.offsets(topic).partitions:
        values += [message.value for message in broker.topics.peek(topic, partition.partition, offset=0, limit=1_000)]
    return sorted(values)


def test_repeats_are_left_out_within_a_run_and_after_a_restart(spark, server, broker, tmp_path) -> None:
    broker.topics.create("orders", partitions=2)
    broker.topics.create("unique")
    config = configured(server, tmp_path, "dedupe", source__topics=("orders",), sink__topic="unique")

    write(spark, server, "orders", *({"value": b"%d" % n, "idempotency_key": f"k{n % 5}"} for n in range(20)))
    write(spark, server, "orders", {"value": b"plain"}, {"value": b"plain"})
    lines = run_to_end(spark, config)
    first = Counter(values_of(broker, "unique"))
    write(spark, server, "orders", {"value": b"0", "idempotency_key": "k0"}, {"value": b"9", "idempotency_key": "k9"})
    run_to_end(spark, config)

    assert (first["plain"], first.total()) == (2, 7)
    assert Counter(values_of(broker, "unique")) - first == Counter(["9"])
    assert any("22 rows" in line and "lag 0" in line for line in lines)


def test_the_pipeline_routes_as_the_broker_would(spark: SparkSession, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    rows: list[dict[str, Any]] = [
        {"value": b'{"total": {"currency": "EUR"}}', "labels": {"kind": "invoice"}, "run_id": "r1"},
        {"value": b'{"total": {"currency": "USD"}}', "labels": {"kind": "invoice"}},
        {"value": b"1", "key": b"k1", "tenant_id": "acme"},
        {"value": b"2", "key": b"k22", "tenant_id": "acme"},
        {"value": b"\xff\xfe", "key": b"k2", "tenant_id": "ac"},
    ]
    with (
        running(str(tmp_path / "broker"), "router.kind=rules", f"router.target={rules}") as server,
        connect(server.url) as broker,
    ):
        for topic in ("inbox", "invoices", "apart", "rest"):
            broker.topics.create(topic, partitions=2)
        write(spark, server, "inbox", *rows)
        config = configured(
            server, tmp_path, "route", source__topics=("inbox",), route__rules=str(rules), route__unrouted="rest"
        )
        run_to_end(spark, config)

        for row in rows[:4]:
            key, text = (row.get("key") or b"").decode(), row["value"].decode()
            envelope = {name: row[name] for name in ("labels", "tenant_id", "run_id") if name in row}
            response = server.call(
                "POST", "/v1/route", {"topic": "inbox", "key": key, "value": text, "envelope": envelope}
            )
            decision = response.json()
            target = decision["routed_topic"] if decision["routed_topic"] != "inbox" else "rest"
            partitions = range(2) if target == "rest" else [decision["partition"]]
            copies = [
                m for n in partitions for m in broker.topics.peek(target, n, offset=0, limit=100) if m.value == text
            ]
            assert len(copies) == 1, (row, decision)
            assert (copies[0].routing.label if copies[0].routing else "") == decision.get("label", "")
            assert (copies[0].routing.meta if copies[0].routing else None) == decision.get("meta")
        assert len(broker.topics.peek("apart", 0, offset=0)) + len(broker.topics.peek("apart", 1, offset=0)) == 2

        broker.topics.create("other")
        circle = replace(config, source=replace(config.source, topics=("invoices",)))
        with pytest.raises(SettingsError, match="'invoices' to 'invoices' again"):
            decider_of(circle)


def test_a_run_is_followed_to_its_end_across_a_restart_of_the_query(spark, server, broker, tmp_path) -> None:
    broker.topics.create("steps", history=True)
    broker.topics.create("other")
    for step, parent in (("plan", ""), ("act", "plan"), ("check", "plan")):
        broker.send("steps", step, run_id="r1", step_id=step, parent_step_id=parent, tenant="acme")
    config = configured(server, tmp_path, "runs", source__topics=("steps", "other"), sink__table=str(tmp_path / "runs"))
    plan, act = broker.claim("steps", "agents", max=2)
    plan.ack()
    act.nack("tool 7 is broken", delay_ms=0)

    run_to_end(spark, config)
    table = open_table(spark, config.sink.table)
    before = runs.story(table.read(), "r1")
    again, check = sorted(broker.claim("steps", "agents", max=2), key=lambda message: message.offset)
    again.reject("gave up")
    check.ack()
    run_to_end(spark, config)
    after = runs.story(table.read(), "r1")
    (run,) = runs.summaries(table.read()).collect()
    command = [sys.executable, "-m", "driftq.cli.main", "pipeline", "story", "--table", config.sink.table]
    printed = subprocess.run([*command, "r1"], capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert [line.split(",")[0] for line in before] == ["plan: succeeded", "  act: retrying", "  check: waiting"]
    assert [line.split(",")[0] for line in after] == ["plan: succeeded", "  act: dead", "  check: succeeded"]
    assert "2 attempts" in after[1]
    assert "gave up" in after[1]
    assert (run["state"], run["steps"], run["attempts"], run["failures"]) == ("dead", 3, 4, 1)
    assert (printed.stdout.splitlines(), printed.returncode) == (after, 0), printed.stderr


def test_windows_close_when_their_time_has_passed(spark, server, broker, tmp_path) -> None:
    """How ends find their messages is tried on frames; here it matters that the streaming plan holds."""
    broker.topics.create("orders", history=True)
    for number in range(6):
        broker.send("orders", str(number), tenant="acme" if number % 2 else "bee")
    broker.ack(broker.claim("orders", "g", max=4, lease_ms=60_000))
    began_s = time.monotonic()
    until_now(lambda: time.monotonic() > began_s + 1.3, 10)  # time itself is the condition: windows end by it
    broker.send("orders", "later")
    config = configured(
        server, tmp_path, "metrics", source__topics=("orders",), sink__table=str(tmp_path / "metrics"),
        metrics__window="100 milliseconds", metrics__watermark="1 millisecond", metrics__history=True,
        metrics__latency_max="1 second",
    )  # fmt: skip

    run_to_end(spark, config)

    rows = open_table(spark, config.sink.table).read().collect()
    assert sum(row["produced"] for row in rows) == sum(row["size_bytes"] for row in rows) == 6
    assert sum(row["acked"] for row in rows) <= 4
    assert {row["tenant_id"] for row in rows} == {"acme", "bee"}


def test_dead_letters_are_counted_by_kind_and_redriven_once(spark, server, broker, tmp_path) -> None:
    broker.topics.create("orders")
    for number in range(5):
        broker.send("orders", str(number))
    for message in broker.claim("orders", "g", max=5):
        message.reject(f"timeout after {message.offset} ms" if message.offset < 3 else "no such user 'ann'")
    config = configured(server, tmp_path, "deadletters", source__topics=("orders",))
    back = replace(config.deadletters, redrive=True, fingerprint="timeout after … ms", rate_per_s=1_000)
    lines: list[str] = []

    code = run_deadletters(spark, config, Stop(), lines.append)
    run_deadletters(spark, replace(config, deadletters=back), Stop(), lines.append)
    run_deadletters(spark, replace(config, deadletters=back), Stop(), lines.append)

    assert code == 0
    assert lines[0].split() == ["3", "orders", "g", "rejected", "timeout", "after", "…", "ms"]
    assert [line for line in lines if "refused" in line] == [
        "orders: 3 redriven, 0 refused, 0 left",
        "orders: 0 redriven, 0 refused, 0 left",
    ]
    assert lines[-2] == "no dead letters"
    assert values_of(broker, "orders") == ["0", "0", "1", "1", "2", "2", "3", "4"]


def test_a_function_that_fails_ends_the_query_with_its_own_words(spark, server, broker, tmp_path) -> None:
    broker.topics.create("in")
    broker.topics.create("out")
    broker.send("in", "not a number")
    config = configured(
        server, tmp_path, "transform", source__topics=("in",), sink__topic="out", transform__each="builtins:int"
    )

    with pytest.raises(QueryFailed, match=r"transform: ValueError: invalid literal"):
        run_to_end(spark, config)
    assert values_of(broker, "out") == []

"""The pure part of the pipelines: frames in, frames out, no broker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from driftq.spark.pipelines import deadletters, dedupe, metrics, route, runs, transform
from driftq.spark.source import columns
from driftq.wire.errors import fingerprint
from driftq.wire.router import RouteDecision, RouteInput

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
SCHEMA = columns.spark_schema((*columns.BASE, *columns.ENVELOPE))


def messages(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Rows as the source gives them; what is not said is null."""
    whole = []
    for number, row in enumerate(rows):
        base = {"topic": "orders", "partition": 0, "offset": number, "value": b"{}"}
        whole.append({"timestamp": NOON + timedelta(seconds=number), **base, **row})
    return spark.createDataFrame([tuple(row.get(name) for name in SCHEMA.names) for row in whole], SCHEMA)


def upper(value: bytes) -> str | None:
    return value.decode().upper() if value != b"no" else None


def count_by_key(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").agg(F.count("*").cast("string").alias("value"))


def by_value(message: RouteInput) -> RouteDecision | None:
    body = message.json()
    return RouteDecision(target_topic=body["to"], partition_override=1) if body and "to" in body else None


def by_frame(frame: Any) -> Any:
    return frame.assign(target_topic=frame["tenant_id"].map({"acme": "big"}))[["target_topic"]]


def test_repeats_go_by_tenant_topic_and_key_and_messages_without_a_key_stay(spark: SparkSession) -> None:
    unique = dedupe.deduplicated(
        messages(
            spark,
            {"idempotency_key": "a"},
            {"idempotency_key": "a"},
            {"idempotency_key": "a", "tenant_id": "acme"},
            {"idempotency_key": "a", "topic": "returns"},
            {"idempotency_key": ""},
            {},
            {},
        )
    )

    identities = sorted(
        (row["topic"], row["tenant_id"] or "", row["idempotency_key"] or "") for row in unique.collect()
    )
    assert identities == [("orders", "", "")] * 3 + [("orders", "", "a"), ("orders", "acme", "a"), ("returns", "", "a")]
    assert unique.columns == SCHEMA.names


RULES = """
[[rule]]
name = "invoices"
match = { topic = "or*", labels = { kind = "invoice" }, value = { "total" = 3 } }
route = { target_topic = "invoices", label = "finance", partition = 2, meta = { why = "x" } }
[[rule]]
name = "labelled"
match = { key = "k" }
route = { label = "plain" }
"""


def test_rules_decide_topic_partition_label_and_meta_and_the_rest_is_left_out(spark: SparkSession) -> None:
    source = messages(
        spark,
        {"labels": {"kind": "invoice"}, "value": b'{"total": 3}', "run_id": "r1"},
        {"key": b"k"},
        {"value": b"\xff"},
    )

    routed = route.routed(source, route.ByRules(RULES), default="rest").collect()

    assert [(row["topic"], row["partition"], row["routing_label"], row["run_id"]) for row in routed] == [
        ("invoices", 2, "finance", "r1"),
        ("rest", None, "plain", None),
    ]
    assert routed[0]["routing_meta"] == {"rule": "invoices", "why": "x"}
    assert "offset" not in routed[0].asDict()


def test_functions_of_messages_and_of_frames_route_and_unmatched_messages_go_to_the_default(
    spark: SparkSession,
) -> None:
    source = messages(spark, {"value": b'{"to": "a"}', "tenant_id": "acme"}, {"value": b"x", "tenant_id": "small"})

    one = route.routed(source, route.ByFunction(f"{__name__}:by_value"), unrouted="rest").collect()
    many = route.routed(source, route.ByFrames(f"{__name__}:by_frame")).collect()

    assert [(row["topic"], row["partition"]) for row in one] == [("a", 1), ("rest", None)]
    assert [(row["topic"], row["tenant_id"]) for row in many] == [("big", "acme")]


def test_a_message_that_is_routed_in_a_loop_stops_the_query(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match="its own topic"):
        route.routed(messages(spark, {}), route.ByRules(RULES), unrouted="orders").collect()


def test_a_value_function_changes_values_and_keeps_the_envelope(spark: SparkSession) -> None:
    source = messages(spark, {"value": b"a", "run_id": "r", "labels": {"k": "v"}}, {"value": b"no"}, {"value": b"b"})

    mapped = transform.mapped(source, f"{__name__}:upper").collect()

    assert [(bytes(row["value"]), row["run_id"]) for row in mapped] == [(b"A", "r"), (b"B", None)]
    assert mapped[0]["labels"] == {"k": "v"}
    assert not set(transform.ORIGIN_COLUMNS) & set(mapped[0].asDict())


def test_a_frame_function_must_give_a_frame_with_values(spark: SparkSession) -> None:
    source = messages(spark, {"key": b"a"}, {"key": b"a"})

    assert transform.transformed(source, count_by_key).first()["value"] == "2"  # type: ignore[index]
    with pytest.raises(transform.NoFunction, match="a column `value`"):
        transform.transformed(source, lambda frame: frame.select("key"))


@pytest.mark.parametrize("target", ["nothing", "no_such_module:x", f"{__name__}:no_such_name", f"{__name__}:NOON"])
def test_a_name_that_leads_to_no_function_is_refused(target: str) -> None:
    with pytest.raises(transform.NoFunction, match=target):
        transform.load_function(target)


ERRORS = [
    "timeout after 31 ms for user 'ann' and \"bob\"",
    "timeout after 7 ms for user 'x' and \"\"",
    "id 550e8400-e29b-41d4-a716-446655440000 at 0xFFee: deadbeef",
    "first line 1\nsecond line 2",
    "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'vat' of order 12\n\n",
    "Traceback (most recent call last):",
    "größe 12 überé34 deadbeefé cafebabe1234_x",
    "x" * 150 + " 1 " + "y" * 100,
    "",
]


def test_spark_and_the_broker_call_an_error_by_the_same_name(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(error,) for error in ERRORS], "error STRING")

    fingerprints = frame.select(deadletters.fingerprint(F.col("error"))).collect()

    assert [row[0] for row in fingerprints] == [fingerprint(error) for error in ERRORS]
    assert fingerprints[0][0] == fingerprints[1][0] == "timeout after … ms for user … and …"


def test_windows_count_ends_failures_and_latencies_of_what_happened_in_them(spark: SparkSession) -> None:
    def happened(second: int, kind: str, latency_ms: int | None = None) -> tuple[Any, ...]:
        return (NOON + timedelta(seconds=second), "orders", "acme", "", kind, 10, latency_ms)

    names = "at TIMESTAMP, topic STRING, tenant_id STRING, label STRING, kind STRING, size_bytes LONG, latency_ms LONG"
    early = [happened(1, "produced"), happened(2, "acked", 40), happened(3, "failed"), happened(4, "acked", 60)]
    late = [happened(61, "expired"), happened(62, "dead"), happened(63, "produced")]
    frame = spark.createDataFrame([*early, *late], names)

    first, second = metrics.windowed(frame).orderBy("window_start").collect()

    assert (first["produced"], first["acked"], first["failed"], first["dead"]) == (1, 2, 1, 0)
    assert (first["p50_ms"], first["p99_ms"], first["max_ms"]) == (40, 60, 60)
    assert first["error_rate"] == pytest.approx(1 / 3)
    assert (second["failed"], second["dead"], second["error_rate"], second["p50_ms"]) == (1, 1, 1.0, None)


def test_an_end_counts_for_the_tenant_and_label_of_its_message_unless_it_comes_too_late(spark: SparkSession) -> None:
    def history_row(event: str, offset: int, second: int) -> dict[str, Any]:
        at = (NOON + timedelta(seconds=second)).isoformat()
        value = {"event": event, "topic": "orders", "partition": 0, "offset": offset, "group": "g", "at": at}
        return {"topic": "orders.history", "value": json.dumps(value).encode()}

    source = messages(
        spark,
        {"tenant_id": "acme", "routing_label": "hot"},
        {"tenant_id": "bee"},
        history_row("delivered", 0, 2),
        history_row("acked", 0, 3),
        history_row("failed", 1, 4),
        history_row("acked", 1, 90),
        {"topic": "orders.history", "value": b"not an event"},
    )

    endings = metrics.endings(source, latency_max="1 minute").collect()

    assert sorted((row["tenant_id"], row["label"], row["kind"], row["latency_ms"]) for row in endings) == [
        ("acme", "hot", "acked", 3_000),
        ("bee", "", "failed", None),
    ]
    assert metrics.arrivals(source).count() == 2


def test_a_run_is_summed_up_and_shown_with_children_under_their_parents(spark: SparkSession) -> None:
    def step(offset: int, step_id: str, parent: str, state: str, version: int, error: str = "") -> tuple[Any, ...]:
        at = NOON + timedelta(seconds=offset)
        ended = at + timedelta(milliseconds=500) if state in ("succeeded", "dead") else None
        group = "g" if version > 1 else ""
        return ("orders", 0, offset, group, "r1", step_id, parent, "acme", "", state, 1, 0, "w", error, 300, version,
                at, at if group else None, ended)  # fmt: skip

    names = (
        "topic STRING, partition INT, message_offset BIGINT, `group` STRING, run_id STRING, step_id STRING, "
        "parent_step_id STRING, tenant_id STRING, task STRING, state STRING, attempts INT, failures INT, "
        "owner STRING, error STRING, busy_ms BIGINT, version INT, produced_at TIMESTAMP, started_at TIMESTAMP, "
        "ended_at TIMESTAMP"
    )
    table = spark.createDataFrame(
        [
            step(0, "plan", "", "waiting", 1),
            step(0, "plan", "", "succeeded", 3),
            step(1, "act", "plan", "running", 2),
            step(1, "act", "plan", "dead", 4, "no such tool"),
            step(2, "check", "plan", "waiting", 1),
        ],
        names,
    )

    (run,) = runs.summaries(table).collect()
    lines = runs.story(table, "r1")

    assert (run["run_id"], run["state"], run["steps"], run["error"]) == ("r1", "dead", 3, "no such tool")
    assert run["took_ms"] == 2_000
    assert lines == [
        "plan: succeeded, orders, by g, 1 attempt, 500 ms, 300 of them at work",
        "  act: dead, orders, by g, 1 attempt, 500 ms, 300 of them at work, error: no such tool",
        "  check: waiting, orders, 1 attempt",
    ]
    assert runs.story(table, "r2") == []

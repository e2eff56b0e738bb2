"""Replays through a real Spark and broker: what is chosen, in order, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from driftq.client.calls.queue import item
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines.archive import dated
from driftq.spark.pipelines.query_monitor import Stop
from driftq.spark.pipelines.replay import request_of, run_replay
from driftq.spark.pipelines.settings import Configuration, from_tree
from driftq.spark.tables import DeltaTable
from driftq.wire.message import decode_head
from tests.spark.topic_reader import topic_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.client.api import DriftQ
    from tests.support.server import Server


def configured(url: str, source: list[str], target: str, **replay: Any) -> Configuration:
    return from_tree(
        {
            "pipeline": {"name": "replay"},
            "source": {"url": url, "topics": source},
            "sink": {"topic": target},
            "replay": replay,
        }
    )


def values(server: Server, topic: str) -> list[str]:
    return [record.value.decode() for record in topic_records(server.url, topic)]


def test_a_range_of_a_topic_is_replayed_once_in_order(spark: SparkSession, server: Server, broker: DriftQ) -> None:
    for topic in ("orders", "again"):
        broker.topics.create(topic)
    broker.send_many("orders", [item(f"{n}", key="k", run_id=f"r{n}", labels={"a": "b"}) for n in range(20)])
    lines: list[str] = []

    rehearsal = configured(server.url, ["orders"], "again", from_offset=5, to_offset=15, dry_run=True)
    assert run_replay(spark, rehearsal, Stop(), lines.append) == 0
    assert values(server, "again") == []
    assert lines[0].startswith("orders/0: 10 rows, offsets 5–14, ")
    assert lines[1].startswith("dry run: 10 rows would be written to again as replay-again-")

    performance = configured(server.url, ["orders"], "again", from_offset=5, to_offset=15)
    for _ in range(2):
        assert run_replay(spark, performance, Stop(), lines.append) == 0

    assert values(server, "again") == [str(n) for n in range(5, 15)]
    record = topic_records(server.url, "again")[0]
    envelope = decode_head(record.head).envelope
    broker.topics.delete("again")
    broker.topics.create("again")
    assert run_replay(spark, performance, Stop(), lines.append) == 0
    assert len(values(server, "again")) == 10, "a topic that was created again has no message of an earlier replay"
    assert record.key == b"k"
    assert envelope is not None
    assert (envelope.run_id, envelope.labels) == ("r5", {"a": "b"})


def test_a_table_is_replayed_and_jobs_stay_jobs(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    for topic in ("orders", "again"):
        broker.topics.create(topic)
    broker.send_many("orders", [item("plain"), item("work", task="mail", priority=3)])
    rows = spark.read.format("driftq").options(url=server.url, subscribe="orders", includeEnvelope="true").load()
    DeltaTable(spark, str(tmp_path), ("topic", "date")).commit("w", 0, dated(rows))
    broker.topics.delete("orders")

    for _ in range(2):
        run_replay(spark, configured(server.url, [], "again", table=str(tmp_path)), Stop(), lambda _: None)

    assert sorted(values(server, "again")) == ["plain", "work"]
    jobs = [decode_head(record.head).job for record in topic_records(server.url, "again") if record.value == b"work"]
    assert [(job.task, job.priority) for job in jobs if job is not None] == [("mail", 3)]


@pytest.mark.parametrize(
    ("source", "replay", "message"),
    [
        ([], {}, r"needs replay\.table or source\.topics"),
        (["again"], {}, "into itself"),
        (["orders"], {"from_time": "yesterday"}, r"replay\.from_time"),
    ],
)
def test_a_replay_that_makes_no_sense_is_refused(source: list[str], replay: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        request_of(configured("", source, "again", **replay))


def test_the_same_request_has_the_same_name_and_another_request_another() -> None:
    one = request_of(configured("", ["orders"], "again", from_offset=1))

    assert one.writer() == request_of(configured("", ["orders"], "again", from_offset=1)).writer()
    assert one.writer() != request_of(configured("", ["orders"], "again", from_offset=2)).writer()
    assert one.writer() != request_of(configured("", ["orders"], "other", from_offset=1)).writer()

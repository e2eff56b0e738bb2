"""Topics into a table through a real Spark: once, with the envelope, by day, and on after every kind of end."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from driftq.client.calls.queue import item
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines.archive import dated, resume_offsets, start_archive
from driftq.spark.pipelines.audit import audit
from driftq.spark.pipelines.json_values import parsed
from driftq.spark.pipelines.settings import Configuration, from_tree
from driftq.spark.tables import open_table, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.client.api import DriftQ
    from tests.support.server import Server

KILLS = 1
DRIVER = Path(__file__).with_name("archive_driver.py")


def configured(server: Server, table: Path, topics: list[str], **archive: Any) -> Configuration:
    return from_tree(
        {
            "pipeline": {"name": "archive", "once": True},
            "source": {"url": server.url, "topics": topics, "max_offsets": archive.pop("max_offsets", 0)},
            "sink": {"table": str(table)},
            "archive": archive,
        }
    )


def run(spark: SparkSession, configuration: Configuration) -> None:
    query = start_archive(spark, configuration)
    assert query.awaitTermination(120)


def places(table: Path) -> Counter[tuple[str, int, int]]:
    """What another reader reads."""
    rows = deltalake.DeltaTable(table).to_pyarrow_table(columns=["topic", "partition", "offset"]).to_pylist()
    return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)


def fill(broker: DriftQ, topic: str, count: int, partitions: int = 2) -> None:
    broker.topics.create(topic, partitions=partitions)
    with broker.producer(topic) as producer:
        for number in range(count):
            producer.send(f"{topic} {number}", key=f"k{number % 7}", partition=number % partitions)


def whole(broker: DriftQ, *topics: str) -> Counter[tuple[str, int, int]]:
    """Every offset that the broker has."""
    offsets: Counter[tuple[str, int, int]] = Counter()
    for topic in topics:
        for partition in broker.topics.describe(topic).partitions:
            offsets.update(
                (topic, partition.partition, offset) for offset in range(partition.start_offset, partition.end_offset)
            )
    return offsets


def test_topics_become_a_table_by_topic_and_day_that_grows(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    fill(broker, "orders", 40)
    broker.topics.create("mail")
    broker.send_many("mail", [item(b"\xff\x00", key="k", run_id="r1", tenant="acme", labels={"tier": "gold"})])
    configuration = configured(server, table, ["orders", "mail"], max_offsets=15, compact_files=2)

    run(spark, configuration)
    fill(broker, "orders", 5)
    run(spark, configuration)

    assert places(table) == whole(broker, "orders", "mail")
    assert sorted(path.name for path in table.glob("topic=*")) == ["topic=mail", "topic=orders"]
    mail = read_table(spark, str(table)).where("topic = 'mail'").first()
    assert mail is not None
    assert (bytes(mail.key), bytes(mail.value), mail.run_id, mail.tenant_id) == (b"k", b"\xff\x00", "r1", "acme")
    assert mail.labels == {"tier": "gold"}
    assert mail.date.isoformat() == f"{mail.timestamp:%Y-%m-%d}"
    live = [path for path in deltalake.DeltaTable(table).file_uris() if "topic=orders" in path]
    assert len(live) < 4, "small files were not put together"


def test_after_a_lost_checkpoint_the_query_resumes_at_the_end_of_the_table(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    fill(broker, "orders", 10)
    configuration = configured(server, table, ["orders"])
    run(spark, configuration)
    shutil.rmtree(f"{table}.checkpoints")
    fill(broker, "orders", 6)

    run(spark, configuration)

    assert places(table) == whole(broker, "orders")


def test_json_that_does_not_fit_is_kept_apart_and_nothing_is_missing(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    broker.topics.create("orders")
    broker.send_many(
        "orders", [b'{"id": 1, "total": 2.5, "more": 0}', b"nonsense", b'{"total": 1}', b"\xff", b'{"id": 2}']
    )
    run(spark, configured(server, table, ["orders"], schema="id BIGINT NOT NULL, total DOUBLE"))
    broker.send("orders", b'{"id": 3, "note": "wide"}')

    run(spark, configured(server, table, ["orders"], schema="id BIGINT NOT NULL, total DOUBLE, note STRING"))

    archived = open_table(spark, str(table))
    quarantined = open_table(spark, f"{table}.quarantine")
    bodies = [tuple(row.body) for row in archived.read().orderBy("offset").collect()]
    assert bodies == [(1, 2.5, None), (2, None, None), (3, None, "wide")]
    reasons = {row.offset: row.quarantine_reason for row in quarantined.read().collect()}
    assert reasons == {1: "the value does not fit the schema", 2: "id is missing", 3: "the value is not UTF-8 text"}
    assert audit(spark, [archived, quarantined], broker, {"url": server.url}).code == 0
    assert audit(spark, [archived], broker, {"url": server.url}).code == 1, "without the quarantine rows are missing"


def test_a_value_fits_a_schema_or_it_does_not(spark: SparkSession) -> None:
    fit = [b'{"id": 1}', b"{}", b' {"id": null, "more": [1]} ']
    unfit = [
        b'{"id": "1"}',
        b'{"id": 1.5}',
        b'{"id": 99999999999999999999}',
        b"[1]",
        b'"text"',
        b"null",
        b"",
        b'{"id": 1',
    ]
    rows = spark.createDataFrame([(value,) for value in fit + unfit], "value BINARY")

    parsed_rows = parsed(rows, "id BIGINT").collect()

    assert sorted(bytes(row.value) for row in parsed_rows if row.quarantine_reason is None) == sorted(fit)
    assert sorted(bytes(row.value) for row in parsed_rows if row.body is not None) == sorted(fit)


def test_the_day_of_a_message_does_not_depend_on_the_time_zone(spark: SparkSession) -> None:
    rows = spark.sql("SELECT timestamp_millis(x) AS timestamp FROM VALUES (1700006399999), (1700006400000) AS t(x)")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
        days = [str(row.date) for row in dated(rows).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")

    assert days == ["2023-11-14", "2023-11-15"]


def test_a_schema_that_is_none_is_refused_before_anything_runs(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    for schema in ("id BIGINTT", "INT"):
        with pytest.raises(SettingsError, match=r"archive\.schema"):
            start_archive(spark, configured(server, tmp_path / "table", ["orders"], schema=schema))


def test_partitions_that_a_table_has_never_seen_begin_at_their_start() -> None:
    text = resume_offsets({"a": {0: 5}, "gone": {0: 1}}, {"a": [0, 1], "b": [0]})

    assert text == '{"a": {"0": 5, "1": -2}, "b": {"0": -2}}'


@pytest.mark.timeout(900)  # every driver starts a Java of its own
def test_a_driver_that_is_killed_again_and_again_archives_every_message_once(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path, seed: int
) -> None:
    """Each driver is killed at a moment of its own, counted from the beginning of some micro-batch; the last one, in
    this process, finishes. Compactions happen all the time."""
    chance = random.Random(seed)
    table = tmp_path / "table"
    fill(broker, "orders", 3_000)
    settings = [server.url, str(table), "orders", "75", "3"]

    for _ in range(KILLS):
        killed_after(settings, batches=chance.randint(1, 3), delay_s=chance.uniform(0.0, 0.8))
    configuration = configured(server, table, ["orders"], max_offsets=1_000, compact_files=3)
    run(spark, configuration)

    assert places(table) == whole(broker, "orders")
    report = audit(spark, [open_table(spark, str(table))], broker, {"url": server.url})
    assert report.code == 0, report.lines()


def killed_after(settings: list[str], *, batches: int, delay_s: float) -> None:
    """Run a driver until so many micro-batches have begun and a moment has passed; then kill it with its Java."""
    with subprocess.Popen(
        [sys.executable, str(DRIVER), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as driver:
        assert driver.stdout is not None
        for _ in range(batches):
            line = driver.stdout.readline()
            assert line.startswith("batch"), "the driver ended by itself"
        select.select([driver.stdout], [], [], delay_s)
        os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL

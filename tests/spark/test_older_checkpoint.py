"""Checkpoints that are older than what was written: after a power failure, or put back from a copy. Every sink and the
archive are exact, or refuse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

import driftq
from driftq.spark.pipelines.archive import start_archive
from driftq.spark.pipelines.settings import from_tree
from tests.spark.topic_reader import topic_records
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.client.api import DriftQ

KINDS = ("staged", "direct", "archive")


class Copy:
    """A query that copies the topic `in`, in one way, and what it has written."""

    def __init__(self, spark: SparkSession, server: Server, folder: Path, kind: str, limit: int = 0) -> None:
        self.spark = spark
        self.server = server
        self.kind = kind
        self.limit = limit
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"

    def start(self) -> Any:
        if self.kind == "archive":
            tree = {
                "pipeline": {"name": "archive", "once": True, "checkpoint": str(self.checkpoint)},
                "source": {"url": self.server.url, "topics": ["in"], "max_offsets": self.limit},
                "sink": {"table": str(self.table)},
            }
            return start_archive(self.spark, from_tree(tree))
        source = self.spark.readStream.format("driftq").option("url", self.server.url).option("subscribe", "in")
        if self.limit:
            source = source.option("maxOffsetsPerTrigger", self.limit)
        rows = source.option("startingOffsets", "earliest").load().select("key", "value")
        return (
            rows.writeStream.format("driftq").option("url", self.server.url).option("topic", self.kind)
            .option("mode", self.kind).option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True).start()
        )  # fmt: skip

    def run(self) -> None:
        """Until everything is copied. Raises why the query failed."""
        assert self.start().awaitTermination(120)

    def written(self) -> Counter[str]:
        if self.kind == "archive":
            values = deltalake.DeltaTable(self.table).to_pyarrow_table(columns=["value"]).column("value")
            return Counter(value.decode() for value in values.to_pylist())
        return Counter(record.value.decode() for record in topic_records(self.server.url, self.kind))

    def done(self) -> int:
        """The last micro-batch that is done."""
        return max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())

    def go_back(self, batches: int) -> None:
        """As if the last micro-batches had never been written to the checkpoint."""
        for number in range(self.done() - batches + 1, self.done() + 1):
            for name in ("offsets", "commits"):
                for path in (self.checkpoint / name).glob(f"*{number}*"):
                    if path.name in (str(number), f".{number}.crc"):
                        path.unlink()


def send(broker: DriftQ, first: int, end: int, partition: Callable[[int], int] = lambda number: number % 2) -> None:
    broker.topics.create("in", partitions=2)
    with broker.producer("in") as producer:
        for number in range(first, end):
            producer.send(f"row {number}", key=f"k{number % 5}", partition=partition(number))


def rows(end: int) -> Counter[str]:
    return Counter(f"row {number}" for number in range(end))


@pytest.fixture
def copy(spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path) -> Callable[..., Copy]:
    broker.topics.create("staged", partitions=2)
    broker.topics.create("direct", partitions=2)
    return lambda kind, limit=0: Copy(spark, server, tmp_path, kind, limit)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_one_batch_old_and_more_rows_since(copy: Callable[..., Copy], broker: DriftQ, kind: str) -> None:
    """The last batch is planned again, with the rows that came since."""
    query = copy(kind)
    send(broker, 0, 100)
    query.run()
    send(broker, 100, 125)
    query.run()
    query.go_back(1)
    send(broker, 125, 155)

    if kind == "archive":
        query.run()
        assert query.written() == rows(155)
    else:
        with pytest.raises(Exception, match=r"other content|other rows"):
            query.run()
        if kind == "staged":
            assert query.written() == rows(125)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_one_batch_old_and_a_limit_that_makes_both_plans_as_long(
    copy: Callable[..., Copy], broker: DriftQ, kind: str
) -> None:
    """First 80 rows of one partition and 20 of the other; then 50 and 50."""
    query = copy(kind, limit=100)
    send(broker, 0, 100, lambda number: int(number >= 80))
    query.run()
    query.go_back(1)
    send(broker, 100, 150, lambda _: 1)

    if kind == "archive":
        query.run()
        assert query.written() == rows(150)
    else:
        with pytest.raises(Exception, match=r"other content|other rows"):
            query.run()
        if kind == "staged":
            assert query.written() == rows(100)


@pytest.mark.parametrize(("batches", "limit"), [(2, 0), (2, 20), (5, 20)])
def test_an_archive_is_exact_from_every_older_checkpoint(
    copy: Callable[..., Copy], broker: DriftQ, batches: int, limit: int
) -> None:
    query = copy("archive", limit)
    for part in range(2):
        send(broker, part * 60, part * 60 + 60)
        query.run()
    query.go_back(min(batches, query.done() + 1))
    send(broker, 120, 137)

    query.run()

    assert query.written() == rows(137)


@pytest.mark.parametrize("kind", ["staged", "direct"])
@pytest.mark.parametrize(("batches", "limit"), [(2, 0), (2, 25), (4, 25)])
def test_a_checkpoint_several_batches_old_is_refused_by_a_topic(
    copy: Callable[..., Copy], broker: DriftQ, kind: str, batches: int, limit: int
) -> None:
    query = copy(kind, limit)
    for part in range(2):
        send(broker, part * 50, part * 50 + 50)
        query.run()
    query.go_back(batches)

    with pytest.raises(Exception, match=r"checkpoint is lost,? or an older copy"):
        query.run()

    assert query.written() == rows(100)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broker_restored_from_a_copy_that_has_grown_again_fails_the_query(
    copy: Callable[..., Copy], server: Server, broker: DriftQ, tmp_path: Path, kind: str
) -> None:
    folder, backup = tmp_path / "broker", tmp_path / "backup"
    query = copy(kind)
    send(broker, 0, 40)
    query.run()
    server.kill()
    shutil.copytree(folder, backup)
    started = Server(str(folder), port=server.port)
    send(broker, 40, 60)
    query.run()
    written = query.written()
    started.kill()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    started = Server(str(folder), port=server.port)
    try:
        with driftq.connect(started.url) as client:
            send(client, 1_000, 1_100)

        with pytest.raises(Exception, match="restored from an older copy"):
            query.run()
        if kind == "archive":
            assert query.written() == written == rows(60)
    finally:
        started.stop()


@pytest.mark.timeout(600)  # four drivers, each with a Java of its own
def test_the_command_is_exact_with_a_checkpoint_that_was_put_back(
    server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"

    def run(pipeline: str, *more: str) -> subprocess.CompletedProcess[str]:
        options = ["--topic", "in", "--table", str(tmp_path / "table"), "--checkpoint", str(checkpoint), *more]
        command = [sys.executable, "-m", "driftq.cli.main", "pipeline", "run", pipeline, "--url", server.url, *options]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    send(broker, 0, 500)
    assert run("archive", "--once").returncode == 0
    shutil.copytree(checkpoint, backup)
    send(broker, 500, 800)
    assert run("archive", "--once").returncode == 0
    shutil.rmtree(checkpoint)
    backup.rename(checkpoint)
    send(broker, 800, 1_150)

    last = run("archive", "--once", "--audit-every", "10m")

    assert (last.returncode, "audit: verdict: exact. 1,150 rows" in last.stderr) == (0, True), last.stderr
    assert run("audit").stdout.endswith(
        "verdict: exact. 1,150 rows of 2 partitions are what the log holds, each once\n"
    )

"""Two drivers run one micro-batch of one checkpoint at the same time, for real: every row is there once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake

from tests.spark.race_driver import DRIVERS, KINDS, race
from tests.spark.topic_reader import topic_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.client.api import DriftQ
    from tests.support.server import Server

ROWS = 400


def plan(folder: Path, ends: list[int]) -> None:
    """Write the first micro-batch to a new checkpoint, as Spark does before it runs: both drivers run it."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"5f3c9c4e-7a43-4f3b-9a43-0d5a1c7d2e11"}')
    offsets = {"version": 1, "offsets": {"in": {str(n): end for n, end in enumerate(ends)}}, "splits": 0}
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
    (folder / "offsets" / "0").write_text("\n".join(("v1", json.dumps(metadata), json.dumps(offsets))))


def test_two_drivers_that_write_the_same_batch_at_the_same_time_write_it_once(
    spark: SparkSession, server: Server, broker: DriftQ, tmp_path: Path
) -> None:
    broker.topics.create("in", partitions=2)
    with broker.producer("in") as producer:
        for number in range(ROWS):
            producer.send(f"row {number}", key=f"k{number % 7}", partition=number % 2)
    for kind in KINDS:
        broker.topics.create(kind, partitions=2)
        plan(tmp_path / kind, [ROWS // 2, ROWS // 2])

    with subprocess.Popen(
        [sys.executable, "-m", "tests.spark.race_driver", server.url, str(tmp_path), DRIVERS[1]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        errors = race(spark, server.url, str(tmp_path), DRIVERS[0])
        output, _ = other.communicate(timeout=120)

    assert output.startswith("raced"), "the other driver failed"
    for kind in KINDS:
        assert all((tmp_path / f"met-{kind}-{name}").exists() for name in DRIVERS), f"{kind}: the drivers did not meet"
        assert not (kind in errors and kind in output.split()), f"{kind}: both drivers failed: {errors[kind]}"
    expected = Counter(f"row {number}" for number in range(ROWS))
    for topic in ("staged", "direct"):
        assert Counter(record.value.decode() for record in topic_records(server.url, topic)) == expected, topic
    archived = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table(columns=["value"]).column("value")
    assert Counter(value.decode() for value in archived.to_pylist()) == expected

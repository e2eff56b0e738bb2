"""A client of Spark Connect, with a server of its own: reads, writes, `foreachBatch` and views."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.cluster import environment
from tests.spark.topic_reader import topic_records

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from tests.support.server import Server

ROWS = 200


@pytest.mark.own_spark
def test_a_connect_client_reads_and_writes_each_message_once(server: Server, broker: DriftQ, tmp_path: Path) -> None:
    for topic in ("in", "copy", "each"):
        broker.topics.create(topic, partitions=2, history=topic == "in")
    with broker.producer("in") as producer:
        for number in range(ROWS):
            producer.send(f"row {number}", key=f"k{number % 7}")
    broker.send("in", "job", task="charge", id="charge-1")

    command = [sys.executable, "-m", "tests.spark.connect_driver", server.url, str(tmp_path)]
    environ = environment() | {"SPARK_TESTING": "1"}  # the server chooses a port that is free
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=500)

    assert done.returncode == 0, done.stderr[-4_000:]
    assert done.stdout.splitlines() == [f"read {ROWS + 1} pyspark.sql.connect.session", "jobs 1"]
    expected = Counter([*(f"row {number}" for number in range(ROWS)), "job"])
    for topic in ("copy", "each"):
        assert Counter(record.value.decode() for record in topic_records(server.url, topic)) == expected, topic

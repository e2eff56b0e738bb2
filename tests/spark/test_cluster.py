"""A real cluster, a master and two workers: the package is shipped, everything is killed, and every row is there once.

One run is one seed (`--seed`); `make spark-chaos N=100` runs 100 kills.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import deltalake
import pytest

import driftq
from tests.spark import speculation_driver
from tests.spark.chaos import KINDS, one_run
from tests.spark.cluster import environment, package_zip, standalone
from tests.spark.topic_reader import topic_records
from tests.support.server import running


@pytest.mark.own_spark
@pytest.mark.timeout(1_800)
def test_every_row_is_there_once_when_broker_driver_executor_python_and_worker_are_killed(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    killed = one_run(tmp_path, kills=len(KINDS), seed=pytestconfig.getoption("--seed"), rows=4_500)

    assert killed.total() >= len(KINDS)


@pytest.mark.own_spark
@pytest.mark.timeout(600)
def test_every_row_is_there_once_when_two_attempts_of_a_task_write_it(tmp_path: Path) -> None:
    """Speculation that happened: both attempts have sent all rows, and Spark's event log has the second one."""
    expected = Counter(f"row {number}" for number in range(200))
    with standalone(tmp_path / "cluster") as cluster, running(str(tmp_path / "broker")) as server:
        with driftq.connect(server.url) as broker:
            for topic in ("in", "staged", "direct"):
                broker.topics.create(topic, partitions=2)
            with broker.producer("in") as producer:
                for number in range(200):
                    producer.send(f"row {number}", partition=number % 2)
        arguments = [server.url, str(tmp_path), cluster.url, str(package_zip(tmp_path))]
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.speculation_driver", *arguments],
            check=False, env=environment(), capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4_000:]
        for topic in ("staged", "direct"):
            assert Counter(record.value.decode() for record in topic_records(server.url, topic)) == expected, topic

    values = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table(columns=["value"]).column("value")
    assert Counter(value.decode() for value in values.to_pylist()) == expected
    for kind in speculation_driver.KINDS:
        assert (tmp_path / f"second-{kind}").exists(), f"{kind}: there was no second attempt"
    assert speculative_attempts(tmp_path / "events") >= len(speculation_driver.KINDS)


def speculative_attempts(events: Path) -> int:
    lines = [json.loads(line) for path in events.iterdir() for line in path.read_text().splitlines()]
    starts = [event for event in lines if event["Event"] == "SparkListenerTaskStart"]
    return sum(event["Task Info"]["Speculative"] for event in starts)

"""A query whose Python starts too slowly, in a real Spark: its first process takes longer than Spark waits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from driftq.spark import register
from driftq.spark.pipelines.query_monitor import QueryFailed
from driftq.spark.supervisor import supervise

SLOW_ONCE = """#!/bin/sh
case "$*" in *streaming_source_runner*) if mkdir {folder} 2>/dev/null; then sleep 60; fi ;; esac
exec {python} "$@"
"""


@pytest.fixture
def slow_python(spark, tmp_path):
    """Spark starts Python with a script that sleeps when the first source starts."""
    script = tmp_path / "python"
    script.write_text(SLOW_ONCE.format(folder=tmp_path / "started", python=sys.executable))
    script.chmod(0o755)
    context = spark.sparkContext
    before = context.pythonExec
    context.pythonExec = str(script)
    register(spark)
    yield tmp_path / "started"
    context.pythonExec = before
    register(spark)


def test_a_query_whose_python_was_too_slow_is_started_again(spark, server, broker, tmp_path: Path, slow_python):
    broker.topics.create("t")
    broker.topics.create("copy")
    broker.send("t", b"v")
    lines: list[str] = []

    def start():
        rows = (
            spark.readStream.format("driftq").options(url=server.url, subscribe="t", startingOffsets="earliest").load()
        )
        writer = rows.select("value").writeStream.format("driftq").options(url=server.url, topic="copy")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    supervise({"copy": start}, lines.append)
    assert slow_python.exists()
    assert any("starting again" in line for line in lines), lines
    assert "batch 0, 1 row" in lines[-1]
    assert broker.topics.offsets("copy").partitions[0].end == 1


def test_another_failure_ends_the_supervisor(spark, server, tmp_path):
    def start():
        rows = spark.readStream.format("driftq").options(url=server.url, subscribe="nowhere").load()
        return rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(QueryFailed, match="there is no topic nowhere"):
        supervise({"copy": start}, lambda _: None)

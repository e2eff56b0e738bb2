"""What the Spark tests share: one local session for all of them, and a real broker process for each that asks.

Executors are processes of their own and reach the broker over HTTP, as they would anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import driftq
from driftq.client.api import DriftQ
from driftq.spark import driftq_session
from tests.support.server import Server, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session on two cores, stopped at the end."""
    session = driftq_session("local[2]", name="tests", conf={"spark.sql.shuffle.partitions": "2"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A broker on real files. `server.url` is where it listens; kill it and start another on the same folder and port
    to try a restart."""
    with running(str(tmp_path / "broker")) as started:
        yield started


@pytest.fixture
def broker(server: Server) -> Iterator[DriftQ]:
    """A client of that broker."""
    with driftq.connect(server.url) as client:
        yield client

"""Records that are only in the archive: the tasks of a real Spark read them there, without the broker."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from pyspark.errors import PySparkException

from tests.support.cold_segments import LOCAL, SMALL_FILES, VALUE, fill, move, tiers_of
from tests.support.s3_server import s3_server
from tests.support.server import Server, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

COUNT = 100
TEXT = {"Content-Type": "text/plain"}
URL = "s3://archive/broker"


class Tiered(NamedTuple):
    """A broker most of whose records are only in a folder, and that folder."""

    server: Server
    archive: Path


def make_old_records(server: Server) -> None:
    """A topic and a stream with old records, which have left the disk."""
    server.call("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    fill(server, "orders", COUNT)
    server.call("PUT", "/v1/stream/chat", b"", TEXT)
    for number in range(60):
        server.call("POST", "/v1/stream/chat", f"{number} {VALUE * 2}\n".encode(), TEXT)
    move(server, 400_000)


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    place = tmp_path_factory.mktemp("archived")
    (place / "archive").mkdir()
    with running(str(place / "data"), f"archive.url={place / 'archive'}", LOCAL, *SMALL_FILES) as server:
        make_old_records(server)
        yield Tiered(server, place / "archive")


@pytest.fixture
def copy(tiered: Tiered, tmp_path: Path) -> Path:
    """Another folder with what the archive has: what a test does to it the broker does not see."""
    return Path(shutil.copytree(tiered.archive, tmp_path / "archive"))


def read(spark: SparkSession, server: Server, **options: str) -> list[str]:
    chosen = options if "stream" in options else {"subscribe": "orders", **options}
    rows = spark.read.format("driftq").options(url=server.url, retryMs="1s", **chosen).load()
    return [bytes(row.value).decode() for row in rows.orderBy("offset").select("value").collect()]


def downloads(server: Server) -> int:
    return tiers_of(server)["downloads"]


def old_objects(archive: Path) -> list[Path]:
    return [Path(folder, name) for folder, _, names in os.walk(archive) for name in names if "/logs/" in folder]


ORDERS = [f"{number} {VALUE}" for number in range(COUNT)]
CHAT = [f"{number} {VALUE * 2}\n" for number in range(60)]


def test_tasks_read_old_records_from_the_archive_and_not_through_the_broker(spark, tiered):
    before = downloads(tiered.server)
    assert read(spark, tiered.server, archive=str(tiered.archive)) == ORDERS
    assert read(spark, tiered.server, archive=str(tiered.archive), fetchBytes="70k", minPartitions="5") == ORDERS
    assert read(spark, tiered.server, archive=str(tiered.archive), stream="chat") == CHAT
    assert downloads(tiered.server) == before, "the broker read none of it"


def test_a_part_of_a_range_begins_and_ends_where_it_should(spark, tiered):
    window = {"startingOffsets": '{"orders":{"0":7}}', "endingOffsets": '{"orders":{"0":61}}'}
    assert read(spark, tiered.server, archive=str(tiered.archive), **window) == ORDERS[7:61]


def test_the_broker_reads_what_a_task_cannot(spark, tiered, copy):
    for path in old_objects(copy):
        path.unlink()
    before = downloads(tiered.server)
    assert read(spark, tiered.server, archive=str(copy)) == ORDERS
    assert downloads(tiered.server) > before


def test_an_object_with_other_bytes_is_refused(spark, tiered, copy):
    for path in old_objects(copy):
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)
    with pytest.raises(PySparkException, match="is not what the broker archived"):
        read(spark, tiered.server, archive=str(copy), subscribe="load")  # none of it is in the broker's cache


def test_tasks_read_a_bucket_with_their_own_credentials_or_leave_it_to_the_broker(spark, tmp_path):
    with s3_server() as s3:
        s3.make_bucket("archive")
        setting = f"archive.url={URL}"
        with running(str(tmp_path / "data"), setting, LOCAL, *SMALL_FILES, env=s3.environment()) as server:
            make_old_records(server)
            before = downloads(server)
            assert read(spark, server, archive=URL, archiveOptions=json.dumps(s3.reader_environment())) == ORDERS
            assert downloads(server) == before
            wrong = json.dumps(s3.environment("unknown", "wrong"))
            assert read(spark, server, archive=URL, archiveOptions=wrong) == ORDERS
            assert downloads(server) > before

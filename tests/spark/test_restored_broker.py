"""A broker that is restored from an older copy of its folder, under a query that had read on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import driftq
from driftq.spark.source import columns
from driftq.spark.source.fetch import DataLoss
from driftq.spark.source.options import read_options
from driftq.spark.source.reader import DriftqStreamReader
from driftq.wire.streams import token
from tests.support.server import Server

ALL = ReadAllAvailable()
RESTORED = "restored from an older copy"


class Broker:
    """A broker whose folder can be put back, on one port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "data"
        self.copy = folder / "copy"
        self.server = Server(str(self.folder))

    def restart(self) -> None:
        self.server.stop()
        self.server = Server(str(self.folder), port=self.server.port)

    def back_up(self) -> None:
        self.server.stop()
        shutil.copytree(self.folder, self.copy)
        self.server = Server(str(self.folder), port=self.server.port)

    def restore(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder)
        shutil.copytree(self.copy, self.folder)
        self.server = Server(str(self.folder), port=self.server.port)

    def send(self, count: int, topic: str = "t", partition: int = 0) -> None:
        with driftq.connect(self.server.url) as client:
            client.topics.create(topic, partitions=2)
            with client.producer(topic) as producer:
                for _ in range(count):
                    producer.send(b"v", partition=partition)

    def append(self, count: int) -> None:
        with driftq.connect(self.server.url) as client:
            stream = client.stream("runs/1", "application/json")
            stream.create()
            for number in range(count):
                stream.append(number)

    def reader(self, **options: str) -> DriftqStreamReader:
        named = {"url": self.server.url, "startingOffsets": "earliest", **options}
        parsed = read_options(named if "stream" in options else {"subscribe": "t", **named})
        return DriftqStreamReader(parsed, columns.spark_schema(columns.available_columns(parsed)))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    started = Broker(tmp_path)
    yield started
    if started.server.process.poll() is None:
        started.server.stop()


def checkpointed(offset: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def read_on(broker: Broker, limit: Any = ALL, **options: str) -> dict[str, Any]:
    """What a query that has read everything leaves in its checkpoint."""
    reader = broker.reader(**options)
    return checkpointed(reader.latestOffset(reader.initialOffset(), limit))


@pytest.mark.parametrize("sent_after", [10, 11, 500])
def test_a_log_that_has_grown_past_the_checkpoint_again_is_noticed_when_the_query_resumes(
    broker: Broker, sent_after: int
) -> None:
    broker.send(20)
    broker.back_up()
    broker.send(10)
    start = read_on(broker)
    broker.restore()
    broker.send(sent_after)

    with pytest.raises(DataLoss, match=rf"t/0 was read up to offset 30 .* another batch there now.*{RESTORED}"):
        broker.reader().latestOffset(start, ALL)


def test_a_log_that_is_shorter_than_the_checkpoint_is_noticed(broker: Broker) -> None:
    broker.send(20)
    broker.back_up()
    broker.send(10)
    start = read_on(broker)
    broker.restore()

    with pytest.raises(DataLoss, match="was read up to offset 30 and ends at 20 now"):
        broker.reader().latestOffset(start, ALL)


@pytest.mark.parametrize(("sent_after", "message"), [(3, "ends before that now"), (50, "another batch")])
def test_a_loss_after_the_offset_of_a_limited_query_is_noticed_too(
    broker: Broker, sent_after: int, message: str
) -> None:
    """The query had read less than there was; what it would have read next was replaced."""
    broker.send(20)
    broker.back_up()
    broker.send(10)
    start = read_on(broker, ReadMaxRows(15))
    broker.restore()
    broker.send(sent_after)

    with pytest.raises(DataLoss, match=f"read up to offset 15 when it ended at 30, and it .*{message}"):
        broker.reader().latestOffset(start, ALL)


def test_a_batch_that_was_planned_before_is_not_read_from_the_restored_log(broker: Broker) -> None:
    broker.send(20)
    broker.back_up()
    reader = broker.reader()
    start = reader.initialOffset()
    broker.send(10)
    end = reader.latestOffset(start, ALL)
    assert len(broker.reader().partitions(checkpointed(start), checkpointed(end))) == 1
    broker.restore()
    broker.send(30)

    with pytest.raises(DataLoss, match=RESTORED):
        broker.reader().partitions(checkpointed(start), checkpointed(end))


def test_a_running_query_notices_it_when_the_broker_is_back(broker: Broker) -> None:
    broker.send(20)
    broker.back_up()
    broker.send(10)
    reader = broker.reader()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    broker.restart()
    assert reader.latestOffset(start, ALL) == start, "a restart alone is no loss"
    broker.restore()
    broker.send(30)

    with pytest.raises(DataLoss, match=RESTORED):
        reader.latestOffset(start, ALL)


def test_a_stream_is_compared_too(broker: Broker) -> None:
    broker.append(4)
    broker.back_up()
    broker.append(2)
    start = read_on(broker, stream="runs/1")
    broker.restart()
    assert broker.reader(stream="runs/1").latestOffset(start, ALL) == start
    broker.restore()
    broker.append(5)

    with pytest.raises(DataLoss, match=f"runs/1 was read up to offset 6 .*{RESTORED}"):
        broker.reader(stream="runs/1").latestOffset(start, ALL)


def test_a_copy_that_holds_all_that_was_seen_is_no_loss(broker: Broker) -> None:
    broker.send(20)
    broker.send(7, partition=1)
    start = read_on(broker)
    broker.back_up()
    broker.send(10)
    broker.restore()
    broker.send(5)

    end = broker.reader().latestOffset(start, ALL)

    assert end["offsets"] == {"t": {"0": 25, "1": 7}}


def test_what_was_trimmed_is_not_compared(broker: Broker) -> None:
    broker.append(4)
    start = read_on(broker, stream="runs/1")
    broker.append(2)
    broker.server.call("POST", "/v1/streams/trim", {"stream": "runs/1", "before": token(4)})

    assert broker.reader(stream="runs/1").latestOffset(start, ALL)["offsets"] == {"runs/1": {"0": 6}}


def test_a_loss_may_be_accepted_and_older_checkpoints_are_read_as_before(broker: Broker) -> None:
    broker.send(20)
    broker.back_up()
    broker.send(10)
    start = read_on(broker)
    broker.restore()
    broker.send(20)

    accepting = broker.reader(failOnDataLoss="false").latestOffset(start, ALL)
    older = {name: value for name, value in start.items() if name != "seen"}

    assert accepting["offsets"]["t"]["0"] == broker.reader().latestOffset(older, ALL)["offsets"]["t"]["0"] == 40

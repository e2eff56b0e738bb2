"""The stream reader against a real broker, called as Spark calls it, without a Spark: quick, and at awkward moments."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import driftq
from driftq.client.api import DriftQ
from driftq.client.errors import Conflict, NotConnected
from driftq.spark.source import columns
from driftq.spark.source.fetch import DataLoss
from driftq.spark.source.options import BadOption, read_options
from driftq.spark.source.reader import DriftqReader, DriftqStreamReader
from driftq.wire.streams import token
from tests.support.server import Server, running
from tests.support.wait import until_now

ALL = ReadAllAvailable()


def stream_reader(server: Server, clock: Any = None, **more_options: str) -> DriftqStreamReader:
    options = read_options({"url": server.url, "startingOffsets": "earliest", **more_options})
    schema = columns.spark_schema(columns.available_columns(options))
    return DriftqStreamReader(options, schema, clock) if clock else DriftqStreamReader(options, schema)


def checkpointed(offset: dict[str, Any]) -> dict[str, Any]:
    """Through the checkpoint."""
    return json.loads(json.dumps(offset))


def rows(reader: DriftqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    positions = []
    for task in reader.partitions(checkpointed(start), checkpointed(end)):
        for table in reader.read(task):
            positions += [(row["topic"], row["partition"], row["offset"]) for row in table.to_pylist()]
    return sorted(positions)


def fill(broker: DriftQ, topic: str, count: int, partitions: int = 1, value: bytes = b"v") -> None:
    broker.topics.create(topic, partitions=partitions)
    with broker.producer(topic) as producer:
        for number in range(count):
            producer.send(value, partition=number % partitions)


def test_a_query_reads_what_came_since_the_last_step(server, broker):
    fill(broker, "t", 6, partitions=2)
    reader = stream_reader(server, subscribe="t")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert len(rows(reader, start, first)) == 6
    assert reader.latestOffset(first, ALL) == first

    fill(broker, "t", 2, partitions=2)
    assert rows(reader, first, reader.latestOffset(first, ALL)) == [("t", 0, 3), ("t", 1, 3)]


def test_a_query_that_begins_at_the_end_reads_what_comes(server, broker):
    fill(broker, "t", 6)
    reader = stream_reader(server, subscribe="t", startingOffsets="latest")
    start = reader.initialOffset()
    fill(broker, "t", 1)
    assert rows(reader, start, reader.latestOffset(start, ALL)) == [("t", 0, 6)]


def test_limits_are_kept_and_reported_to_spark(server, broker):
    fill(broker, "t", 100, partitions=2, value=b"v" * 1_000)
    by_rows = stream_reader(server, subscribe="t", maxOffsetsPerTrigger="7")
    by_size = stream_reader(server, subscribe="t", maxBytesPerTrigger="10k")
    start = by_rows.initialOffset()

    assert by_rows.getDefaultReadLimit() == ReadMaxRows(7)
    assert len(rows(by_rows, start, by_rows.latestOffset(start, ReadMaxRows(7)))) == 7
    assert by_size.getDefaultReadLimit() == ReadMaxBytes(10 << 10)
    assert 8 <= len(rows(by_size, start, by_size.latestOffset(start, ReadMaxBytes(10 << 10)))) <= 10
    assert len(rows(by_rows, start, by_rows.latestOffset(start, ALL))) == 100, "Trigger.Once takes everything"


def test_a_step_that_was_planned_is_cut_the_same_way_by_a_reader_with_other_options(server, broker):
    fill(broker, "t", 100)
    before = stream_reader(server, subscribe="t", minPartitions="5")
    start = before.initialOffset()
    end = before.latestOffset(start, ALL)
    fill(broker, "t", 100)

    after = stream_reader(server, subscribe="t", minPartitions="2", maxOffsetsPerTrigger="3")
    plans = [
        [task.ranges for task in reader.partitions(checkpointed(start), checkpointed(end))]
        for reader in (before, after)
    ]

    assert plans[0] == plans[1]
    assert len(plans[0]) == 5


def test_a_run_to_the_end_of_now_ends_although_more_comes(server, broker):
    fill(broker, "t", 10)
    reader = stream_reader(server, subscribePattern="t.*", maxOffsetsPerTrigger="4")
    place = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    seen = []
    for _ in range(5):
        fill(broker, "t", 3)
        fill(broker, "t.later", 3)
        following = reader.latestOffset(place, ReadMaxRows(4))
        seen += rows(reader, place, following)
        place = following
    assert seen == [("t", 0, offset) for offset in range(10)]


def test_a_query_waits_for_enough_rows_but_not_without_end(server, broker):
    fill(broker, "t", 3)
    now_s = [100.0]
    reader = stream_reader(server, lambda: now_s[0], subscribe="t", minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    now_s[0] += 11
    following = reader.latestOffset(start, ALL)
    assert len(rows(reader, start, following)) == 3
    fill(broker, "t", 4)
    assert reader.latestOffset(following, ALL) == following
    fill(broker, "t", 1)
    assert len(rows(reader, following, reader.latestOffset(following, ALL))) == 5


def test_topics_that_fit_the_pattern_join_a_running_query_from_their_start(server, broker):
    reader = stream_reader(server, subscribePattern=r"in\..*", startingOffsets="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    fill(broker, "in.a", 2)
    first = reader.latestOffset(start, ALL)
    fill(broker, "in.b", 2, partitions=2)
    assert rows(reader, start, first) == [("in.a", 0, 0), ("in.a", 0, 1)]
    assert rows(reader, first, reader.latestOffset(first, ALL)) == [("in.b", 0, 0), ("in.b", 1, 0)]


def test_the_memory_of_a_task_does_not_follow_its_range(server, broker):
    fill(broker, "t", 24_000, value=b"v" * 1_000)
    reader = stream_reader(server, subscribe="t", fetchBytes="512k")
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ALL))
    next(reader.read(task))  # what is imported at first use is no matter here
    tracemalloc.start()
    try:
        count = sum(table.num_rows for table in reader.read(task))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 24_000
    assert peak_bytes < 8 << 20, "a few fetches, not the 24 MB of the range"


def test_the_progress_shows_the_lag_of_the_query(server, broker):
    fill(broker, "t", 10)
    reader = stream_reader(server, subscribe="t", maxOffsetsPerTrigger="4")
    start = reader.initialOffset()
    assert "lag" not in reader.reportLatestOffset()
    reader.latestOffset(start, ReadMaxRows(4))
    progress = reader.reportLatestOffset()
    assert progress is not None
    assert progress["offsets"] == {"t": {"0": 10}}
    assert progress["lag"]["offsets"] == 6
    assert progress["lag"]["logs"] == {"t": {"0": 6}}
    assert 0 <= progress["lag"]["seconds"] < 60
    reader.latestOffset(start, ALL)
    assert reader.reportLatestOffset()["lag"] == {"offsets": 0, "seconds": 0.0, "logs": {}}


def test_a_report_does_not_end_a_query_when_the_broker_is_away(server, broker):
    fill(broker, "t", 1)
    now_s = [100.0]
    reader = stream_reader(server, lambda: now_s[0], subscribe="t", retryMs="200ms")
    reader.latestOffset(reader.initialOffset(), ALL)
    server.kill()
    assert reader.reportLatestOffset() is not None, "what was seen a moment ago is still good"
    now_s[0] += 5
    assert reader.reportLatestOffset() is None


def test_a_run_to_the_end_of_now_can_begin_when_a_topic_is_gone(server, broker):
    fill(broker, "t", 3)
    reader = stream_reader(server, subscribe="t", failOnDataLoss="false")
    place = reader.latestOffset(reader.initialOffset(), ALL)
    broker.topics.delete("t")
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(place, ALL)["offsets"] == {}


def test_dead_letters_and_histories_are_topics_like_others(server, broker):
    broker.topics.create("work", history=True)
    broker.send_many("work", ["a", "b"])
    for message in broker.claim("work", "g", max=2):
        message.reject("bad")
    for topic, count in (("dlq.work", 2), ("work.history", 4)):
        reader = stream_reader(server, subscribe=topic, includeHead="true")
        start = reader.initialOffset()
        assert len(rows(reader, start, reader.latestOffset(start, ALL))) == count


# --- streams ----------------------------------------------------------------------------------------------------------


def values(reader: DriftqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[bytes]]:
    by_topic: dict[str, list[bytes]] = {}
    for task in reader.partitions(checkpointed(start), checkpointed(end)):
        for table in reader.read(task):
            for row in table.to_pylist():
                assert row["offset"] == task.ranges[0].start + len(by_topic.setdefault(row["topic"], []))
                by_topic[row["topic"]].append(row["value"])
    return by_topic


def test_streams_are_read_message_by_message_and_new_ones_join(server, broker):
    words = broker.stream("runs/1", "application/json")
    words.create()
    words.append({"n": 1}, {"n": 2})
    broker.stream("runs/2", "text/plain").create(data=["first "])
    broker.stream("other", "text/plain").create(data=["no"])
    reader = stream_reader(server, stream="runs/*")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert values(reader, start, first) == {"runs/1": [b'{"n":1}', b'{"n":2}'], "runs/2": [b"first "]}
    assert reader.latestOffset(first, ALL) == first

    broker.stream("runs/2").append("second")
    broker.stream("runs/3", "text/plain").create(data=["third"])
    second = reader.latestOffset(first, ALL)
    assert [task.ranges[0][:4] for task in reader.partitions(first, second)] == [
        ("runs/2", 0, 1, 2),
        ("runs/3", 0, 0, 1),
    ]
    assert reader.reportLatestOffset()["lag"]["offsets"] == 0


def test_a_fork_is_read_up_to_its_point_and_on_in_its_own(server, broker):
    source = broker.stream("source", "application/json")
    source.create()
    source.append(1, 2, 3, 4)
    middle = token(2)
    broker.stream("fork", "application/json").create(forked_from="source", fork_offset=middle)
    broker.stream("fork", "application/json").append(30, 40)
    reader = stream_reader(server, stream="fork", minPartitions="3")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    tables = [table for task in reader.partitions(start, end) for table in reader.read(task)]
    assert [value for table in tables for value in table["value"].to_pylist()] == [b"1", b"2", b"30", b"40"]


def test_a_stream_that_was_trimmed_or_made_again_is_a_loss(server, broker):
    stream = broker.stream("s", "text/plain")
    stream.create(data=["a"])
    stream.append("b")
    stream.append("c")
    strict, easy = (stream_reader(server, stream="s", failOnDataLoss=word) for word in ("true", "false"))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    stream.trim(token(1))
    with pytest.raises(DataLoss, match="begins at 1"):
        rows(strict, start, end)
    assert rows(easy, start, end) == [("s", 0, 1), ("s", 0, 2)]

    stream.delete()
    with pytest.raises(DataLoss, match="no longer exists"):
        strict.latestOffset(end, ALL)
    stream.create(data=["new"])
    with pytest.raises(DataLoss, match="created again"):
        strict.latestOffset(end, ALL)
    assert values(easy, end, easy.latestOffset(end, ALL)) == {"s": [b"new"]}
    with pytest.raises(BadOption, match="there is no stream nowhere"):
        stream_reader(server, stream="nowhere").initialOffset()


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_made_again_is_another_topic(server, broker):
    fill(broker, "t", 5)
    strict, easy = (stream_reader(server, subscribe="t", failOnDataLoss=word) for word in ("true", "false"))
    start = strict.initialOffset()
    place = strict.latestOffset(start, ALL)
    broker.topics.delete("t")

    with pytest.raises(DataLoss, match=r"t/0 was read up to offset 5 and no longer exists.*failOnDataLoss=false"):
        strict.latestOffset(place, ALL)
    with pytest.raises(DataLoss, match="t/0 from offset 0"):
        rows(strict, start, place)
    assert rows(easy, start, place) == []
    after_delete = easy.latestOffset(place, ALL)
    assert after_delete["offsets"] == {}
    assert rows(easy, place, after_delete) == []

    fill(broker, "t", 5)
    with pytest.raises(DataLoss, match="created again"):
        strict.latestOffset(place, ALL)
    with pytest.raises(DataLoss, match="deleted and created again while it was read"):
        rows(strict, start, place)
    assert len(rows(easy, place, easy.latestOffset(place, ALL))) == 5
    assert len(rows(easy, after_delete, easy.latestOffset(after_delete, ALL))) == 5


def test_a_log_that_is_shorter_than_planned_ends_the_task_or_fails_it(server, broker):
    fill(broker, "t", 5)
    strict, easy = (stream_reader(server, subscribe="t", failOnDataLoss=word) for word in ("true", "false"))
    start = strict.initialOffset()
    planned = strict.latestOffset(start, ALL)
    broker.topics.delete("t")
    fill(broker, "t", 2)
    with pytest.raises(DataLoss, match="t/0 ends at 2, before offset 5"):
        rows(strict, start, planned)
    assert rows(easy, start, planned) == [("t", 0, 0), ("t", 0, 1)]


def test_retention_that_passes_a_query_is_noticed_or_accepted(tmp_path: Path):
    with (
        running(str(tmp_path / "broker"), "storage.segment_bytes=65536") as server,
        driftq.connect(server.url) as broker,
    ):
        fill(broker, "t", 2_000, value=b"v" * 1_000)
        strict, easy = (stream_reader(server, subscribe="t", failOnDataLoss=word) for word in ("true", "false"))
        start = strict.initialOffset()
        planned = strict.latestOffset(start, ALL)
        broker.topics.change("t", retention_bytes=100_000)
        until_now(lambda: broker.topics.offsets("t").partitions[0].start > 0, 40)
        left = broker.topics.offsets("t").partitions[0].start

        with pytest.raises(DataLoss, match=f"begins at {left}"):
            rows(strict, start, planned)
        with pytest.raises(DataLoss, match=f"offsets 0 to {left - 1} of t/0 are gone"):
            strict.latestOffset(start, ALL)
        kept_rows = [("t", 0, offset) for offset in range(left, 2_000)]
        assert rows(easy, start, planned) == kept_rows
        assert rows(easy, start, easy.latestOffset(start, ALL)) == kept_rows

        options = read_options({"url": server.url, "subscribe": "t", "startingOffsets": '{"t":{"0":1}}'})
        with pytest.raises(DataLoss):
            DriftqReader(options, columns.spark_schema(columns.BASE)).partitions()


def test_a_broker_that_restarts_in_the_middle_of_a_task_is_waited_for(tmp_path: Path):
    folder = str(tmp_path / "broker")
    server = Server(folder)
    try:
        with driftq.connect(server.url) as broker:
            fill(broker, "t", 3_000, value=b"v" * 1_000)
        reader = stream_reader(server, subscribe="t", fetchBytes="64k")
        start = reader.initialOffset()
        (task,) = reader.partitions(start, reader.latestOffset(start, ALL))
        tables = reader.read(task)
        seen = next(tables)["offset"].to_pylist()
        server.kill()
        server = Server(folder, port=server.port)
        for table in tables:
            seen += table["offset"].to_pylist()
    finally:
        server.stop()
    assert seen == list(range(3_000))


def test_a_broker_that_does_not_answer_is_an_error_in_the_end(server, broker):
    fill(broker, "t", 1)
    reader = stream_reader(server, subscribe="t", retryMs="300ms")
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ALL))
    server.kill()
    with pytest.raises(NotConnected, match="no broker answers"):
        list(reader.read(task))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": '{"t":{"0":1}}'}, "a stream has no end"),
        ({"endingTimestamp": "5"}, "a stream has no end"),
    ],
)
def test_options_of_batches_are_refused_for_streams(server, options, message):
    with pytest.raises(BadOption, match=message):
        stream_reader(server, subscribe="t", **options)


def test_the_group_of_a_query_follows_it_also_back_and_in_new_topics(server, broker):
    fill(broker, "orders.a", 6, partitions=2)
    reader = stream_reader(server, subscribePattern=r"orders\..*", group="warehouse")
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert [group.lag for group in broker.groups.list()] == [6]
    fill(broker, "orders.b", 3)
    reader.latestOffset(first, ALL)
    assert [(group.topic, group.lag) for group in broker.groups.list()] == [("orders.a", 0), ("orders.b", 3)]
    assert all(group.commits_offsets for group in broker.groups.list())
    broker.topics.delete("orders.b")
    broker.groups.delete("orders.a", "warehouse")

    resumed = stream_reader(server, subscribePattern=r"orders\..*", group="warehouse")
    resumed.latestOffset(checkpointed(start), ALL)  # from an older checkpoint
    assert [(group.topic, group.lag) for group in broker.groups.list()] == [("orders.a", 6)]


def test_a_group_that_workers_claim_from_is_refused_and_so_are_workers_of_the_group_of_a_query(server, broker):
    fill(broker, "t", 1)
    broker.claim("t", "billing")
    reader = stream_reader(server, subscribe="t", group="billing")
    with pytest.raises(Conflict, match="used by workers"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader = stream_reader(server, subscribe="t", group="warehouse")
    reader.latestOffset(reader.initialOffset(), ALL)
    with pytest.raises(Conflict, match="commits the offsets of a reader"):
        broker.claim("t", "warehouse")

"""What an attempt of a task and a commit do to a real broker, without Spark: repeats, zombies, refusals, restarts."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driftq.client.api import DriftQ
from driftq.spark.sink.options import WriteOptions, write_options
from driftq.spark.sink.target import forget
from driftq.spark.sink.writer import (
    DriftqStreamWriter,
    SinkRefused,
    TaskCommit,
    forget_batch,
    publish_batch,
    write_rows,
)
from driftq.spark.source.fetch import transport_of
from tests.spark.topic_reader import logs_of, topic_records
from tests.support.server import Server
from tests.support.wait import until_now


def options_of(server: Server, **options: object) -> WriteOptions:
    texts = {"url": server.url, "chunkRows": "10", **{name: str(value) for name, value in options.items()}}
    return write_options(texts, streaming=True)


def rows(begin: int, end: int, word: str = "row") -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"value": [f"{word} {number}" for number in range(begin, end)]})


def numbers_of(server: Server, topic: str = "orders") -> list[int]:
    return [int(record.value.split()[1]) for record in topic_records(server.url, topic)]


def is_staged(options: WriteOptions, written: TaskCommit) -> bool:
    return transport_of(options.connection).execute(forget(written.writer, written.handles)).forgotten


@pytest.fixture
def orders(server: Server, broker: DriftQ) -> Server:
    broker.topics.create("orders", partitions=2)
    return server


def test_what_is_staged_is_unseen_until_it_is_published_in_the_order_of_tasks_and_chunks(
    server: Server, broker: DriftQ
) -> None:
    broker.topics.create("orders")
    options = options_of(server, topic="orders")
    later = write_rows(options, "q", 0, 1, rows(25, 50))
    first = write_rows(options, "q", 0, 0, rows(0, 25))
    assert numbers_of(server) == []

    DriftqStreamWriter(options).commit([later, None, first], 0)

    assert numbers_of(server) == list(range(50))


def test_attempts_that_do_not_count_are_never_seen(orders: Server) -> None:
    """Attempts of task 0 as speculation or a lost executor make them, each with rows of its own: the plan shuffles.
    The message of one reaches the driver."""
    options = options_of(orders, topic="orders")
    lost = write_rows(options, "q", 0, 0, rows(100, 125))
    counted = write_rows(options, "q", 0, 0, rows(0, 25))

    publish_batch(options, 0, [counted])
    zombie = write_rows(options, "q", 0, 0, rows(200, 225))  # it is still at work when everything is over
    publish_batch(options, 1, [write_rows(options, "q", 1, 0, rows(25, 30))])

    assert Counter(numbers_of(orders)) == Counter(range(30))
    assert not is_staged(options, lost)
    assert not is_staged(options, zombie)


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_batch_that_is_run_again_after_the_driver_died_is_there_once(orders: Server, mode: str) -> None:
    options = options_of(orders, topic="orders", mode=mode)
    for _ in range(2):
        parts = [write_rows(options, "q", 5, task, rows(25 * task, 25 * task + 25)) for task in (0, 1)]
        publish_batch(options, 5, parts)

    assert Counter(numbers_of(orders)) == Counter(range(50))
    assert not any(is_staged(options, part) for part in parts)


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_an_older_batch_is_refused_with_what_to_do(orders: Server, mode: str) -> None:
    options = options_of(orders, topic="orders", mode=mode)
    publish_batch(options, 7, [write_rows(options, "q", 7, 0, rows(0, 5))])

    with pytest.raises(SinkRefused, match=r"batch 7 and now .* checkpoint is lost,? or an older copy"):
        publish_batch(options, 6, [write_rows(options, "q", 6, 0, rows(5, 9))])

    assert numbers_of(orders) == list(range(5))


def test_another_batch_under_an_old_number_is_refused_with_the_reason(orders: Server) -> None:
    options = options_of(orders, topic="orders")
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 5))])

    for other in (rows(0, 6), rows(1, 6), rows(0, 0)):
        written = write_rows(options, "q", 0, 0, other)
        with pytest.raises(SinkRefused, match=r"batch 0 of writer q was written before with other content"):
            publish_batch(options, 0, [written])
        assert not is_staged(options, written)
    by_rows = options_of(orders, topic="orders", replayCheck="rows")
    with pytest.raises(SinkRefused, match="published before with 5 rows and has 6 now"):
        publish_batch(by_rows, 0, [write_rows(by_rows, "q", 0, 0, rows(0, 6))])
    unchecked = options_of(orders, topic="orders", replayCheck="none")
    publish_batch(unchecked, 0, [write_rows(options, "q", 0, 0, rows(0, 6))])

    assert numbers_of(orders) == list(range(5))


def test_the_same_rows_in_another_order_and_in_other_tasks_are_a_repeat(orders: Server) -> None:
    """What a plan with a shuffle yields when it runs again."""
    options = options_of(orders, topic="orders")
    publish_batch(
        options, 0, [write_rows(options, "q", 0, 0, rows(0, 25)), write_rows(options, "q", 0, 1, rows(25, 40))]
    )

    def reordered() -> Iterator[pa.RecordBatch]:
        yield from rows(12, 40)
        yield from rows(0, 12)

    publish_batch(options, 0, [write_rows(options, "q", 0, 0, reordered())])

    assert Counter(numbers_of(orders)) == Counter(range(40))


def write_offsets(checkpoint: Path, batch_id: int, *ends: dict[str, object]) -> None:
    """As Spark does before a micro-batch."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    lines = ["v1", "{}", *(json.dumps(end) for end in ends)]
    (checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))


def ends_at(first: int, second: int, splits: int = 0) -> dict[str, object]:
    return {"version": 1, "offsets": {"t": {"0": first, "1": second}}, "splits": splits}


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_batch_that_ends_at_other_offsets_is_refused_although_it_has_as_many_rows(
    orders: Server, tmp_path: Path, mode: str
) -> None:
    options = options_of(orders, topic="orders", mode=mode, checkpointLocation=str(tmp_path))
    write_offsets(tmp_path, 0, ends_at(8, 2))
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 10))])

    write_offsets(tmp_path, 0, ends_at(8, 2, splits=3))
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 10))])
    write_offsets(tmp_path, 0, ends_at(5, 5))
    with pytest.raises(SinkRefused, match="written before with other content"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 10))])

    assert Counter(numbers_of(orders)) == Counter(range(10))


def test_a_plan_that_yields_other_rows_for_the_same_offsets_keeps_the_first_ones(
    orders: Server, tmp_path: Path
) -> None:
    options = options_of(orders, topic="orders", checkpointLocation=tmp_path.as_uri())
    write_offsets(tmp_path, 0, ends_at(8, 2))
    for word in ("row", "random"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 10, word))])

    assert {record.value.split()[0] for record in topic_records(orders.url, "orders")} == {b"row"}


def test_offsets_that_do_not_identify_rows_are_not_relied_on(orders: Server, tmp_path: Path) -> None:
    """A file source numbers its steps: the same number may stand for other files."""
    options = options_of(orders, topic="orders", checkpointLocation=str(tmp_path))
    write_offsets(tmp_path, 0, {"logOffset": 0})
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 10))])

    with pytest.raises(SinkRefused, match="written before with other content"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(10, 20))])


def test_direct_notices_a_batch_whose_rows_went_to_another_partition_before(orders: Server) -> None:
    """The numbers of chunks are counted for each partition, so no chunk contradicts another."""
    options = options_of(orders, topic="orders", mode="direct")

    def one_row(number: int, partition: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [f"row {number}"], "partition": pa.array([partition], pa.int32())})

    publish_batch(options, 0, [write_rows(options, "q", 0, 0, one_row(0, 0))])

    with pytest.raises(SinkRefused, match=r"other content.*Rows of this run may be in the topic already"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, one_row(1, 1))])


def test_direct_refuses_other_rows_under_the_same_number(orders: Server) -> None:
    options = options_of(orders, topic="orders", mode="direct")
    write_rows(options, "q", 0, 0, rows(0, 5))

    with pytest.raises(SinkRefused, match=r"other rows, or in another order.*mode=staged"):
        write_rows(options, "q", 0, 0, rows(0, 5, "other"))


def test_direct_mode_resumes_after_a_killed_attempt(orders: Server) -> None:
    options = options_of(orders, topic="orders", mode="direct")
    write_rows(options, "q", 0, 0, rows(0, 40))  # the chunks that a killed attempt had sent

    write_rows(options, "q", 0, 0, rows(0, 95))

    assert Counter(numbers_of(orders)) == Counter(range(95))


@pytest.mark.parametrize("cut", [0, 15, 40])
def test_an_attempt_that_fails_forgets_what_it_staged(
    orders: Server, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    options = options_of(orders, topic="orders")
    monkeypatch.setattr("driftq.spark.sink.writer.uuid.uuid4", lambda: type("Fixed", (), {"hex": "f" * 32}))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(0, cut)
        raise RuntimeError("the row is bad")

    with pytest.raises(RuntimeError, match="the row is bad"):
        write_rows(options, "q", 0, 0, failing())

    handles = tuple(f"q/0/0/{'f' * 12}/{number}" for number in range(4))
    assert not is_staged(options, TaskCommit("q", 0, 0, handles))
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 5))])
    assert numbers_of(orders) == list(range(5))


def test_an_aborted_batch_is_forgotten(orders: Server) -> None:
    options = options_of(orders, topic="orders")
    written = write_rows(options, "q", 0, 0, rows(0, 25))

    forget_batch(options, [written])

    assert not is_staged(options, written)
    with pytest.raises(SinkRefused, match="stageTtl"):
        publish_batch(options, 0, [written])


def test_an_empty_write_asks_the_broker_nothing() -> None:
    options = write_options({"topic": "orders", "url": "http://127.0.0.1:1"}, streaming=False)

    publish_batch(options, 0, [write_rows(options, "q", 0, 0, iter(()))])


def test_an_empty_batch_takes_its_number(orders: Server) -> None:
    options = options_of(orders, topic="orders")
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, iter(()))])

    with pytest.raises(SinkRefused, match="other content"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 3))])

    assert numbers_of(orders) == []


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_killed_broker_is_waited_for(orders: Server, tmp_path: Path, mode: str) -> None:
    """Killed while rows are on their way, and again between the last row and the commit."""
    options = options_of(orders, topic="orders", mode=mode)
    started = [orders]

    def restart() -> None:
        started[-1].kill()
        started.append(Server(str(tmp_path / "broker"), port=orders.port))

    def with_a_kill() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 45)
        restart()
        yield from rows(45, 95)

    try:
        written = write_rows(options, "q", 0, 0, with_a_kill())
        restart()
        publish_batch(options, 0, [written])
        restart()
        publish_batch(options, 0, [written])

        assert Counter(numbers_of(started[-1])) == Counter(range(95))
    finally:
        for server in started[1:]:
            if server.process.poll() is None:
                server.stop()


def test_a_full_topic_is_waited_for_as_long_as_the_broker_says(server: Server, broker: DriftQ) -> None:
    """429 with Retry-After: rows wait while consumers are behind, and nothing is lost or doubled."""
    broker.topics.create("orders", backlog_messages_max=30)
    assert broker.claim("orders", "slow", max=1) == []
    options = options_of(server, topic="orders", mode="direct")
    write_rows(options, "q", 0, 0, rows(0, 30))
    done = threading.Event()

    def write_more() -> None:
        write_rows(options, "q", 1, 0, rows(30, 50))
        done.set()

    thread = threading.Thread(target=write_more)
    thread.start()
    until_now(lambda: 'driftq_produce_rejected_total{reason="partition_buffer_full"}' in metrics_of(server), 20)
    assert not done.is_set()
    broker.ack(broker.claim("orders", "slow", max=30))
    thread.join(20)

    assert done.is_set()
    assert numbers_of(server) == list(range(50))


def metrics_of(server: Server) -> str:
    return server.call("GET", "/v1/metrics").body.decode()


@pytest.mark.parametrize("mode", ["staged", "direct"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_stream_takes_rows_in_order(server: Server, broker: DriftQ, mode: str, kind: str) -> None:
    broker.stream("logs/app", kind).create()
    options = options_of(server, stream="logs/app", mode=mode)

    def documents() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [f'{{"id":{number}}}' for number in range(35)]})

    for _ in range(2):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, documents())])

    text = server.call("GET", "/v1/stream/logs/app?offset=-1").body.decode()
    written: list[Any] = json.loads(text if kind == "application/json" else f"[{text.replace('}{', '},{')}]")
    assert [row["id"] for row in written] == list(range(35))


def test_a_stream_of_json_refuses_rows_that_are_none_and_a_closed_one_all(server: Server, broker: DriftQ) -> None:
    broker.stream("logs/app", "application/json").create()
    options = options_of(server, stream="logs/app")
    for value in ("no json", "1,2"):
        with pytest.raises(Exception, match="the stream logs/app holds JSON"):
            write_rows(options, "q", 0, 0, iter([pa.record_batch({"value": [value]})]))

    broker.stream("logs/app", "application/json").close()
    with pytest.raises(Exception, match="is closed"):
        write_rows(options, "q", 0, 0, iter([pa.record_batch({"value": ["1"]})]))


def test_a_missing_topic_is_reported(server: Server) -> None:
    with pytest.raises(SinkRefused, match="there is no topic orders; create it first"):
        write_rows(options_of(server, topic="orders"), "q", 0, 0, rows(0, 5))


def test_keys_and_partitions_meet_the_same_log_in_both_modes(server: Server, broker: DriftQ) -> None:
    for mode in ("staged", "direct"):
        broker.topics.create(mode, partitions=3)
        options = options_of(server, topic=mode, mode=mode)
        batch = pa.record_batch(
            {
                "value": [str(number) for number in range(60)],
                "key": [f"k{number % 7}" if number % 3 else None for number in range(60)],
                "partition": pa.array([2 if number % 5 == 0 else None for number in range(60)], pa.int32()),
            }
        )
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, iter([batch]))])

    staged, direct = (logs_of(server.url, mode) for mode in ("staged", "direct"))
    assert {n: sorted(records) for n, records in staged.items()} == {
        n: sorted(records) for n, records in direct.items()
    }


def test_direct_chunks_of_two_partitions_are_in_flight_together_and_each_partition_keeps_its_order(
    orders: Server,
) -> None:
    options = options_of(orders, topic="orders", mode="direct", chunkRows="1")
    numbers = range(120)
    batch = pa.record_batch(
        {
            "value": [f"row {number}" for number in numbers],
            "partition": pa.array([n // 3 % 2 for n in numbers], pa.int32()),
        }
    )
    write_rows(options, "q", 0, 0, iter([batch]))
    for partition, records in logs_of(orders.url, "orders").items():
        values = [int(record.value.split()[1]) for record in records]
        assert values == [number for number in numbers if number // 3 % 2 == partition]

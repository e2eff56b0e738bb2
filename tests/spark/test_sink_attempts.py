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
from tests.spark.reads import logs_of, topic_records
from tests.support.server import Server
from tests.support.wait import until_now


def options_of(server: Server, **given: object) -> WriteOptions:
    texts = {"url": server.url, "chunkRows": "10", **{name: str(value) for name, value in given.items()}}
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
def test_an_older_batch_is_refused_and_told_what_to_do(orders: Server, mode: str) -> None:
    options = options_of(orders, topic="orders", mode=mode)
    publish_batch(options, 7, [write_rows(options, "q", 7, 0, rows(0, 5))])

    with pytest.raises(SinkRefused, match=r"batch 7 and now .* checkpoint is lost,? or an older copy"):
        publish_batch(options, 6, [write_rows(options, "q", 6, 0, rows(5, 9))])

    assert numbers_of(orders) == list(range(5))


def test_another_batch_under_an_old_number_is_refused_aloud(orders: Server) -> None:
    options = options_of(orders, topic="orders")
    publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 5))])

    with pytest.raises(SinkRefused, match="published before with 5 rows and has 6 now"):
        publish_batch(options, 0, [write_rows(options, "q", 0, 0, rows(0, 6))])
    unchecked = options_of(orders, topic="orders", replayCheck="none")
    publish_batch(unchecked, 0, [write_rows(options, "q", 0, 0, rows(0, 6))])

    assert numbers_of(orders) == list(range(5))


def test_direct_refuses_other_rows_under_the_same_number(orders: Server) -> None:
    options = options_of(orders, topic="orders", mode="direct")
    write_rows(options, "q", 0, 0, rows(0, 5))

    with pytest.raises(SinkRefused, match=r"other rows, or in another order.*mode=staged"):
        write_rows(options, "q", 0, 0, rows(0, 5, "other"))


def test_direct_goes_on_where_an_attempt_was_killed(orders: Server) -> None:
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


def test_an_empty_batch_asks_the_broker_nothing() -> None:
    options = write_options({"topic": "orders", "url": "http://127.0.0.1:1"}, streaming=True)

    publish_batch(options, 0, [write_rows(options, "q", 0, 0, iter(()))])


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
    found: list[Any] = json.loads(text if kind == "application/json" else f"[{text.replace('}{', '},{')}]")
    assert [each["id"] for each in found] == list(range(35))


def test_a_stream_of_json_refuses_rows_that_are_none_and_a_closed_one_all(server: Server, broker: DriftQ) -> None:
    broker.stream("logs/app", "application/json").create()
    options = options_of(server, stream="logs/app")
    for value in ("no json", "1,2"):
        with pytest.raises(Exception, match="the stream logs/app holds JSON"):
            write_rows(options, "q", 0, 0, iter([pa.record_batch({"value": [value]})]))

    broker.stream("logs/app", "application/json").close()
    with pytest.raises(Exception, match="is closed"):
        write_rows(options, "q", 0, 0, iter([pa.record_batch({"value": ["1"]})]))


def test_a_missing_topic_is_told(server: Server) -> None:
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

"""`driftq bench`: measure a server with one client, for a few seconds, in a topic of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.param_types import DURATION, SIZE

if TYPE_CHECKING:
    from driftq.client.api import DriftQ

CLAIM_MAX = 1_000


@click.command()
@click.option("--time", "time_ms", type=DURATION, default=2_000, help="Duration of each part (default: 2s).")
@click.option("--size", "size_bytes", type=SIZE, default=100, show_default=True, help="Size of a message.")
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 1_024), default=1, show_default=True, help="Partitions of the topic."
)
@broker_command
def command(invocation: Invocation, time_ms: int, size_bytes: int, partitions: int) -> None:
    """Measure single sends, bulk produce, and claims with acks. Uses a new topic, which is deleted afterwards.

    The figures include this client process; on one machine it shares the cores with the server.

    Example: driftq bench --time 5s --size 1kB
    """
    broker, value = invocation.broker, b"v" * size_bytes
    topic = f"bench-{os.urandom(4).hex()}"
    broker.topics.create(topic, partitions=partitions)
    try:
        results = [
            _sends(broker, topic, value, time_ms / 1_000),
            _bulk(broker, topic, value, partitions, time_ms / 1_000),
            _claims(broker, topic, time_ms / 1_000),
        ]
    finally:
        broker.topics.delete(topic)
    if invocation.as_json:
        output.document({"size_bytes": size_bytes, "partitions": partitions, "results": results})
        return
    rows = (
        (
            result["case"], result["messages"], round(result["messages_per_s"]),
            output.size(round(result["bytes_per_s"])) + "/s",
            *(f"{result[name]:.2f}" if name in result else "" for name in ("p50_ms", "p99_ms")),
        )
        for result in results
    )  # fmt: skip
    output.table(("CASE", "MESSAGES", "PER SECOND", "BYTES", "P50 MS", "P99 MS"), rows)


def _sends(broker: DriftQ, topic: str, value: bytes, seconds: float) -> dict[str, Any]:
    """One message for each call, durable before the next."""
    times_s: list[float] = []
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        while (started_s := time.perf_counter()) < end_s:
            broker.send(topic, value)
            times_s.append(time.perf_counter() - started_s)
    times_s.sort()
    quantiles = {"p50_ms": 1e3 * times_s[len(times_s) // 2], "p99_ms": 1e3 * times_s[len(times_s) * 99 // 100]}
    return _result("send, one at a time", len(times_s), len(value), result["wall_s"]) | quantiles


def _bulk(broker: DriftQ, topic: str, value: bytes, partitions: int, seconds: float) -> dict[str, Any]:
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        with broker.producer(topic) as producer:
            batch = 0
            while time.perf_counter() < end_s:
                producer.send_many([value] * 1_000, partition=batch % partitions)
                batch += 1
            producer.flush()
            count = producer.written_count
    return _result("produce, in bulk", count, len(value), result["wall_s"])


def _claims(broker: DriftQ, topic: str, seconds: float) -> dict[str, Any]:
    count = size_bytes = 0
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            claimed = broker.claim(topic, "bench", max=CLAIM_MAX)
            if not claimed:
                break
            size_bytes += sum(len(message.value) for message in claimed)
            broker.ack(claimed)
            count += len(claimed)
    return _result("claim and ack", count, size_bytes // max(1, count), result["wall_s"])


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    result: dict[str, float] = {}
    started_s = time.perf_counter()
    yield result
    result["wall_s"] = time.perf_counter() - started_s


def _result(case: str, count: int, size_bytes: int, wall_s: float) -> dict[str, Any]:
    rate = count / wall_s
    return {"case": case, "messages": count, "messages_per_s": rate, "bytes_per_s": rate * size_bytes}

"""`driftq bench`: what a server does for one client, in a few seconds and a topic of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.command import Invocation, asks
from driftq.cli.param_types import DURATION, SIZE

if TYPE_CHECKING:
    from driftq.client.api import DriftQ

CLAIM = 1_000


@click.command()
@click.option("--time", "time_ms", type=DURATION, default=2_000, help="For each part (default 2s).")
@click.option("--size", "size_bytes", type=SIZE, default=100, show_default=True, help="Of a message.")
@click.option("--partitions", "-p", type=click.IntRange(1, 1_024), default=1, show_default=True, help="Of the topic.")
@asks
def command(asked: Invocation, time_ms: int, size_bytes: int, partitions: int) -> None:
    """Measure a server: single sends, bulk, claims with acks. The topic is made for it and deleted afterwards.

    One client process is measured together with the server; on one machine they share its cores.

    Example: driftq bench --time 5s --size 1kB
    """
    broker, value = asked.broker, b"v" * size_bytes
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
    if asked.as_json:
        output.document({"size_bytes": size_bytes, "partitions": partitions, "results": results})
        return
    rows = (
        (
            each["case"], each["messages"], round(each["messages_per_s"]),
            output.size(round(each["bytes_per_s"])) + "/s",
            f"{each['p50_ms']:.2f}" if "p50_ms" in each else "", f"{each['p99_ms']:.2f}" if "p99_ms" in each else "",
        )
        for each in results
    )  # fmt: skip
    output.table(("CASE", "MESSAGES", "PER SECOND", "BYTES", "P50 MS", "P99 MS"), rows)


def _sends(broker: DriftQ, topic: str, value: bytes, seconds: float) -> dict[str, Any]:
    """One message a call, durable before the next."""
    taken: list[float] = []
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            broker.send(topic, value)
            taken.append(time.perf_counter() - began_s)
    taken.sort()
    quantiles = {"p50_ms": 1e3 * taken[len(taken) // 2], "p99_ms": 1e3 * taken[len(taken) * 99 // 100]}
    return _result("send, one at a time", len(taken), len(value), result["wall_s"]) | quantiles


def _bulk(broker: DriftQ, topic: str, value: bytes, partitions: int, seconds: float) -> dict[str, Any]:
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        with broker.producer(topic) as producer:
            turn = 0
            while time.perf_counter() < end_s:
                producer.send_many([value] * 1_000, partition=turn % partitions)
                turn += 1
            producer.flush()
            count = producer.written_count
    return _result("produce, in bulk", count, len(value), result["wall_s"])


def _claims(broker: DriftQ, topic: str, seconds: float) -> dict[str, Any]:
    count = size_bytes = 0
    with _timed() as result:
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            found = broker.claim(topic, "bench", max=CLAIM)
            if not found:
                break
            size_bytes += sum(len(message.value) for message in found)
            broker.ack(found)
            count += len(found)
    return _result("claim and ack", count, size_bytes // max(1, count), result["wall_s"])


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    result: dict[str, float] = {}
    began_s = time.perf_counter()
    yield result
    result["wall_s"] = time.perf_counter() - began_s


def _result(case: str, count: int, size_bytes: int, wall_s: float) -> dict[str, Any]:
    rate = count / wall_s
    return {"case": case, "messages": count, "messages_per_s": rate, "bytes_per_s": rate * size_bytes}

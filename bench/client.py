"""The Python client against a real broker process on real files: what one process of a user gets.

    python -m bench.client --seconds 3
    python -m bench.client --only producer,worker

`cpu_us_per_op` is the client's CPU per message, `server_cpu_us_per_op` the broker's. On a shared machine they are more
reliable than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import driftq
from bench.queue import ROOMY, cpu_s
from bench.report import emit, median
from tests.support.server import Server

VALUE = b"v" * 100


class Bench:
    """One broker and one client of it."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.seconds = seconds
        self.server = Server(folder, *ROOMY)
        self.broker = driftq.connect(f"http://127.0.0.1:{self.server.port}")

    def close(self) -> None:
        self.broker.close()
        self.server.stop()

    @contextlib.contextmanager
    def measured(self, case: str, count: Callable[[], int]) -> Iterator[None]:
        """Emit what a block did, by what `count` says when it is over."""
        server_s, client_s, wall_s = cpu_s(self.server), time.process_time(), time.perf_counter()
        yield
        wall_s = time.perf_counter() - wall_s
        client_s, server_s = time.process_time() - client_s, cpu_s(self.server) - server_s
        done = max(1, count())
        emit("client", case, done / wall_s, "messages/s",
             cpu_us_per_op=1e6 * client_s / done, server_cpu_us_per_op=1e6 * server_s / done)  # fmt: skip


def import_time(bench: Bench) -> None:
    """`import driftq` and the first use of `connect`, in fresh processes."""
    for case, program in (
        ("import", "import driftq"),
        ("import and connect", "import driftq; driftq.connect()"),
        ("import worker", "import driftq; driftq.worker"),
    ):
        timed = f"import time; b=time.perf_counter(); {program}; print(1e3*(time.perf_counter()-b))"
        runs = [
            float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)
            for _ in range(5)
        ]
        emit("client", case, median(runs), "ms", cpu_us_per_op=0.0)


def send(bench: Bench) -> None:
    """One message a call, durable before it returns."""
    bench.broker.topics.create("send")
    done = 0
    with bench.measured("send", lambda: done):
        end_s = time.perf_counter() + bench.seconds
        while time.perf_counter() < end_s:
            bench.broker.send("send", VALUE)
            done += 1


def producer(bench: Bench, case: str = "producer", **words: bool) -> None:
    """`send` of the batching producer, from one thread."""
    topic = case.replace(" ", "-")
    bench.broker.topics.create(topic, partitions=4 if words else 1)
    keys = [f"key-{number}" for number in range(1_000)] if words else [""]
    done = 0
    with bench.measured(case, lambda: done):
        end_s = time.perf_counter() + bench.seconds
        with bench.broker.producer(topic) as orders:
            while time.perf_counter() < end_s:
                for index in range(1_000):
                    orders.send(VALUE, keys[index % len(keys)])
            orders.flush()
            done = orders.written_count


def producer_many(bench: Bench) -> None:
    """`send_many`, a thousand messages a call."""
    bench.broker.topics.create("producer-many")
    values = [VALUE] * 1_000
    done = 0
    with bench.measured("producer many", lambda: done):
        end_s = time.perf_counter() + bench.seconds
        with bench.broker.producer("producer-many") as orders:
            while time.perf_counter() < end_s:
                orders.send_many(values)
            orders.flush()
            done = orders.written_count


def producer_async(bench: Bench) -> None:
    bench.broker.topics.create("producer-async")
    done = 0

    async def produce() -> None:
        nonlocal done
        async with bench.broker.asynchronous() as broker:
            end_s = time.perf_counter() + bench.seconds
            async with broker.producer("producer-async") as orders:
                while time.perf_counter() < end_s:
                    for _ in range(1_000):
                        await orders.send(VALUE)
                    await asyncio.sleep(0)
                await orders.flush()
                done = orders.written_count

    with bench.measured("producer async", lambda: done):
        asyncio.run(produce())


def fill(bench: Bench, topic: str, count: int) -> None:
    bench.broker.topics.create(topic, partitions=4)
    with bench.broker.producer(topic) as orders:
        for number in range(count):
            orders.send(VALUE, partition=number % 4)


def worker(bench: Bench) -> None:
    """A worker that does nothing: claims in batches, one call a message, acks in batches."""
    fill(bench, "worker", int(40_000 * bench.seconds))
    done = 0

    @driftq.worker("worker", group="g", concurrency=8, prefetch=4_000)
    async def nothing(message: driftq.AsyncMessage) -> None:
        nonlocal done
        done += 1

    with bench.measured("worker", lambda: done):
        nothing.run(bench.broker, drain=True)


def worker_threads(bench: Bench) -> None:
    """The same with a plain function."""
    fill(bench, "worker-threads", int(8_000 * bench.seconds))
    done = 0

    @driftq.worker("worker-threads", group="g", concurrency=8, prefetch=1_000)
    def nothing(message: driftq.Message) -> None:
        nonlocal done
        done += 1

    with bench.measured("worker threads", lambda: done):
        nothing.run(bench.broker, drain=True)


def stream_producer(bench: Bench) -> None:
    stream = bench.broker.stream("bench", "application/json")
    stream.create()
    done = 0
    with bench.measured("stream producer", lambda: done):
        end_s = time.perf_counter() + bench.seconds
        with stream.producer() as tokens:
            while time.perf_counter() < end_s:
                for number in range(1_000):
                    tokens.append({"token": number})
            tokens.flush()
            done = tokens.written_count


def claim_ack(bench: Bench) -> None:
    """Claim a hundred messages and ack them, in two calls."""
    fill(bench, "claim-ack", int(40_000 * bench.seconds))
    done = 0
    with bench.measured("claim 100, then ack", lambda: done):
        while messages := bench.broker.claim("claim-ack", "g", max=100):
            done += len([message.value for message in messages])
            bench.broker.ack(messages)


def claims(bench: Bench) -> None:
    """Batches of a hundred, each acked by the call that claims the next one."""
    fill(bench, "claims", int(40_000 * bench.seconds))
    done = 0
    with bench.measured("claims of 100", lambda: done):
        for batch in bench.broker.claims("claims", "g", max=100, drain=True):
            done += len([message.value for message in batch])


def send_async(bench: Bench) -> None:
    """64 callers in one process, one message a call."""
    bench.broker.topics.create("send-async")
    done = 0

    async def call(broker: driftq.AsyncDriftQ, end_s: float) -> None:
        nonlocal done
        while time.perf_counter() < end_s:
            await broker.send("send-async", VALUE)
            done += 1

    async def run() -> None:
        async with bench.broker.asynchronous() as broker:
            end_s = time.perf_counter() + bench.seconds
            await asyncio.gather(*(call(broker, end_s) for _ in range(64)))

    with bench.measured("send, 64 async callers", lambda: done):
        asyncio.run(run())


RUNS: dict[str, Callable[[Bench], None]] = {
    "import": import_time,
    "send": send,
    "send async": send_async,
    "claim ack": claim_ack,
    "claims": claims,
    "producer": producer,
    "producer keyed": lambda bench: producer(bench, "producer keyed", keyed=True),
    "producer many": producer_many,
    "producer async": producer_async,
    "worker": worker,
    "worker threads": worker_threads,
    "stream producer": stream_producer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default=",".join(RUNS))
    parser.add_argument("--folder", default=None, help="where the broker's files go (default: a temporary folder)")
    arguments = parser.parse_args()
    for case in arguments.only.split(","):
        folder = tempfile.mkdtemp(prefix="bench-client-", dir=arguments.folder)
        bench = Bench(folder, arguments.seconds)
        try:
            RUNS[case](bench)
        finally:
            bench.close()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

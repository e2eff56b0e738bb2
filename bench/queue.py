"""The queue over HTTP: a real server process on real files, one client process.

    python -m bench.queue --seconds 3            everything
    python -m bench.queue --only produce,claim   some of it

Server CPU is read from the kernel, so the client's cost does not count. `sync_p50_ms` is one bare fdatasync on the same
disk in the same run, to compare durable figures with.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.commit import bare_sync_ms
from bench.load_client import LoadClient, closed_loop, post
from bench.report import emit, median, quantile
from driftq.wire.records import Record, pack
from tests.support.server import Server

VALUE = "v" * 100
PACKED = "application/x-driftq-batch"
ROOMY = ("queue.in_flight_max=100000000", "limits.partition_messages=100000000", "limits.partition_bytes=100000000000")


def cpu_s(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Bench:
    """One server under load."""

    def __init__(self, folder: str | None, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.server = Server(folder, *ROOMY)
        self.mode = "memory" if folder is None else "durable"
        self.call("/v1/topics", {"name": "t", "partitions": 1})

    def call(self, path: str, body: object) -> None:
        reply = self.server.call("POST", path, body)
        assert reply.status < 300, reply

    async def load(
        self, connections: int, step: Callable[[LoadClient], Awaitable[int]]
    ) -> tuple[float, float, list[float]]:
        """Messages/s, server CPU microseconds for a message, and the latencies of the steps."""
        clients = [await LoadClient.connect(self.server.port) for _ in range(connections)]
        latencies: list[float] = []
        done = 0
        end_s = time.perf_counter() + self.seconds

        async def work(client: LoadClient) -> None:
            nonlocal done
            while time.perf_counter() < end_s:
                began_s = time.perf_counter()
                count = await step(client)
                done += count
                latencies.append(time.perf_counter() - began_s)

        before_s, began_s = cpu_s(self.server), time.perf_counter()
        await asyncio.gather(*map(work, clients))
        wall_s, spent_s = time.perf_counter() - began_s, cpu_s(self.server) - before_s
        for client in clients:
            client.close()
        return done / wall_s, 1e6 * spent_s / max(1, done), latencies

    async def closed_loop(self, connections: int, make: Callable[[], bytes]) -> tuple[float, float, list[float]]:
        """The same for single requests, from the cheapest client."""
        before_s = cpu_s(self.server)
        rate, latencies = await closed_loop(self.server.port, make, connections, self.seconds)
        return rate, 1e6 * (cpu_s(self.server) - before_s) / max(1, len(latencies)), latencies


async def produce(bench: Bench, connections: int) -> None:
    request = post("/v1/produce", json.dumps({"topic": "t", "value": VALUE}).encode())
    rate, cpu_us, latencies = await bench.closed_loop(connections, lambda: request)
    emit("queue", f"produce {bench.mode} c={connections}", rate, "messages/s", cpu_us_per_op=cpu_us,
         per_cpu_s=1e6 / cpu_us, p50_ms=1e3 * median(latencies), p99_ms=1e3 * quantile(latencies, 0.99))  # fmt: skip


def lone_caller(bench: Bench) -> None:
    """One blocking caller, alternating with the bare sync that its produce waits for, so that the state of the disk is
    the same for both."""
    assert bench.folder is not None
    request = post("/v1/produce", json.dumps({"topic": "t", "value": VALUE}).encode())
    ratios, produces_ms = [], []
    with socket.create_connection(("127.0.0.1", bench.server.port)) as connection:
        for _ in range(max(3, int(4 * bench.seconds))):
            sync_ms = median(bare_sync_ms(str(Path(bench.folder).parent)))
            took_ms = []
            for _ in range(300):
                began_s = time.perf_counter()
                connection.sendall(request)
                reply = connection.recv(65_536)
                took_ms.append(1e3 * (time.perf_counter() - began_s))
                assert reply.startswith(b"HTTP/1.1 200"), reply
            produces_ms.append(median(took_ms))
            ratios.append(produces_ms[-1] / sync_ms)
    emit("queue", "produce durable, one blocking caller", median(produces_ms), "ms", over_a_bare_sync=median(ratios))


async def packed(bench: Bench, in_flight: int) -> None:
    batch = pack([Record(VALUE.encode())] * 1_000)
    request = post("/v1/produce/packed?topic=t", batch, PACKED)

    async def step(client: LoadClient) -> int:
        for status, body in await asyncio.gather(*(client.send(request) for _ in range(in_flight))):
            assert status == 200, body
        return 1_000 * in_flight

    rate, cpu_us, _ = await bench.load(2, step)
    emit("queue", f"packed 1000 {bench.mode}", rate, "messages/s", cpu_us_per_op=cpu_us)


def stream_of(topic: str, group: str) -> bytes:
    """A consumer that reads without settling anything."""
    query = f"topic={topic}&group={group}&owner=o&lease_ms=600000&prefetch=1000000"
    return f"GET /v1/consume?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


async def consume(bench: Bench) -> None:
    """One NDJSON stream over what the produce benches wrote, without acks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port, limit=1 << 20)
    writer.write(stream_of("t", "stream"))
    await reader.readuntil(b"\r\n\r\n")
    before_s, began_s, lines = cpu_s(bench.server), time.perf_counter(), 0
    while time.perf_counter() - began_s < bench.seconds:
        data = await asyncio.wait_for(reader.read(1 << 20), 5)
        lines += data.count(b'"value"')
    wall_s, spent_s = time.perf_counter() - began_s, cpu_s(bench.server) - before_s
    writer.close()
    emit("queue", f"consume ndjson {bench.mode}", lines / wall_s, "messages/s", cpu_us_per_op=1e6 * spent_s / lines)


async def claim(bench: Bench, claim_max: int) -> None:
    """Claim and ack in batches, on four connections."""
    ask = post("/v1/claim", json.dumps({"topic": "t", "group": "claims", "owner": "o", "max": claim_max}).encode())

    rate, cpu_us, _ = await bench.load(4, lambda client: claim_and_ack(client, "t", "claims", ask))
    emit("queue", f"claim {claim_max} + ack {bench.mode}", rate, "messages/s", cpu_us_per_op=cpu_us)


async def claim_and_ack(client: LoadClient, topic: str, group: str, ask: bytes) -> int:
    status, body = await client.send(ask)
    assert status == 200, body
    messages = json.loads(body)["messages"]
    held = [{"partition": m["partition"], "offset": m["offset"], "token": m["token"]} for m in messages]
    if held:  # a small backlog may be taken by the others
        done = {"topic": topic, "group": group, "messages": held}
        status, body = await client.send(post("/v1/ack/batch", json.dumps(done).encode()))
        assert status == 200, body
    return len(messages)


async def acks(bench: Bench) -> None:
    """Single acks, pipelined."""
    ask = post("/v1/claim", json.dumps({"topic": "t", "group": "acks", "owner": "o", "max": 500}).encode())

    async def step(client: LoadClient) -> int:
        _, body = await client.send(ask)
        messages = json.loads(body)["messages"]
        requests = [
            post("/v1/ack", json.dumps({"topic": "t", "group": "acks", "owner": "o", "partition": m["partition"],
                                        "offset": m["offset"], "token": m["token"]}).encode())
            for m in messages
        ]  # fmt: skip
        for at in range(0, len(requests), 100):
            for status, reply in await asyncio.gather(*(client.send(request) for request in requests[at : at + 100])):
                assert status == 204, reply
        return len(messages)

    rate, cpu_us, _ = await bench.load(4, step)
    emit("queue", f"single acks pipelined {bench.mode}", rate, "acks/s", cpu_us_per_op=cpu_us)


async def latency(bench: Bench, per_s: int = 500) -> None:
    """From the produce call to the line of an open consumer."""
    bench.call("/v1/topics", {"name": "live"})
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.server.port)
    writer.write(stream_of("live", "g"))
    await reader.readuntil(b"\r\n\r\n")
    client = await LoadClient.connect(bench.server.port)
    sent: dict[str, float] = {}
    seen: list[float] = []
    total = int(per_s * bench.seconds)

    async def receive() -> None:
        while len(seen) < total:
            line = await reader.readline()
            if line.startswith(b"{"):
                seen.append(time.perf_counter() - sent[json.loads(line)["value"]])

    receiving = asyncio.create_task(receive())
    began_s = time.perf_counter()
    for number in range(total):
        await asyncio.sleep(max(0.0, began_s + number / per_s - time.perf_counter()))
        sent[str(number)] = time.perf_counter()
        client.send(post("/v1/produce", json.dumps({"topic": "live", "value": str(number)}).encode()))
    await asyncio.wait_for(receiving, 30)
    writer.close()
    client.close()
    emit("queue", f"produce to delivered {bench.mode} at {per_s}/s", 1e3 * median(seen), "ms",
         p99_ms=1e3 * quantile(seen, 0.99))  # fmt: skip


async def backlog(bench: Bench, few: int, many: int) -> None:
    """The cost of a produce and of a claim with its ack, with few and with many messages waiting for the group."""
    costs = {}
    for count in (few, many):
        name = f"backlog{count}"
        bench.call("/v1/topics", {"name": name})
        bench.call(f"/v1/claim?topic={name}&group=g&owner=o", None)
        await fill(bench, name, count)
        request = post("/v1/produce", json.dumps({"topic": name, "value": VALUE}).encode())
        produced = await bench.closed_loop(16, lambda request=request: request)
        ask = post("/v1/claim", json.dumps({"topic": name, "group": "g", "owner": "o", "max": 100}).encode())
        refill = post(f"/v1/produce/packed?topic={name}", pack([Record(VALUE.encode())] * 100), PACKED)

        async def step(client: LoadClient, name: str = name, ask: bytes = ask, refill: bytes = refill) -> int:
            count = await claim_and_ack(client, name, "g", ask)
            await client.send(refill)  # the backlog stays as it is
            return count

        claimed = await bench.load(4, step)
        costs[count] = produced[:2], claimed[:2]
        for what, (rate, cpu_us) in zip(("produce", "claim 100 + ack"), costs[count], strict=True):
            case = f"{what} {bench.mode}, {count:,} messages of backlog"
            emit("queue", case, rate, "messages/s", cpu_us_per_op=cpu_us)
    for index, what in enumerate(("produce", "claim 100 + ack")):
        ratio = costs[many][index][1] / costs[few][index][1]
        emit("queue", f"{what} {bench.mode}, CPU at {many:,} of backlog over {few:,}", ratio, "times")


async def fill(bench: Bench, topic: str, count: int) -> None:
    batch = pack([Record(VALUE.encode())] * min(1_000, count))
    request = post(f"/v1/produce/packed?topic={topic}", batch, PACKED)
    client = await LoadClient.connect(bench.server.port)
    for _ in range(max(1, count // 1_000)):
        status, body = await client.send(request)
        assert status == 200, body
    client.close()


async def keys(bench: Bench, few: int, many: int) -> None:
    """The cost of a produce with an idempotency key that is new, with few and with many keys remembered."""
    bench.call("/v1/topics", {"name": "keyed"})
    numbers = itertools.count()

    def message() -> dict[str, object]:
        return {"value": VALUE, "envelope": {"idempotency_key": f"key-{next(numbers):012}"}}

    cpu_us_at = {}
    for count in (few, many):
        client = await LoadClient.connect(bench.server.port)
        while next(numbers) < count:
            messages = [message() for _ in range(min(2_000, count))]
            body = json.dumps({"topic": "keyed", "messages": messages}).encode()
            status, reply = await client.send(post("/v1/produce/batch", body))
            assert status == 200, reply
        client.close()
        rate, cpu_us, _ = await bench.closed_loop(
            16, lambda: post("/v1/produce", json.dumps({"topic": "keyed", **message()}).encode())
        )
        cpu_us_at[count] = cpu_us
        case = f"produce with a key {bench.mode}, {count:,} keys remembered"
        emit("queue", case, rate, "messages/s", cpu_us_per_op=cpu_us)
    ratio = cpu_us_at[many] / cpu_us_at[few]
    emit("queue", f"produce with a key {bench.mode}, CPU at {many:,} keys over {few:,}", ratio, "times")


async def run(bench: Bench, only: set[str], many: int) -> None:
    def selected(name: str) -> bool:
        return not only or name in only

    if selected("produce"):
        for connections in (1, 16, 64):
            await produce(bench, connections)
        if bench.mode == "durable":
            await asyncio.to_thread(lone_caller, bench)
    if selected("packed") or selected("consume") or selected("claim") or selected("acks"):
        await packed(bench, 4)
    if selected("consume"):
        await consume(bench)
    if selected("claim"):
        await claim(bench, 100)
    if selected("acks"):
        await acks(bench)
    if selected("latency"):
        await latency(bench)
    if selected("backlog"):
        await backlog(bench, 1_000, many)
    if selected("keys"):
        await keys(bench, 10, many)
    if selected("produce"):
        await produce(bench, 64)  # again, with everything above as history: must be as before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="", help="produce,packed,consume,claim,acks,latency,backlog,keys")
    parser.add_argument("--many", type=int, default=1_000_000, help="messages of backlog, and keys, that are many")
    parser.add_argument("--mode", choices=("memory", "durable", "both"), default="both")
    arguments = parser.parse_args()
    only = {name for name in arguments.only.split(",") if name}
    folder = tempfile.mkdtemp(prefix="driftq-bench-")
    try:
        emit("queue", "bare fdatasync of 4 KiB", median(bare_sync_ms(folder)), "ms")
        for where in ((None, folder + "/data") if arguments.mode == "both" else
                      (None,) if arguments.mode == "memory" else (folder + "/data",)):  # fmt: skip
            bench = Bench(where, arguments.seconds)
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(run(bench, only, arguments.many))
            finally:
                bench.server.stop()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

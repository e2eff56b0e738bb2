"""A steady mixed load on a real server: the latency of its requests through checkpoints, retention and expiries.

    python -m bench.steady [--seconds 60] [--per-s 2000] [--folder DIR] [--save NAME]
    python -m bench.steady --soak --seconds 1140 --save NAME      memory and descriptors of the server over time

Requests start on schedule, whether or not earlier ones were answered, so a pause delays all that are due in it; a late
start counts as latency. Segments are small, so that the journal rolls and is folded every few seconds. The longest
pauses are printed with their most likely cause.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.load_client import LoadClient, post
from bench.named_run import place, save_part
from bench.pauses import Observer, Pause, Wait, pauses
from bench.report import emit, median, quantile
from driftq.wire.produce import PACKED_TYPE
from driftq.wire.records import Record, pack
from tests.support.server import Server

SETTINGS = (
    "storage.segment_bytes=4194304",
    "limits.batch_bytes=1048576",
    "limits.partition_messages=100000000",
    "queue.in_flight_max=1000000",
    "idempotency.ttl_ms=5000",
)
TOPICS = (
    {"name": "work", "partitions": 4, "retention_bytes": 4 << 20},
    {"name": "lost", "retention_ms": 10_000, "retry": {"max_attempts": 2, "backoff_ms": 100}},
)
CONNECTIONS = 64
CLAIM_MAX = 50
LEASE_MS = 300
PAUSES = 8
USES = 20  # how often memory and descriptors are noted
VALUE = "v" * 100
WAIT_S = 30.0
# Twenty requests; what cannot be sent because nothing is claimed becomes a produce.
MIX = (
    "produce", "claim", "ack", "produce", "keyed", "abandon", "batch", "ack", "claim", "produce",
    "nack", "append", "produce", "claim", "ack", "lost", "produce", "keyed", "query", "lost",
)  # fmt: skip


class Load:
    """The requests, in the order of MIX, and what became of each."""

    def __init__(self, clients: list[LoadClient]) -> None:
        self.waits: list[Wait] = []
        self.refused: list[str] = []
        self._clients = itertools.cycle(clients)
        self._numbers = itertools.count()
        self._held: deque[list[dict[str, Any]]] = deque()
        batch = pack([Record(VALUE.encode())] * 100)
        self._fixed = {
            "produce": post("/v1/produce", _body(topic="work", value=VALUE)),
            "lost": post("/v1/produce", _body(topic="lost", value=VALUE)),
            "batch": post("/v1/produce/packed?topic=work&partition=0", batch, PACKED_TYPE),
            "claim": post("/v1/claim", _body(topic="work", group="g", owner="o", max=CLAIM_MAX)),
            "abandon": post("/v1/claim", _body(topic="lost", group="g", owner="o", max=10, lease_ms=LEASE_MS)),
            "append": post("/v1/stream/steady", VALUE.encode(), "text/plain"),
        }
        self._queries = itertools.cycle(["/v1/topics/work", "/v1/topics/lost", "/v1/topics", "/v1/groups?topic=work"])

    def send(self, kind: str, due_s: float) -> None:
        kind, request = self._request(kind)
        late_s = max(0.0, time.perf_counter() - due_s)
        future = next(self._clients).send(request)
        future.add_done_callback(functools.partial(self._done, kind, due_s, late_s))

    def _request(self, kind: str) -> tuple[str, bytes]:
        if kind in ("ack", "nack") and not self._held:
            kind = "produce"
        if kind == "keyed":
            envelope = {"idempotency_key": f"key-{next(self._numbers)}"}
            return kind, post("/v1/produce", _body(topic="work", value=VALUE, envelope=envelope))
        if kind == "query":
            return kind, f"GET {next(self._queries)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        if kind == "ack":
            return kind, post("/v1/ack/batch", _body(topic="work", group="g", messages=self._held.popleft()))
        if kind == "nack":
            messages = self._held.popleft()
            if messages[1:]:
                self._held.appendleft(messages[1:])
            return kind, post("/v1/nack/batch", _body(topic="work", group="g", messages=messages[:1], reason="bench"))
        return kind, self._fixed[kind]

    def _done(self, kind: str, due_s: float, late_s: float, future: asyncio.Future[tuple[int, bytes]]) -> None:
        self.waits.append(Wait(due_s, time.perf_counter(), late_s, kind))
        status, body = future.result()
        if status >= 300:
            self.refused.append(f"{kind}: {status} {body[:200].decode(errors='replace')}")
        elif kind == "claim":
            messages = json.loads(body)["messages"]
            if messages:
                self._held.append(
                    [{name: message[name] for name in ("partition", "offset", "token")} for message in messages]
                )


def _body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


async def run_schedule(load: Load, per_s: int, seconds: float) -> float:
    """Send what is due, look again within a millisecond, and wait for the last replies. Returns when it began."""
    began_s = time.perf_counter()
    kinds: Iterator[str] = itertools.cycle(MIX)
    total = int(per_s * seconds)
    sent, answered = 0, len(load.waits)
    while sent < total:
        now_s = time.perf_counter()
        while sent < total and began_s + sent / per_s <= now_s:
            load.send(next(kinds), began_s + sent / per_s)
            sent += 1
        await asyncio.sleep(min(0.001, 0.5 / per_s))
    deadline_s = time.perf_counter() + WAIT_S
    while len(load.waits) - answered < total:
        assert time.perf_counter() < deadline_s, f"{total - len(load.waits) + answered} requests were not answered"
        await asyncio.sleep(0.01)
    return began_s


class Use(NamedTuple):
    """What the server uses at a time."""

    at_s: float
    resident_mb: float
    descriptors: int
    data_mb: float  # in its folder


def use_of(pid: int, folder: Path, at_s: float) -> Use:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    stored = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            stored += path.stat().st_size
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Use(at_s, pages * os.sysconf("SC_PAGE_SIZE") / 1e6, descriptors, stored / 1e6)


async def watch(pid: int, folder: Path, every_s: float, uses: list[Use]) -> None:
    began_s = time.perf_counter()
    while True:
        uses.append(use_of(pid, folder, time.perf_counter() - began_s))
        await asyncio.sleep(every_s)


async def measure(
    server: Server, per_s: int, seconds: float, observer: Observer, folder: Path, uses: list[Use]
) -> tuple[Load, float]:
    clients = [await LoadClient.connect(server.port) for _ in range(CONNECTIONS)]
    load = Load(clients)
    await run_schedule(load, per_s, min(1.0, seconds / 4))  # connections, caches and the first claims
    load.waits.clear()
    watching = asyncio.ensure_future(watch(server.process.pid, folder, seconds / USES, uses))
    with observer:
        began_s = await run_schedule(load, per_s, seconds)
    watching.cancel()
    for client in clients:
        client.close()
    return load, began_s


class Events:
    """What the server did in a run, from its metrics and its folder."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._began = self._counts()

    def _counts(self) -> dict[str, float]:
        text = self._server.call("GET", "/v1/metrics").body.decode()
        counts = {
            "expiries": total(text, "driftq_lease_losses_total"),
            "dead letters": total(text, "driftq_dlq_messages_total"),
            "messages": total(text, "driftq_messages_produced_total"),
            "syncs": total(text, "driftq_fsync_seconds_count"),
            "stalls of the loop above 20 ms": total(text, "driftq_loop_stall_seconds_count"),
        }
        topic = self._server.call("GET", "/v1/topics/work").json()
        counts["messages deleted by retention"] = sum(part["start_offset"] for part in topic["partitions"])
        journals = [int(path.stem) for path in (self._folder / "journal").glob("*.journal") if path.stem.isdecimal()]
        counts["checkpoints"] = min(journals, default=1)  # a journal is deleted when a checkpoint covers it
        return counts

    def since(self) -> dict[str, int]:
        return {name: int(count - self._began[name]) for name, count in self._counts().items()}

    def stalls(self) -> dict[str, int]:
        """How often each cause held the loop for 20 ms and longer."""
        text = self._server.call("GET", "/v1/metrics").body.decode()
        pattern = r'^driftq_loop_stall_seconds_count\{cause="([^"]+)"\} (\S+)$'
        return {cause: int(float(count)) for cause, count in re.findall(pattern, text, re.MULTILINE)}


def total(metrics: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE))


def figures(waits: list[Wait]) -> dict[str, float]:
    waits_ms = [1e3 * wait.wait_s for wait in waits]
    return {
        "p50_ms": median(waits_ms),
        "p99_ms": quantile(waits_ms, 0.99),
        "p999_ms": quantile(waits_ms, 0.999),
        "max_ms": max(waits_ms, default=0.0),
    }


def report(load: Load, counts: dict[str, int], stalls: dict[str, int], longest: list[Pause], cpu_us: float) -> None:
    by_kind = {"all requests": load.waits} | {
        kind: [wait for wait in load.waits if wait.kind == kind] for kind in sorted({wait.kind for wait in load.waits})
    }
    for kind, waits in by_kind.items():
        values = figures(waits)
        emit("steady", f"p99.9 of {kind}", values["p999_ms"], "ms", requests=len(waits), **values,
             **({"cpu_us_per_op": cpu_us, **counts, "stalls": stalls} if kind == "all requests" else {}))  # fmt: skip
    for number, pause in enumerate(longest, 1):
        fields = pause._asdict()
        emit("steady", f"pause {number}", fields.pop("wait_ms"), "ms", **fields)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--per-s", type=int, default=2_000)
    parser.add_argument("--folder", help="where the data goes; the disk under it is what is measured")
    parser.add_argument("--save", metavar="NAME", help="add the results to bench/results/NAME.json")
    parser.add_argument("--soak", action="store_true", help="save memory and descriptors over time instead")
    options = parser.parse_args()
    header = place()
    uses: list[Use] = []
    folder = Path(tempfile.mkdtemp(prefix="bench-steady-", dir=options.folder))
    server = Server(str(folder / "data"), *SETTINGS)
    try:
        for topic in TOPICS:
            assert server.call("POST", "/v1/topics", topic).status < 300
        assert server.call("PUT", "/v1/stream/steady", None, {"Content-Type": "text/plain"}).status == 201
        events = Events(server, folder / "data")
        observer = Observer(server.process.pid, folder)
        load, began_s = uvloop.run(measure(server, options.per_s, options.seconds, observer, folder / "data", uses))
        counts, stalls = events.since(), events.stalls()
    finally:
        server.kill()  # the data is not kept
        shutil.rmtree(folder)
    assert not load.refused, f"{len(load.refused)} requests were refused, the first: {load.refused[0]}"
    longest = pauses(load.waits, observer.looks, observer.probes, began_s, PAUSES)
    cpu_s = observer.looks[-1].cpu_s - observer.looks[0].cpu_s
    report(load, counts, stalls, longest, 1e6 * cpu_s / len(load.waits))
    for use in uses:
        emit("steady", f"memory after {use.at_s:.2f} s", use.resident_mb, "MB", descriptors=use.descriptors,
             data_mb=use.data_mb)  # fmt: skip
    if options.save and options.soak:
        results = {
            **header, "per_s": options.per_s, "seconds": options.seconds, "requests": len(load.waits),
            "latency": figures(load.waits), "uses": [use._asdict() for use in uses],
            "events": ", ".join(f"{count:,} {name}" for name, count in counts.items()),
        }  # fmt: skip
        save_part(options.save, "soak", results)
    elif options.save:
        results = {
            **header, "per_s": options.per_s, "seconds": options.seconds,
            "latency": {"all requests": figures(load.waits)},
            "events": ", ".join(f"{count:,} {name}" for name, count in counts.items()),
            "stalls": stalls, "pauses": [pause._asdict() for pause in longest],
        }  # fmt: skip
        save_part(options.save, "steady", results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

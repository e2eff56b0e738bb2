"""Restart: how long a fresh process takes to open a folder, and how much memory it holds then.

    python -m bench.recover [--messages 1000000] [--keys 1000000] [--streams 100000] [--only TEXT] [--folder DIR]

One process fills a folder with single messages of 100 bytes and ends, cleanly or by SIGKILL; another opens it and says
what it took. "Killed early" leaves everything in one journal segment, so that no checkpoint has happened: the longest
way back there is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import uvloop

from bench.core import ONE
from bench.report import emit, folder_bytes, resident_bytes
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected, Reply
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import StorageOptions

LIMITS = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50, key_ttl_ms=24 * 3_600_000)
WINDOW = 2_000  # commands in flight while filling
FRAME_BYTES_MAX = 320


def options_for(ending: str, count: int) -> StorageOptions:
    if ending == "killed early":
        return StorageOptions(journal_segment_bytes=FRAME_BYTES_MAX * count + (1 << 20))
    return StorageOptions()


# --- filling ---


def messages(count: int) -> Iterator[c.Command]:
    command = c.Produce("t", ONE, 1, 100, partition=0)
    return (command for _ in range(count))


def keys(count: int) -> Iterator[c.Command]:
    for number in range(count):
        yield c.Produce("t", ONE, 1, 100, partition=0, once=c.ProduceKey("tenant", "t", f"order-{number:012d}"))


def streams(count: int) -> Iterator[c.Command]:
    for number in range(count):
        yield c.CreateStream(f"streams/{number:012d}", batch=ONE, count=1, payload_bytes=100)


FILLS: dict[str, Callable[[int], Iterator[c.Command]]] = {"messages": messages, "keys": keys, "streams": streams}


async def fill(folder: str, what: str, count: int, ending: str) -> None:
    engine = await Engine.open(folder, limits=LIMITS, options=options_for(ending, count))
    await engine.submit(c.CreateTopic("t", 1))
    loop = asyncio.get_running_loop()
    waiting = 0
    room: asyncio.Future[None] = loop.create_future()

    def answered(reply: Reply) -> None:
        nonlocal waiting
        assert not isinstance(reply, Rejected), reply
        waiting -= 1
        if waiting <= WINDOW // 2 and not room.done():
            room.set_result(None)

    for command in FILLS[what](count):
        waiting += 1
        engine.submit_to(command, answered)
        if waiting >= WINDOW:
            room = loop.create_future()
            await room
    while waiting:
        room = loop.create_future()
        await room
    if ending != "clean stop":
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.perf_counter()
    await engine.close()
    print(json.dumps({"close_s": time.perf_counter() - begun}))


# --- opening ---


async def open_again(folder: str, count: int, ending: str) -> None:
    """Open, say what it took, and go away without changing anything more."""
    bare_bytes = resident_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    engine = await Engine.open(folder, limits=LIMITS, options=options_for(ending, count))
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    report = engine.report
    assert report is not None
    print(
        json.dumps(
            {
                "wall_s": wall_s,
                "cpu_s": cpu_s,
                "resident_bytes": resident_bytes(),
                "bare_bytes": bare_bytes,
                "replayed": report.replayed,
                "snapshot_lsn": report.snapshot_lsn,
            }
        ),
        flush=True,
    )
    os.kill(os.getpid(), signal.SIGKILL)


def child(*arguments: str) -> dict[str, float]:
    """Run this module in its own process and return what it printed, if anything."""
    done = subprocess.run([sys.executable, "-m", "bench.recover", *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"bench.recover {' '.join(arguments)} ended with {done.returncode}")
    lines = done.stdout.decode().splitlines()
    printed: dict[str, float] = json.loads(lines[-1]) if lines else {}
    return printed


def measure(what: str, count: int, ending: str, parent: str | None, runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=parent) as root:
        folder = f"{root}/data"
        begun = time.perf_counter()
        filled = child("--fill", folder, what, str(count), ending)
        fill_s = time.perf_counter() - begun
        wait_for_folds(folder)
        sizes = {f"{name}_mb": folder_bytes(f"{folder}/{name}") / 1e6 for name in ("journal", "logs", "snapshots")}
        opened = sorted(
            (child("--open", folder, str(count), ending) for _ in range(runs)), key=lambda run: run["wall_s"]
        )
        middle = opened[len(opened) // 2]
        frames = middle["replayed"]
        emit(
            "recover", f"{count} {what}, {ending}", middle["wall_s"], "s",
            cpu_us_per_op=1e6 * middle["cpu_s"] / count, cpu_s=middle["cpu_s"],
            resident_mb=middle["resident_bytes"] / 1e6, bare_mb=middle["bare_bytes"] / 1e6,
            replayed=frames, frames_per_cpu_s=frames / middle["cpu_s"], snapshot_lsn=middle["snapshot_lsn"],
            fill_s=fill_s, close_s=filled.get("close_s", 0.0), runs=runs, **sizes,
        )  # fmt: skip


def wait_for_folds(folder: str) -> None:
    """A checkpoint of a killed process may still be folding; wait until it ends, so that it does not use the core."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pgrep = subprocess.run(
            ["pgrep", "-f", f"driftq.engine.snapshot_store {folder}"], capture_output=True, check=False
        )
        if pgrep.returncode:
            return
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to make the temporary data folders")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--fill", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--open", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.fill:
            folder, what, count, ending = options.fill
            runner.run(fill(folder, what, int(count), ending))
            return
        if options.open:
            folder, count, ending = options.open
            runner.run(open_again(folder, int(count), ending))
            return
    for what, count, endings in (
        ("messages", options.messages, ("clean stop", "killed", "killed early")),
        ("keys", options.keys, ("clean stop", "killed")),
        ("streams", options.streams, ("clean stop", "killed")),
    ):
        for ending in endings:
            if count and options.only in f"{what}, {ending}":
                measure(what, count, ending, options.folder, options.runs)


if __name__ == "__main__":
    main()

"""The archive: what shipping costs a producer, how far it is behind, how fast a folder is restored, and how fast old
records are read that are only there.

    python -m bench.archive [--seconds 5] [--runs 5] [--messages 10000000] [--folder DIR] [--only TEXT]

What is only in the archive is read in turns with what is on the disk: the same records, in ranges as Spark asks for
them. `bare_mb_per_s` is what the object store gives on this machine when nothing is done with the bytes.

Runs with and without an archive take turns. The archive is a folder on the same disk, or a real S3 server on the same
machine, which takes its share of the cores: what it costs here is more than what it costs with a store elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.core import HUNDRED, ONE, THOUSAND
from bench.report import emit, folder_bytes, median
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected
from driftq.engine.archive_bases import ArchiveOptions
from driftq.engine.cold_reads import DOWNLOADS
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import Archive, StorageOptions
from driftq.repair.restore import RestorePoint, restore
from driftq.storage.archive.cloud_objects import open_object_store
from driftq.storage.cold_segments import LONG_WINDOW_BYTES
from driftq.storage.disk import OsDisk
from driftq.storage.tiers import TierLimits
from driftq.wire.records import read_header
from tests.support.s3_server import s3_server

LIMITS = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50)
BATCHES = {1: ONE, 100: HUNDRED, 1_000: THOUSAND}
SUBMITTERS = 16
LAG_POLL_S = 0.05
RANGE_BYTES = 4 << 20  # what the Spark source asks for at a time


class Produced(NamedTuple):
    """One run of producers."""

    messages: int
    wall_s: float
    cpu_s: float
    lags_ms: list[int]


def archive_at(url: str) -> Archive:
    return Archive(open_object_store(url), ArchiveOptions())


async def produce(folder: str, url: str | None, batch_records: int, seconds: float) -> Produced:
    """Durable produce by a few submitters, each with one batch in flight."""
    engine = await Engine.open(folder, limits=LIMITS, archive=archive_at(url) if url else None)
    await engine.submit(c.CreateTopic("t", 4))
    batch = BATCHES[batch_records]
    counts, lags_ms = [0] * SUBMITTERS, []
    end_s = time.perf_counter() + seconds

    async def submit(number: int) -> None:
        command = c.Produce("t", batch, batch_records, 100 * batch_records, partition=number % 4)
        while time.perf_counter() < end_s:
            reply = await engine.submit(command)
            assert not isinstance(reply, Rejected), reply
            counts[number] += batch_records

    async def watch() -> None:
        while time.perf_counter() < end_s:
            await asyncio.sleep(LAG_POLL_S)
            if engine.archiver is not None:
                lags_ms.append(engine.archiver.status().lag_ms)

    begun_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(watch(), *map(submit, range(SUBMITTERS)))
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
    await engine.close()
    return Produced(sum(counts), wall_s, cpu_s, lags_ms)


def measure_cost(kind: str, urls: list[str], batch_records: int, seconds: float, runs: int, parent: str | None) -> None:
    plain: list[Produced] = []
    archived: list[Produced] = []
    for run in range(runs):
        for url, results in ((None, plain), (urls[run], archived)):
            with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=parent) as folder:
                results.append(uvloop.run(produce(f"{folder}/data", url, batch_records, seconds)))
    rates = [median([run.messages / run.wall_s for run in results]) for results in (plain, archived)]
    cpu_us = [median([1e6 * run.cpu_s / run.messages for run in results]) for results in (plain, archived)]
    pairs = [1 - two.messages / two.wall_s / (one.messages / one.wall_s) for one, two in zip(plain, archived)]
    lags_ms = sorted(lag for run in archived for lag in run.lags_ms)
    emit(
        "archive", f"cost of shipping to {kind}, {batch_records} a batch", 100 * median(pairs), "%",
        cpu_us_per_op=cpu_us[1], plain_cpu_us_per_op=cpu_us[0], messages_per_s=rates[1], plain_messages_per_s=rates[0],
        lag_p50_ms=lags_ms[len(lags_ms) // 2], lag_p99_ms=lags_ms[int(0.99 * (len(lags_ms) - 1))],
        lag_max_ms=lags_ms[-1], runs=runs, load=os.getloadavg()[0],
    )  # fmt: skip


async def fill_engine(folder: str, url: str, messages: int, *, base_bytes: int = 256 << 20) -> None:
    archive = Archive(open_object_store(url), ArchiveOptions(base_bytes=base_bytes))
    engine = await Engine.open(folder, limits=LIMITS, archive=archive)
    archiver = engine.archiver
    assert archiver is not None
    await engine.submit(c.CreateTopic("t", 4))
    for number in range(messages // 1_000 // 32):
        commands = [c.Produce("t", THOUSAND, 1_000, 100_000, partition=turn % 4) for turn in range(32)]
        await asyncio.gather(*map(engine.submit, commands))
        while number % 16 == 0 and archiver.status().lag_bytes > 64 << 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await engine.close()


def measure_restore(messages: int, parent: str | None, archive: str) -> None:
    """`archive` is one that was made before, or where to make it; "": made for this run only."""
    with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=parent) as root:
        archive = archive or f"{root}/archive"
        if not os.path.isdir(archive):
            Path(archive).mkdir()
            uvloop.run(fill_engine(f"{root}/data", archive, messages))
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        report = restore(open_object_store(archive), OsDisk(), f"{root}/restored", RestorePoint())
        restore_s = time.perf_counter() - begun_s

        async def open_again() -> tuple[float, int]:
            engine = await Engine.open(f"{root}/restored", limits=LIMITS)
            served_s = time.perf_counter()
            count = sum(engine.durable_end(log_id) for log_id in engine.latest_state.topics["t"].log_ids)
            await engine.close()
            return served_s, count

        open_s = time.perf_counter()
        done_s, count = uvloop.run(open_again())
        assert count == messages // 32_000 * 32_000, f"{count} of {messages} messages are there"
        size_bytes = report.base_bytes + report.journal_bytes
        emit(
            "archive", f"restore of {messages} messages from a folder", size_bytes / restore_s / 1e6, "MB/s",
            cpu_us_per_op=1e6 * (time.process_time() - cpu_s) / messages, restore_s=restore_s, open_s=done_s - open_s,
            until_serving_s=done_s - begun_s, size_mb=size_bytes / 1e6, base_mb=report.base_bytes / 1e6,
            chunks=report.chunks, archive_mb=folder_bytes(archive) / 1e6, load=os.getloadavg()[0],
            peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        )  # fmt: skip


async def read_all(engine: Engine) -> int:
    """Every record of every partition, in ranges of `RANGE_BYTES`; returns the bytes."""
    size = 0
    for log_id in engine.latest_state.topics["t"].log_ids:
        offset, end = 0, engine.durable_end(log_id)
        while offset < end:
            batches = await engine.read_cold(log_id, offset, end, RANGE_BYTES)
            size += sum(map(len, batches))
            offset = read_header(batches[-1]).end_offset
    return size


async def make_tiered(folder: str, url: str, messages: int) -> None:
    """A folder of which most is only in the archive; `<folder>-local` is a copy from before that."""
    await fill_engine(folder, url, messages, base_bytes=16 << 20)
    shutil.copytree(folder, f"{folder}-local")
    options = ArchiveOptions(base_bytes=1 << 20, base_ms=500)
    engine = await Engine.open(
        folder, limits=LIMITS, archive=Archive(open_object_store(url), options),
        options=StorageOptions(tier=TierLimits(local_bytes=1)),
    )  # fmt: skip
    assert engine.cold_reads is not None
    total = 100 * messages
    while engine.cold_reads.figures().archived_bytes < total // 2:
        await engine.submit(c.Produce("t", HUNDRED, 100, 10_000))
        await asyncio.sleep(0.05)
    await engine.close()


def bare_gets(url: str) -> float:
    """MB/s of the object store alone: the same requests as cold reads make, and nothing is done with the bytes."""
    objects = open_object_store(url)
    rows = [row for row in objects.list("") if "/logs/" in row.key]
    ranges = [(row.key, start) for row in rows for start in range(0, row.size_bytes, LONG_WINDOW_BYTES)]
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(DOWNLOADS) as pool:
        sizes = pool.map(lambda part: len(objects.get_range(*part, LONG_WINDOW_BYTES)), ranges)
        return sum(sizes) / (time.perf_counter() - begun_s) / 1e6


def measure_cold(kind: str, url: str, messages: int, runs: int, parent: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=parent) as root:
        uvloop.run(make_tiered(f"{root}/data", url, messages))

        async def read(folder: str) -> tuple[float, float, float, float]:
            engine = await Engine.open(
                folder, limits=LIMITS, archive=archive_at(url) if folder.endswith("data") else None
            )
            assert engine.cold_reads is not None
            cpu_s, begun_s = time.process_time(), time.perf_counter()
            size = await read_all(engine)
            wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - cpu_s
            cold_bytes = engine.cold_reads.figures().downloaded_bytes
            await engine.close()
            return size / wall_s / 1e6, wall_s, cpu_s, cold_bytes / size

        local, cold, bare = [], [], []
        for _ in range(runs):
            bare.append(bare_gets(url))
            local.append(uvloop.run(read(f"{root}/data-local")))
            cold.append(uvloop.run(read(f"{root}/data")))
        emit(
            "archive", f"reads from {kind} compared with reads from the disk",
            100 * median([two[0] / one[0] for one, two in zip(local, cold)]), "%",
            cold_mb_per_s=median([row[0] for row in cold]), local_mb_per_s=median([row[0] for row in local]),
            bare_mb_per_s=median(bare),
            cold_cpu_s=median([row[2] for row in cold]), local_cpu_s=median([row[2] for row in local]),
            share_from_the_archive=cold[0][3], runs=runs, load=os.getloadavg()[0],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--cold-messages", type=int, default=3_000_000)
    parser.add_argument("--folder", default=None, help="where to make the temporary data folders")
    parser.add_argument("--archive", default="", help="a folder to restore; it is made if it is not there, and kept")
    parser.add_argument("--only", default="", help="cases whose name contains this: folder, s3, cold, restore")
    options = parser.parse_args()
    if options.only in "folder":
        with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=options.folder) as root:
            for records in BATCHES:
                urls = [f"{root}/{records}-{run}" for run in range(options.runs)]
                for url in urls:
                    Path(url).mkdir()
                measure_cost("a folder", urls, records, options.seconds, options.runs, options.folder)
    if options.only in "s3":
        with s3_server() as s3:
            s3.make_bucket("archive")
            os.environ.update(s3.environment())
            for records in BATCHES:
                urls = [f"s3://archive/{records}-{run}" for run in range(options.runs)]
                measure_cost("a local S3", urls, records, options.seconds, options.runs, options.folder)
    if options.only in "cold":
        with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=options.folder) as root:
            measure_cold("a folder", root, options.cold_messages, options.runs, options.folder)
        with s3_server() as s3:
            s3.make_bucket("archive")
            os.environ.update(s3.environment())
            measure_cold("a local S3", "s3://archive/cold", options.cold_messages, options.runs, options.folder)
    if options.only in "restore":
        measure_restore(options.messages, options.folder, options.archive)


if __name__ == "__main__":
    main()

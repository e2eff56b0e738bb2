"""What shipping to an archive costs while the broker is busy."""

from __future__ import annotations

import asyncio
import time

from driftq.core.model import commands as c
from driftq.engine.archive_bases import ArchiveOptions
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import Archive
from driftq.storage.archive.object_store import MemoryObjects
from driftq.wire.records import pack_one
from tests.support.wait import until

LOAD_S = 0.5
INTERVAL_MS = 100


def chunks_of(objects):
    return [row.key for row in objects.list("") if "/journal/" in row.key]


def test_a_busy_broker_stores_one_chunk_in_each_interval_and_not_one_for_each_commit(tmp_path):
    async def run():
        objects = MemoryObjects()
        archive = Archive(objects, ArchiveOptions(interval_ms=INTERVAL_MS))
        engine = await Engine.open(str(tmp_path), archive=archive)
        await engine.submit(c.CreateTopic("t", 1))
        begun_s, commits = time.monotonic(), 0
        while time.monotonic() - begun_s < LOAD_S:
            await engine.submit(c.Produce("t", pack_one(b"x" * 100, b""), 1, 100))
            commits += 1
        intervals = (time.monotonic() - begun_s) * 1_000 / INTERVAL_MS
        stored = len(chunks_of(objects))
        assert stored <= intervals + 2, f"{stored} chunks of {commits} commits"

        async def is_shipped():
            return not engine.archiver.status().lag_bytes

        await until(is_shipped, 10)
        await engine.close()

    asyncio.run(run())

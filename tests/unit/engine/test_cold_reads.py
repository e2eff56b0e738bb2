"""An engine whose old segments are only in the archive: what reads, claims and sweeps do, also while it is away."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected
from driftq.engine import archiver, maintenance
from driftq.engine.archive_bases import ArchiveOptions
from driftq.engine.cold_reads import RecordsAway
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import Archive, StorageOptions
from driftq.storage.archive.object_store import MemoryObjects
from driftq.storage.cold_segments import ColdRange
from driftq.storage.tiers import NO_LIMITS, TierLimits
from driftq.wire.errors import Code
from driftq.wire.records import pack_one, read_header, unpack
from tests.support.faulty_objects import FaultyObjects
from tests.support.wait import until

SMALL = 64 << 10
VALUE = b"x" * 4_000


def options(**fields):
    return StorageOptions(
        SMALL, SMALL, share_bytes=0, **{"tier": TierLimits(local_bytes=SMALL), "cold_cache_bytes": 1 << 20, **fields}
    )


class Tiered:
    """A folder, its archive, and an engine on it."""

    def __init__(self, path):
        self.path = str(path)
        self.objects = FaultyObjects(MemoryObjects(), 1)
        self.engine = None

    async def open(self, *, archive=True, **fields):
        chosen = Archive(self.objects, ArchiveOptions(interval_ms=5, base_bytes=1, base_ms=1))
        self.engine = await Engine.open(self.path, options=options(**fields), archive=chosen if archive else None)
        return self.engine

    async def fill(self, count, topic="t"):
        await self.engine.submit(c.CreateTopic(topic, 1))
        for number in range(count):
            value = b"%d " % number + VALUE
            assert not isinstance(await self.engine.submit(c.Produce(topic, pack_one(value, b""), 1, 4_000)), Rejected)

    async def tier(self):
        """Produce a little and wait, until some segment has left the disk."""
        store = self.engine.sequencer.store

        async def has_left():
            await self.engine.submit(c.Produce("t", pack_one(VALUE, b""), 1, 4_000))
            return store.tiers.cold_bytes > 0

        await until(has_left, 30)

    def log_id(self):
        return self.engine.latest_state.topics["t"].log_ids[0]

    def tier_files(self):
        folder = f"{self.path}/logs/{self.log_id()}"
        return [name for name in os.listdir(folder) if name.endswith(".tier")]


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """One folder, made once: each test gets a copy."""
    tiered = Tiered(tmp_path_factory.mktemp("tiered") / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "INTERVAL_S", 0.02)
        patch.setattr(archiver, "BASES_POLL_S", 0.02)

        async def make():
            await tiered.open()
            await tiered.fill(60)
            await tiered.tier()
            await tiered.engine.close()

        asyncio.run(make())
    return tiered


@pytest.fixture
def run(origin, tmp_path):
    """Run a test with an engine on a copy of that folder."""

    def run(test):
        tiered = Tiered(shutil.copytree(origin.path, tmp_path / "data"))
        tiered.objects.inner._objects.update(origin.objects.inner._objects)

        async def whole():
            await tiered.open(tier=NO_LIMITS)
            try:
                await test(tiered)
            finally:
                await tiered.engine.close()

        asyncio.run(whole())

    return run


async def all_values(engine, log_id):
    values, offset = [], 0
    end = engine.durable_end(log_id)
    while offset < end:
        for batch in await engine.read_cold(log_id, offset, end, 1 << 20):
            header = read_header(batch)
            values += [record.value for record in unpack(batch, header)]
            offset = header.end_offset
    return values


def test_what_left_the_disk_reads_as_before(run):
    async def test(tiered):
        engine = tiered.engine
        assert tiered.tier_files()
        for name in tiered.tier_files():
            assert name.replace(".tier", ".log") not in os.listdir(f"{tiered.path}/logs/{tiered.log_id()}")
        with pytest.raises(ColdRange):
            engine.read(tiered.log_id(), 0, 1, 1)
        values = await all_values(engine, tiered.log_id())
        assert values[:60] == [b"%d " % number + VALUE for number in range(60)]
        assert engine.cold_reads.downloads > 0

    run(test)


def test_it_reads_as_before_after_a_restart_and_after_another(run):
    async def test(tiered):
        before = await all_values(tiered.engine, tiered.log_id())
        for _ in range(2):
            await tiered.engine.close()
            engine = await tiered.open(tier=NO_LIMITS)
            assert (await all_values(engine, tiered.log_id()))[: len(before)] == before
            assert tiered.tier_files()

    run(test)


def test_a_range_is_downloaded_once_for_all_who_wait(run):
    async def test(tiered):
        log_id = tiered.log_id()
        await asyncio.gather(*(tiered.engine.read_cold(log_id, 0, 10, 1 << 20) for _ in range(20)))
        assert tiered.engine.cold_reads.downloads == 1

    run(test)


def test_a_group_that_is_far_behind_gets_its_messages(run):
    async def test(tiered):
        claimed = await tiered.engine.submit(c.Claim("t", "g", "o", 20))
        assert isinstance(claimed, Claimed)
        delivery = claimed.deliveries[0]
        batches = tiered.engine.read(
            delivery.log_id, delivery.first, delivery.end, 1 << 20
        )  # is here, when it is replied
        assert unpack(batches[0], read_header(batches[0]))[0].value == b"0 " + VALUE

    run(test)


def test_while_the_archive_is_away_nothing_is_shown_as_missing(run):
    async def test(tiered):
        tiered.objects.is_away = True
        engine, log_id = tiered.engine, tiered.log_id()
        with pytest.raises(RecordsAway, match="only in the archive"):
            await engine.read_cold(log_id, 0, 1, 1)
        claimed = await engine.submit(c.Claim("t", "g", "o", 5))
        assert isinstance(claimed, Rejected)
        assert claimed.code is Code.UNAVAILABLE
        end = engine.durable_end(log_id)
        assert engine.read(log_id, end - 1, end, 1), "what is here is read as ever"
        tiered.objects.is_away = False
        engine.cold_reads._away_until_s = 0.0
        claimed = await engine.submit(c.Claim("t", "g", "o", 5))
        assert isinstance(claimed, Claimed)
        assert [(part.first, part.end, part.attempts) for part in claimed.deliveries] == [(0, 5, 1)], (
            "no attempt counts"
        )

    run(test)


def test_leases_on_records_that_cannot_be_read_end_without_the_archive(run):
    async def test(tiered):
        engine = tiered.engine
        claimed = await engine.submit(c.Claim("t", "g", "o", 1, 100))
        assert isinstance(claimed, Claimed)
        engine.sequencer.store._cold_cache._limit_bytes = 0
        await engine.read_cold(tiered.log_id(), 30, 31, 1)  # the record leaves the cache
        tiered.objects.is_away = True
        group = engine.latest_state.topics["t"].groups["g"]

        async def has_ended():
            return 0 in group.progress[0].entries

        await until(has_ended, 20)

    run(test)


def test_an_object_with_other_bytes_is_never_shown(run):
    async def test(tiered):
        objects = tiered.objects.inner
        for key, held in list(objects._objects.items()):
            if "/logs/" in key:
                objects._objects[key] = held._replace(data=held.data[:100] + b"?" + held.data[101:])
        with pytest.raises(RecordsAway, match="not what was archived"):
            await tiered.engine.read_cold(tiered.log_id(), 0, 1, 1)

    run(test)


def test_a_missing_object_is_an_error_and_no_gap(run):
    async def test(tiered):
        for key in [key for key in tiered.objects.inner._objects if "/logs/" in key]:
            tiered.objects.inner.delete(key)
        with pytest.raises(RecordsAway, match="is missing there"):
            await all_values(tiered.engine, tiered.log_id())

    run(test)


def test_without_the_archive_the_broker_starts_and_says_what_it_needs(run):
    async def test(tiered):
        await tiered.engine.close()
        engine = await tiered.open(archive=False, tier=NO_LIMITS)
        with pytest.raises(RecordsAway, match=r"archive\.url"):
            await engine.read_cold(tiered.log_id(), 0, 1, 1)

    run(test)


def test_what_retention_ended_is_not_read_from_the_cache(run):
    async def test(tiered):
        engine, log_id = tiered.engine, tiered.log_id()
        await engine.read_cold(log_id, 0, 1, 1)
        await engine.submit(c.TrimTopic("t", 0, 1))
        assert read_header((await engine.read_cold(log_id, 0, 2, 1))[0]).first_offset == 1
        await engine.submit(c.DeleteTopic("t"))
        assert await engine.read_cold(log_id, 0, 2, 1) == []

    run(test)

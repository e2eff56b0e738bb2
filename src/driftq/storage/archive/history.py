"""Reads the history in an archive: the manifest, and the chunks of a generation and its parents, in order.

A listing may be behind, so it only says which chunks to fetch ahead. What follows a chunk is known from the chunk
itself, and the end of a generation is where a get finds nothing, or a seal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from driftq.storage import blocks
from driftq.storage.archive import chunks, manifest
from driftq.storage.archive.chunks import BadChunk, Chunk, chunk_key, journal_prefix, key_lsn
from driftq.storage.archive.manifest import MANIFEST, Manifest, Stretch
from driftq.storage.archive.object_store import ObjectMissing, ObjectStore

if TYPE_CHECKING:
    from driftq.storage.journal_reader import JournalRun

FETCHES = 8  # chunks that are fetched at the same time


class NoArchive(Exception):
    """There is no archive at this address."""

    def __init__(self, url: str) -> None:
        super().__init__(f"there is no archive at {url}: {MANIFEST} is missing")


class DamagedArchive(Exception):
    """An object of the archive is damaged or missing."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


def load_manifest(objects: ObjectStore) -> Manifest:
    """Raises `NoArchive`, `BadManifest` or `ObjectStoreError`."""
    try:
        return manifest.decode(objects.get(MANIFEST))
    except ObjectMissing:
        raise NoArchive(objects.url) from None


def chunk_at(objects: ObjectStore, generation: str, lsn: int) -> Chunk | None:
    """The chunk or seal that begins with an lsn; None if there is none. Raises `DamagedArchive`."""
    key = chunk_key(generation, lsn)
    try:
        chunk = chunks.decode(objects.get(key))
    except ObjectMissing:
        return None
    except BadChunk as error:
        raise DamagedArchive(key, str(error)) from error
    if chunk.run.first_lsn != lsn:
        raise DamagedArchive(key, f"this is the chunk of lsn {chunk.run.first_lsn} under another name")
    return chunk


def history_runs(
    objects: ObjectStore, stretches: list[Stretch], after_lsn: int, fetches: int = FETCHES
) -> Iterator[tuple[Chunk, JournalRun]]:
    """The blocks above `after_lsn`, in order, as far as the history goes without a gap: each chunk, and its run cut to
    what counts. `after_lsn` is the end of a chunk. Raises `DamagedArchive` if they are not one history."""
    lsn, crc = after_lsn, None
    with ThreadPoolExecutor(max(1, fetches), "driftq-archive") as pool:
        for stretch in stretches:
            if stretch.last_lsn is not None and stretch.last_lsn <= lsn:
                continue
            for chunk in _chunks_of(objects, pool, fetches, stretch.generation, lsn + 1):
                run = chunk.run if stretch.last_lsn is None else cut(chunk.run, stretch.last_lsn)
                if crc is not None and run.prev_crc != crc:
                    key = chunk_key(stretch.generation, run.first_lsn)
                    raise DamagedArchive(key, "it does not continue the chunk before it: it is of another history")
                if run.data:
                    yield chunk, run
                    lsn, crc = run.last_lsn, run.crc
                if stretch.last_lsn is not None and lsn >= stretch.last_lsn:
                    break
            if stretch.last_lsn is not None and lsn < stretch.last_lsn:
                return  # a gap: what follows cannot be used


def _chunks_of(
    objects: ObjectStore, pool: ThreadPoolExecutor, fetches_max: int, generation: str, lsn: int
) -> Iterator[Chunk]:
    """The chunks of one generation from an lsn on, up to its end."""
    prefix = journal_prefix(generation)
    listed = deque(sorted(key_lsn(row.key) for row in objects.list(prefix) if key_lsn(row.key) >= lsn))
    fetches: dict[int, Future[Chunk | None]] = {}
    try:
        while True:
            while listed and len(fetches) < fetches_max:
                ahead = listed.popleft()
                if ahead >= lsn:
                    fetches[ahead] = pool.submit(chunk_at, objects, generation, ahead)
            fetch = fetches.pop(lsn, None)
            chunk = fetch.result() if fetch is not None else chunk_at(objects, generation, lsn)
            if chunk is None or chunk.is_seal:
                return
            yield chunk
            lsn = chunk.next_lsn
            fetches = {first: fetch for first, fetch in fetches.items() if first >= lsn}
    finally:
        for fetch in fetches.values():
            fetch.cancel()


def boundaries(run: JournalRun) -> Iterator[tuple[int, int]]:
    """The last lsn and the checksum of each block of a run, in order."""
    position = 0
    while position < len(run.data):
        _, crc, _, length, lsn, count, _ = blocks.HEADER.unpack_from(run.data, position)
        yield lsn + count - 1, crc
        position += length


def cut(run: JournalRun, last_lsn: int) -> JournalRun:
    """The part of a run up to an lsn. A block that holds more is written again with fewer frames."""
    if run.last_lsn <= last_lsn:
        return run
    seed = run.segment.seed()
    position, crc = 0, run.prev_crc
    while position < len(run.data):
        _, block_crc, _, length, lsn, count, _ = blocks.HEADER.unpack_from(run.data, position)
        if lsn + count - 1 > last_lsn:
            break
        position, crc = position + length, block_crc
    data = run.data[:position]
    if position < len(run.data) and lsn <= last_lsn:
        frames = blocks.scan(run.data[position : position + length], 0, seed, crc, lsn).frames
        if len(frames) != count:
            raise DamagedArchive(f"lsn {lsn}", "the block is damaged")
        block, crc = blocks.encode(seed, crc, lsn, frames[: last_lsn + 1 - lsn])
        data += block
    return run._replace(last_lsn=min(last_lsn, run.last_lsn), crc=crc, data=data)

"""Verify an archive: read every object that a restore may need, and compare its checksums. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import google_crc32c

from driftq.repair.restore import find_gap, for_each
from driftq.storage import blocks
from driftq.storage.archive.bases import Piece, load_inventory
from driftq.storage.archive.chunks import journal_prefix
from driftq.storage.archive.history import FETCHES, DamagedArchive, history_runs, load_manifest
from driftq.storage.archive.manifest import bases_of, history
from driftq.storage.archive.object_store import ObjectMissing

if TYPE_CHECKING:
    from driftq.storage.archive.object_store import ObjectStore


@dataclass(slots=True)
class ArchiveCheck:
    """What a verification found."""

    bases: int = 0
    objects: int = 0
    size_bytes: int = 0
    chunks: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    shipped_ms: int = 0  # when the last chunk was shipped
    findings: list[str] = field(default_factory=list)


def verify_archive(objects: ObjectStore, generation: str = "", *, threads: int = FETCHES) -> ArchiveCheck:
    """Read what restores of a generation, the newest one by default, may need. Raises `NoArchive`, `BadManifest` or
    `ObjectStoreError`."""
    manifest = load_manifest(objects)
    check = ArchiveCheck()
    stretches = history(manifest, generation or manifest.head)
    pieces: dict[str, set[Piece]] = {}
    for base in bases_of(manifest, stretches[-1].generation):
        check.bases += 1
        try:
            for file in load_inventory(objects, base).files:
                for piece in file.pieces:
                    pieces.setdefault(piece.key, set()).add(piece)
        except DamagedArchive as error:
            check.findings.append(str(error))
    for_each(lambda item: _verify_object(objects, check, *item), list(pieces.items()), threads)
    check.first_lsn = max(manifest.first_lsn, stretches[0].first_lsn)
    check.last_lsn = check.first_lsn - 1
    try:
        for chunk, run in history_runs(objects, stretches, check.first_lsn - 1, threads):
            scan = blocks.scan(run.data, 0, run.segment.seed(), run.prev_crc, run.first_lsn)
            if (scan.next_lsn, scan.prev_crc) != (run.last_lsn + 1, run.crc):
                check.findings.append(f"the chunk of lsn {run.first_lsn}: a block is damaged")
                break
            check.chunks += 1
            check.size_bytes += len(run.data)
            check.last_lsn, check.shipped_ms = run.last_lsn, chunk.at_ms
    except DamagedArchive as error:
        check.findings.append(str(error))
    known_lsn = manifest.next_lsn - 1 if stretches[-1].generation == manifest.head else 0
    gap = find_gap(objects, stretches, check.last_lsn, known_lsn)
    if gap is not None:
        check.findings.append(f"lsn {gap[0]} to {gap[1]} are missing")
    return check


def _verify_object(objects: ObjectStore, check: ArchiveCheck, key: str, pieces: set[Piece]) -> None:
    try:
        data = objects.get(key)
    except ObjectMissing:
        check.findings.append(f"{key}: the object is missing")
        return
    check.objects += 1
    check.size_bytes += len(data)
    for piece in pieces:
        part = data[piece.position : piece.position + piece.size_bytes]
        if len(part) != piece.size_bytes or google_crc32c.value(part) != piece.crc:
            check.findings.append(f"{key}: checksum mismatch from byte {piece.position} on")


def chunk_totals(objects: ObjectStore, generations: list[str]) -> Iterator[tuple[str, int, int]]:
    """(generation, chunks, bytes) of each generation, as far as a listing shows them."""
    for name in generations:
        rows = list(objects.list(journal_prefix(name)))
        yield name, len(rows), sum(row.size_bytes for row in rows)

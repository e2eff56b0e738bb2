"""What an archive still needs, and deleting the rest.

Kept is every point of the last `retain_ms`: the newest base before that time, all bases since, and the chunks after the
oldest of them. Everything else goes: first out of the manifest, then the objects. Nothing else deletes objects.

Objects are found by a listing. One that is behind only delays a deletion. Keys of generations that the manifest does
not name are left alone: a later writer may have just stored them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from driftq.storage.archive.chunks import key_lsn
from driftq.storage.archive.manifest import Base, Manifest, bases_of, history

if TYPE_CHECKING:
    from driftq.storage.archive.bases import Inventory
    from driftq.storage.archive.object_store import ObjectStore


def retained(manifest: Manifest, since_ms: int) -> Manifest:
    """The manifest without what no point since then needs. The same object if nothing ends."""
    own = list(bases_of(manifest, manifest.head))  # newest first
    before = next((base for base in own if base.at_ms <= since_ms), None)
    first_lsn = before.lsn + 1 if before is not None else manifest.first_lsn
    bases = tuple(base for base in manifest.bases if _is_kept(base, before, since_ms))
    alive = {stretch.generation for stretch in history(manifest, manifest.head)}
    generations = []
    for generation in manifest.generations:
        is_recent = generation.started_ms > since_ms or any(base.generation == generation.name for base in bases)
        if (
            generation.name == manifest.head
            or is_recent
            or (generation.name in alive and not _ends(manifest, generation.name, first_lsn))
        ):
            generations.append(generation)
    if (
        len(bases) == len(manifest.bases)
        and len(generations) == len(manifest.generations)
        and first_lsn <= manifest.first_lsn
    ):
        return manifest
    return structs.replace(
        manifest, bases=bases, generations=tuple(generations), first_lsn=max(first_lsn, manifest.first_lsn)
    )


def _is_kept(base: Base, before: Base | None, since_ms: int) -> bool:
    return base.at_ms > since_ms or base == before


def _ends(manifest: Manifest, name: str, first_lsn: int) -> bool:
    """Whether all that counts of a generation is before an lsn."""
    last = next(stretch.last_lsn for stretch in history(manifest, manifest.head) if stretch.generation == name)
    return last is not None and last < first_lsn


def unneeded(objects: ObjectStore, before: Manifest, kept: Manifest, inventories: Iterable[Inventory]) -> Iterator[str]:
    """The keys of objects that nothing needs any more, while no base is being made."""
    used = {base.key for base in kept.bases}
    for inventory in inventories:
        used |= inventory.keys()
    names = {generation.name for generation in kept.generations}
    alive = {stretch.generation for stretch in history(kept, kept.head)}
    for generation in before.generations:
        for row in objects.list(f"{generation.name}/"):
            if "/journal/" in row.key:
                is_old = generation.name in alive and key_lsn(row.key) < kept.first_lsn
                if generation.name not in names or is_old:
                    yield row.key
            elif row.key not in used:
                yield row.key

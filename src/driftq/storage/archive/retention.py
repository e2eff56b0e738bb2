"""What an archive still needs, and deleting the rest.

Kept is every point of the last `retain_ms`: the newest base before that time, all bases since, and the chunks after the
oldest of them. Everything else goes: first out of the manifest, then the objects. Nothing else deletes objects.

Objects are found by a listing. One that is behind only delays a deletion. Keys of generations after the head are left
alone: a later writer may have just stored them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from driftq.storage.archive.bases import Inventory, load_inventory
from driftq.storage.archive.chunks import key_lsn
from driftq.storage.archive.manifest import Base, Manifest, bases_of, history

if TYPE_CHECKING:
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.archive.writer import ArchiveWriter


def retire(writer: ArchiveWriter, since_ms: int) -> Manifest:
    """Take what has ended out of the manifest; returns what is left. Raises `Superseded` or `ObjectStoreError`."""
    # It is still this writer's: only then may it delete. And it has what got through although the reply was lost.
    writer.beat()
    assert writer.present is not None
    kept = retained(writer.present, since_ms)
    if kept is not writer.present:
        writer.retire(kept)
    return kept


def delete_unneeded(objects: ObjectStore, kept: Manifest) -> int:
    """Delete what a manifest that was just written does not need, while no base is being made; returns how much. Raises
    `DamagedArchive` or `ObjectStoreError`."""
    count = 0
    for key in unneeded(objects, kept, [load_inventory(objects, base) for base in kept.bases]):
        objects.delete(key)
        count += 1
    return count


def retained(manifest: Manifest, since_ms: int) -> Manifest:
    """The manifest without what no point since then needs. The same object if nothing ends."""
    own = list(bases_of(manifest, manifest.head))  # newest first
    before = next((base for base in own if base.at_ms <= since_ms), None)
    first_lsn = before.lsn + 1 if before is not None else manifest.first_lsn
    bases = tuple(base for base in manifest.bases if _is_kept(base, before, since_ms))
    linked = _linked(manifest, before, first_lsn)
    generations = []
    for generation in manifest.generations:
        is_recent = generation.started_ms > since_ms or any(base.generation == generation.name for base in bases)
        if is_recent or generation.name in linked:
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


def _linked(manifest: Manifest, base: Base | None, first_lsn: int) -> set[str]:
    """The generations that lead from the head back to the oldest base and to the first lsn after it, also those that
    wrote nothing: without one of them, what came before could not be reached."""
    names: set[str] = set()
    generation = manifest.generation(manifest.head)
    while generation is not None:
        names.add(generation.name)
        has_base = base is None or base.generation in names
        if has_base and generation.first_lsn <= first_lsn:
            break
        generation = manifest.generation(generation.parent)
    return names


def unneeded(objects: ObjectStore, kept: Manifest, inventories: Iterable[Inventory]) -> Iterator[str]:
    """The keys of objects that nothing needs any more, while no base is being made."""
    used = {base.key for base in kept.bases}
    for inventory in inventories:
        used |= inventory.keys()
    names = {generation.name for generation in kept.generations}
    alive = {stretch.generation for stretch in history(kept, kept.head)}
    for row in objects.list(""):
        name = row.key.partition("/")[0]
        if not _is_ours(name, kept.head):
            continue
        if "/journal/" in row.key:
            is_old = name in alive and key_lsn(row.key) < kept.first_lsn
            if name not in names or is_old:
                yield row.key
        elif row.key not in used:
            yield row.key


def _is_ours(name: str, head: str) -> bool:
    """Whether it is the head, or an older generation. A segment may be needed long after its generation has ended."""
    number = name.partition("-")[0]
    return name == head or (number.isdigit() and int(number) < int(head.partition("-")[0]))

"""The writer of an archive: claims a generation, ships the journal into it, and notices when another took over.

    attach()   read the manifest ─▶ seal the head ─▶ find what both histories have in common ─▶ replace the manifest
    ship()     read durable blocks ─▶ put_new(<generation>/journal/<first lsn>)                   one at a time
    beat()     replace the manifest: this writer lives, and has come so far

**One writer.** A generation has one writer, ever: its name is new, and the manifest that names it is replaced only if
it is the version that the writer has read. Two that claim at the same time: the second finds another version and is
refused.

**A writer that was replaced** may not know it: it was paused, or cut off. Its successor first *seals* the generation:
it takes the name of the chunk that would come next. Whatever the old writer had put there before counts; what it tries
afterwards finds the name taken. So a chunk that was stored is in the history of every later generation, and a reply
that waits for its chunk (`archive.mode = "sync"`) is never given for one that is lost. This needs one chunk in flight
at a time.

**What both have in common** is decided by the checksums of blocks, which stand for the whole history before them. A
broker that continues ships what the archive lacks. One that was restored to an earlier point branches off there. One
whose history is unrelated, or no longer there to compare, starts over and needs a base.

What the driver must do: call `attach` until it succeeds; then `ship` and `beat` now and then, from one thread at a
time. After `Superseded`, never write again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import structs

from driftq.storage.archive import chunks, manifest
from driftq.storage.archive.chunks import Chunk, chunk_key, journal_prefix, key_lsn
from driftq.storage.archive.history import boundaries, chunk_at
from driftq.storage.archive.manifest import MANIFEST, Base, Generation, Manifest, Owner, history
from driftq.storage.archive.object_store import ObjectExists, ObjectMissing, ObjectStore, VersionChanged
from driftq.storage.corruption import CorruptJournal

if TYPE_CHECKING:
    from driftq.storage.journal_reader import JournalReader, JournalRun


class ForeignArchive(Exception):
    """The prefix holds the archive of another store."""

    def __init__(self, url: str, other: str, store: str) -> None:
        super().__init__(
            f"{url} is the archive of another store ({other}, this one is {store}). Nothing was written. Use another "
            "prefix, or start on the data folder that belongs to it."
        )


class OtherWriter(Exception):
    """Another broker writes to this archive."""

    def __init__(self, url: str, present: Manifest) -> None:
        owner = present.owner
        super().__init__(
            f"another broker writes to {url} (host {owner.host}, process {owner.pid}, generation {present.head}). Stop "
            "it, or use another prefix."
        )
        self.present = present


class Superseded(Exception):
    """Another broker took the archive over. This one may not write to it any more."""

    def __init__(self, url: str, head: str) -> None:
        super().__init__(f"another broker took over the archive {url} (generation {head}); this one no longer writes")


class CopiedJournal(Protocol):
    """What an archive needs of a journal, beside the seam. `reader` may be used on another thread."""

    def first_lsn(self) -> int: ...

    def tail_lsn(self) -> int: ...

    def reader(self, after_lsn: int) -> JournalReader:
        """Blocks as they are stored, after this lsn. Raises `CorruptJournal` if no block begins there."""

    def segment_numbers(self) -> dict[int, int]:
        """The lsns that a copy can begin with, and the number of the segment that begins with each."""


class Link(NamedTuple):
    """Where a new generation continues."""

    parent: str
    lsn: int
    crc: int
    reader: JournalReader


class ArchiveWriter:
    """One process's writer. Nothing in it knows time, threads or chance: they are arguments."""

    def __init__(
        self,
        objects: ObjectStore,
        store: bytes,
        journal: CopiedJournal,
        owner: Owner,
        now_ms: Callable[[], int],
        new_token: Callable[[], str],
    ) -> None:
        self._objects = objects
        self._store = store
        self._journal = journal
        self._owner = owner
        self._now_ms = now_ms
        self._new_token = new_token
        self._version = ""  # of the manifest
        self._reader: JournalReader | None = None
        self._unsent: tuple[JournalRun, bytes] | None = None  # a chunk whose outcome is not known
        self.present: Manifest | None = None  # the manifest as last read or written
        self.generation = ""  # its own; "" before `attach`
        self.is_branch = False  # the archive had more than this journal: what the last bases hold may be of the rest
        self.shipped_lsn = 0  # everything up to here is in the archive
        self.shipped_crc = 0

    # --- claim ---

    def attach(self, *, is_gone: Callable[[Manifest], bool]) -> None:
        """Claim a new generation. `is_gone` returns whether the last owner has ended. Raises `ForeignArchive`,
        `OtherWriter`, `BadManifest`, `DamagedArchive`, `ObjectStoreError`."""
        self.close()
        present, version = self._read_manifest()
        name = f"{_next_number(present):06d}-{self._new_token()}"
        if present is None:
            self._claim(None, None, name, self._fresh_link())
            return
        if present.store != self._store.hex():
            raise ForeignArchive(self._objects.url, present.store, self._store.hex())
        if not (present.released or present.owner == self._owner or is_gone(present)):
            raise OtherWriter(self._objects.url, present)
        end_lsn, end_crc = self._seal(present, name)
        link = self._fork_point(present, end_lsn, end_crc) or self._fresh_link()
        self._claim(present, version, name, link)
        self.is_branch = not link.parent or link.lsn < end_lsn

    def _claim(self, present: Manifest | None, version: str | None, name: str, link: Link) -> None:
        generation = Generation(name, link.lsn + 1, link.parent, link.lsn if link.parent else 0, self._now_ms())
        fields = {
            "head": name,
            "owner": self._owner,
            "released": False,
            "next_lsn": link.lsn + 1,
            "next_crc": link.crc,
        }
        if present is None:
            claimed = Manifest(self._store.hex(), name, (generation,), owner=self._owner, next_lsn=link.lsn + 1)
            claimed = claimed.replaced(next_crc=link.crc, first_lsn=link.lsn + 1)
        else:
            claimed = present.replaced(generations=(*present.generations, generation), **fields)
        try:
            self._version = self._objects.replace(MANIFEST, manifest.encode(claimed), version)
        except VersionChanged:
            link.reader.close()
            present, _ = self._read_manifest()
            assert present is not None, "a manifest is never deleted"
            raise OtherWriter(self._objects.url, present) from None
        self.present, self.generation, self._reader = claimed, name, link.reader
        self._unsent = None
        self.shipped_lsn, self.shipped_crc = link.lsn, link.crc

    def _fresh_link(self) -> Link:
        """A history of its own, from the first lsn that the journal still has."""
        first_lsn = self._journal.first_lsn()
        reader = self._journal.reader(first_lsn - 1)
        return Link("", first_lsn - 1, reader.prev_crc, reader)

    def _seal(self, present: Manifest, by: str) -> tuple[int, int]:
        """End the head, so that its writer cannot add to it. Returns its last lsn and checksum."""
        lsn, crc = present.next_lsn, present.next_crc
        while True:
            chunk = chunk_at(self._objects, present.head, lsn)
            if chunk is None:
                seal = chunks.encode_seal(self._store, lsn, crc, by, self._now_ms())
                try:
                    self._objects.put_new(chunk_key(present.head, lsn), seal)
                except ObjectExists:
                    continue  # its writer was quicker, or it was sealed before
                return lsn - 1, crc
            if chunk.is_seal:
                return lsn - 1, crc
            lsn, crc = chunk.next_lsn, chunk.run.crc

    def _fork_point(self, present: Manifest, end_lsn: int, end_crc: int) -> Link | None:
        """The last block that the archive's history and the journal have in common; None if there is none left."""
        if end_lsn <= self._journal.tail_lsn():
            link = self._link_at(present.head, end_lsn, end_crc)
            if link is not None:
                return link
        upto = min(end_lsn, self._journal.tail_lsn())
        for stretch in reversed(history(present, present.head)):
            first_lsns = [key_lsn(row.key) for row in self._objects.list(journal_prefix(stretch.generation))]
            # The chunk after it, too, or the seal, knows how the block before it ends.
            for lsn in sorted((lsn for lsn in first_lsns if lsn <= upto + 1), reverse=True)[:2]:
                chunk = chunk_at(self._objects, stretch.generation, lsn)
                if chunk is None:
                    continue
                marks = [(lsn - 1, chunk.run.prev_crc), *(() if chunk.is_seal else boundaries(chunk.run))]
                last_lsn = upto if stretch.last_lsn is None else min(upto, stretch.last_lsn)
                for mark_lsn, crc in reversed([mark for mark in marks if mark[0] <= last_lsn]):
                    link = self._link_at(stretch.generation, mark_lsn, crc)
                    if link is not None:
                        return link
        return None

    def _link_at(self, generation: str, lsn: int, crc: int) -> Link | None:
        """A link there, if the journal has a block that ends at the lsn with this checksum."""
        try:
            reader = self._journal.reader(lsn)
        except CorruptJournal:
            return None
        if reader.prev_crc != crc:
            reader.close()
            return None
        return Link(generation, lsn, crc, reader)

    # --- ship ---

    def ship(self, max_bytes: int) -> JournalRun | None:
        """Store the next durable blocks; None if there are none. Raises `Superseded`, `CorruptJournal`, or
        `ObjectStoreError`, after which the same blocks are tried again."""
        assert self._reader is not None, "attach first"
        if self._unsent is None:
            run = self._reader.read(max_bytes)
            if run is None:
                return None
            self._unsent = run, chunks.encode(Chunk(self._store, run, self._now_ms()))
        run, data = self._unsent
        key = chunk_key(self.generation, run.first_lsn)
        try:
            self._objects.put_new(key, data)
        except ObjectExists:
            if self._objects.get(key) != data:  # else an earlier attempt got through
                raise self._superseded() from None
        self._unsent = None
        self.shipped_lsn, self.shipped_crc = run.last_lsn, run.crc
        return run

    def lag_bytes(self) -> int:
        """How much of the journal is durable and not in the archive."""
        if self._reader is None:
            return 0
        return self._reader.lag_bytes() + (len(self._unsent[0].data) if self._unsent is not None else 0)

    # --- the manifest ---

    def beat(self) -> None:
        """Show that this writer lives, and note how far it has come. Afterwards `present` is what is there."""
        self._replace(lambda present: present.replaced())

    def publish(self, base: Base) -> None:
        """Let restores begin with a base. Its objects are stored."""

        def with_base(present: Manifest) -> Manifest:
            others = (known for known in present.bases if (known.generation, known.lsn) != (base.generation, base.lsn))
            return present.replaced(bases=(*others, base))

        self._replace(with_base)

    def retire(self, kept: Manifest) -> None:
        """Keep only the bases and generations of `kept`, and the history from its first lsn on."""
        fields = {"bases": kept.bases, "generations": kept.generations, "first_lsn": kept.first_lsn}
        self._replace(lambda present: present.replaced(**fields))

    def release(self) -> None:
        """A clean end: the next writer need not wait."""
        self._replace(lambda present: present.replaced(released=True))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _replace(self, change: Callable[[Manifest], Manifest]) -> None:
        """Replace the manifest, if it is still this writer's. Raises `Superseded`. A failed call may have got through:
        `present` then lacks the change, until the next call finds out."""
        assert self.present is not None, "attach first"
        while True:
            changed = structs.replace(change(self.present), next_lsn=self.shipped_lsn + 1, next_crc=self.shipped_crc)
            try:
                self._version = self._objects.replace(MANIFEST, manifest.encode(changed), self._version)
            except VersionChanged:
                # An earlier attempt of this writer may have got through.
                present, version = self._read_manifest()
                if present is None or (present.head, present.owner) != (self.generation, self._owner):
                    raise self._superseded() from None
                self.present, self._version = present, version
                continue
            self.present = changed
            return

    def _read_manifest(self) -> tuple[Manifest | None, str]:
        """What is there, and its version. The version that this writer relies on is not changed by a look."""
        try:
            data, version = self._objects.get_versioned(MANIFEST)
        except ObjectMissing:
            return None, ""
        return manifest.decode(data), version

    def _superseded(self) -> Superseded:
        present, _ = self._read_manifest()
        return Superseded(self._objects.url, present.head if present is not None else "unknown")


def _next_number(present: Manifest | None) -> int:
    names = [generation.name for generation in present.generations] if present is not None else []
    return 1 + max((int(name.partition("-")[0]) for name in names), default=0)

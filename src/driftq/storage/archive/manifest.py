"""The manifest of an archive: which store it is of, its generations, and the bases that a restore can begin with.

A *generation* is what one writer has written, from its start to its end. Its history is that of its parent up to
`parent_lsn`, and then its own chunks. So a broker that was restarted, restored or copied never writes into the history
of the one before:

    000001-a  chunks 1 ........ 5,000 | 5,001 .. 7,200 |seal     the rest after 5,000 is on a branch of its own
    000002-b                     └──── 5,001 ............ 9,000 |seal
    000003-c                                                └──── 9,001 ....

A *base* is a snapshot and the files of the log store that belong to it: a restore begins with one, or with lsn 1. The
files are copied after the snapshot was made. What was trimmed or dropped in between may be missing in them, so a base
can be used for the points at which that had happened, from `valid_lsn` on.

The manifest is the one object that is replaced, always on the condition that it is the version the writer has read. It
is small: what retention has ended is removed from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
from msgspec import DecodeError, Struct, ValidationError, json, structs

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


class BadManifest(Exception):
    """The object of this name is no manifest that this version can read."""


class Owner(Struct, frozen=True):
    """The process that writes a generation."""

    host: str = ""
    pid: int = 0
    started: str = ""  # distinguishes two processes of the same number
    namespace: str = ""  # in which the number is unique: boot and container


class Generation(Struct, frozen=True):
    """One writer's part of the history."""

    name: str
    first_lsn: int  # of its own chunks
    parent: str = ""  # "": its history begins with its first base, or with lsn 1
    parent_lsn: int = 0  # the history of the parent counts up to here
    started_ms: int = 0


class Base(Struct, frozen=True):
    """A snapshot with the files of the log store."""

    generation: str
    lsn: int
    valid_lsn: int  # the journal's end when the last file was copied: it is good for points from here on
    at_ms: int  # when it was archived: everything in it is older
    key: str  # of its inventory
    crc: int  # of the inventory
    segment: int = 1  # the number of the journal's segment that begins after it
    size_bytes: int = 0  # of all its files


class Manifest(Struct, frozen=True):
    """The root of an archive."""

    store: str  # the uuid of the data folder
    head: str  # the newest generation
    generations: tuple[Generation, ...]
    bases: tuple[Base, ...] = ()
    owner: Owner = Owner()
    released: bool = False  # the owner has ended in order
    beat: int = 0  # counts up while the owner lives
    next_lsn: int = 1  # of the head, about: where to look for its end
    next_crc: int = 0  # of the block before it
    first_lsn: int = 1  # the history before it was removed by retention
    format: int = FORMAT_VERSION

    def generation(self, name: str) -> Generation | None:
        return next((generation for generation in self.generations if generation.name == name), None)

    def replaced(self, **fields: object) -> Manifest:
        return structs.replace(self, beat=self.beat + 1, **fields)


class Stretch(NamedTuple):
    """A part of a history that one generation holds."""

    generation: str
    first_lsn: int
    last_lsn: int | None  # None: to its end


def encode(manifest: Manifest) -> bytes:
    body = json.encode(manifest)
    return json.format(json.encode({"manifest": manifest, "crc32c": google_crc32c.value(body)}), indent=1)


def decode(data: bytes) -> Manifest:
    """Raises `BadManifest`."""

    class Sealed(Struct):
        manifest: Manifest
        crc32c: int

    try:
        sealed = json.decode(data, type=Sealed)
    except (DecodeError, ValidationError) as error:
        raise BadManifest(f"{MANIFEST} is not the manifest of an archive of driftq ({error})") from None
    if sealed.manifest.format > FORMAT_VERSION:
        raise BadManifest(f"{MANIFEST} has format {sealed.manifest.format}; this version reads up to {FORMAT_VERSION}")
    if google_crc32c.value(json.encode(sealed.manifest)) != sealed.crc32c:
        raise BadManifest(f"{MANIFEST} is damaged: its checksum does not fit")
    return sealed.manifest


def history(manifest: Manifest, name: str) -> list[Stretch]:
    """The stretches of a generation's history, oldest first."""
    stretches: list[Stretch] = []
    upto: int | None = None
    generation = manifest.generation(name)
    while generation is not None:
        if upto is None or upto >= generation.first_lsn:
            stretches.append(Stretch(generation.name, generation.first_lsn, upto))
        upto = generation.parent_lsn if upto is None else min(upto, generation.parent_lsn)
        generation = manifest.generation(generation.parent) if generation.parent else None
    return stretches[::-1]


def bases_of(manifest: Manifest, name: str) -> Iterator[Base]:
    """The bases in a generation's history, newest first."""
    upto = {stretch.generation: stretch.last_lsn for stretch in history(manifest, name)}
    for base in sorted(manifest.bases, key=lambda base: base.lsn, reverse=True):
        if base.generation in upto:
            limit = upto[base.generation]
            if limit is None or base.valid_lsn <= limit:
                yield base

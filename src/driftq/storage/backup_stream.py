"""A frozen data folder as a tar archive, made and read as a stream.

The archive is an ordinary one, so that `curl … | tar x` restores it, too. The FORMAT file is its last member: without
it the folder does not open, and a reader knows that the archive is cut short. Knows nothing of HTTP.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from driftq.storage.backup import PIECE_BYTES, BackupFailed

if TYPE_CHECKING:
    from driftq.storage.backup import FolderCopy, FrozenFolder

CONTENT_TYPE = "application/x-tar"


def archive(frozen: FrozenFolder, now_s: float) -> Iterator[bytes]:
    """The bytes of the archive, in pieces of about `PIECE_BYTES`."""
    pending: list[bytes] = []
    size_bytes = 0
    for part in _parts(frozen, now_s):
        pending.append(part)
        size_bytes += len(part)
        if size_bytes >= PIECE_BYTES:
            yield b"".join(pending)
            pending, size_bytes = [], 0
    yield b"".join(pending)


def _parts(frozen: FrozenFolder, now_s: float) -> Iterator[bytes]:
    for entry in frozen.entries():
        member = tarfile.TarInfo(entry.name)
        member.size, member.mode, member.mtime = entry.total_bytes, 0o600, int(now_s)
        yield member.tobuf(tarfile.PAX_FORMAT)
        yield from entry.pieces()
        yield bytes(-entry.total_bytes % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def unpack(pieces: Iterator[bytes], copy: FolderCopy) -> None:
    """Add every member of an archive to a copy. Raises `BackupFailed` for what is no archive, or a part of one."""
    try:
        with tarfile.open(fileobj=_Pieces(pieces), mode="r|") as members:
            for member in members:
                file = members.extractfile(member) if member.isfile() else None
                if file is None:
                    raise BackupFailed(f"{member.name!r} is no file of a data folder: this is not a backup of driftq")
                copy.add(member.name, iter(lambda file=file: file.read(PIECE_BYTES), b""))  # type: ignore[misc]
    except tarfile.TarError as error:
        raise BackupFailed(f"the archive is cut short or is none: {error}") from error


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Exactly `size` bytes, fewer only at the end: tarfile takes a short read for a cut."""
        parts = [self._left]
        missing = size - len(self._left)
        while missing > 0:
            piece = next(self._pieces, b"")
            if not piece:
                break
            parts.append(piece)
            missing -= len(piece)
        data = b"".join(parts)
        self._left = data[size:]
        return data[:size]

"""A data folder: what is in it, and which store it is.

Owns the FORMAT file: the format version and the store's uuid, readable by a person. It is written last when a folder is
made, so its presence means that everything else was there: a folder with a FORMAT file and without a journal has lost
it, and a folder without one was never finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftq.storage.damage import Damaged, FormatTooNew
from driftq.storage.disk import Disk
from driftq.storage.headers import checksum

FORMAT_VERSION = 1
_FORMAT = "FORMAT"
_OWN_NAMES = frozenset({"LOCK", "journal", "logs", "snapshots", "FORMAT", "lost+found"})  # up to the first dot
_TITLE = "driftq data folder"


class BadFormatFile(Damaged):
    """The FORMAT file is damaged, so nobody can say which store this is."""


class ForeignFolder(Exception):
    """The folder holds files of somebody else."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        shown = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        super().__init__(
            f"{path} is no data folder of driftq and is not empty ({shown}). Name an empty or a new folder with --data."
        )


def check_free(path: str, names: Iterable[str]) -> None:
    """Raises `ForeignFolder` unless this is a data folder, or one can be made here. Leftovers of an interrupted start
    and what filesystems put into every volume do not count."""
    found = set(names)
    foreign = sorted(name for name in found if name.partition(".")[0] not in _OWN_NAMES)
    if foreign and _FORMAT not in found:
        raise ForeignFolder(path, foreign)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where each part lives. `store` is the 16 bytes of the store's uuid."""

    path: str
    store: bytes

    @property
    def journal(self) -> str:
        return f"{self.path}/journal"

    @property
    def logs(self) -> str:
        return f"{self.path}/logs"

    @property
    def snapshots(self) -> str:
        return f"{self.path}/snapshots"


def find_folder(disk: Disk, path: str) -> DataFolder | None:
    """The data folder at `path`; None if there is none yet. Refuses a later format."""
    file_path = f"{path}/{_FORMAT}"
    if not disk.exists(file_path):
        return None
    file = disk.open(file_path)
    try:
        text = file.read_at(0, 4096)
    finally:
        file.close()
    lines = text.split(b"\n")
    if len(lines) != 5 or lines[4] or text != _seal(b"\n".join(lines[:3]) + b"\n"):
        raise BadFormatFile(f"{file_path} is damaged. Restore it from a backup; nothing was changed.")
    title, version, store = (line.decode() for line in lines[:3])
    number = int(version.removeprefix("format "))
    if number > FORMAT_VERSION:
        raise FormatTooNew(file_path, number, FORMAT_VERSION)
    if title != _TITLE:
        raise BadFormatFile(f"{file_path} does not describe a data folder of driftq")
    return DataFolder(path, bytes.fromhex(store.removeprefix("store ")))


def new_folder(disk: Disk, path: str, store: bytes) -> DataFolder:
    """Begin a data folder. It counts only after `finish_folder`, to be called when its journal is durable."""
    disk.make_folder("folder.make", path)
    return DataFolder(path, store)


def finish_folder(disk: Disk, folder: DataFolder) -> None:
    """Write the FORMAT file, durably."""
    target = f"{folder.path}/{_FORMAT}"
    if disk.exists(f"{target}.tmp"):
        disk.remove("folder.leftover.remove", f"{target}.tmp")
    file = disk.create("folder.create", f"{target}.tmp")
    text = f"{_TITLE}\nformat {FORMAT_VERSION}\nstore {folder.store.hex()}\n"
    file.write_at("folder.write", 0, _seal(text.encode()))
    file.sync("folder.sync")
    file.close()
    disk.rename("folder.rename", f"{target}.tmp", target)
    disk.sync_folder("folder.sync_folder", folder.path)
    disk.sync_folder("folder.parent.sync_folder", folder.path.rpartition("/")[0] or "/")


def _seal(text: bytes) -> bytes:
    return text + b"crc32c " + checksum(text).hex().encode() + b"\n"

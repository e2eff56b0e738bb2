"""A simulated disk that loses unsynced writes, deterministically from a seed.

Each file has what the page cache shows (`shown`), what the device holds (`durable`) and the writes between the two. A
power cut keeps none, all or some of those writes, some of them only in part; names that were not synced stay or vanish.
A failed sync loses the writes permanently while the cache still shows them, and reports success the next time.

Sectors (512 bytes) are written whole or not at all: a lost sector keeps its old content, which is zeros where nothing
was ever durable. This module does not know what the bytes mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

from driftq.storage.disk import DiskFailed, DiskFull
from tests.support.simdisk_content import Bytes, Folder, apply_move, put, resize, sectors, settle

LARGE_BYTES = 4_096  # from this size on a memoryview is faster than a copy


class Crash(BaseException):
    """The machine stops here. It is no `Exception`, so that only the test catches it."""


class Fault(Enum):
    """A fault of one disk call."""

    EIO = "eio"  # the call fails; a write may have happened in part; a sync loses what it should have saved
    ENOSPC = "enospc"  # no space: nothing is written (a sync fails as with EIO)
    SHORT = "short"  # a write happens in part, then there is no space
    CRASH_BEFORE = "crash_before"
    CRASH_AFTER = "crash_after"


class SimFile:
    """One open file of a `SimDisk`. Files from before a crash cannot be used after it."""

    __slots__ = ("_content", "_disk", "_life", "path")

    def __init__(self, disk: SimDisk, content: Bytes, path: str) -> None:
        self._disk = disk
        self._content = content
        self._life = disk.life
        self.path = path

    def size(self) -> int:
        return len(self._content.shown)

    def read_at(self, position: int, size: int) -> bytes:
        if size < LARGE_BYTES:
            return bytes(self._content.shown[position : position + size])
        with memoryview(self._content.shown) as shown:
            return bytes(shown[position : position + size])

    def write_at(self, label: str, position: int, data: bytes) -> None:
        disk, content = self._disk, self._content
        assert self._life == disk.life, f"{self.path} was opened before the crash"
        fault = disk.enter(label)
        if fault is None:
            shown = content.shown
            end = position + len(data)
            if end > len(shown):
                disk.grow(label, self.path, content, end)
            shown[position:end] = data
            content.pending.append((position, data))
            return
        if fault is not Fault.ENOSPC:
            part = data if fault is Fault.CRASH_AFTER else data[: disk.random.randrange(len(data) + 1)]
            if position + len(part) > len(content.shown):
                disk.grow(label, self.path, content, position + len(part))
            content.shown[position : position + len(part)] = part
            content.pending.append((position, part))
        disk.fail_with(fault, label, self.path)

    def is_in_place(self) -> bool:
        return True  # in the simulation no other process touches the folder

    def sync(self, label: str) -> None:
        disk, content = self._disk, self._content
        assert self._life == disk.life, f"{self.path} was opened before the crash"
        fault = disk.enter(label)
        if fault is None or fault is Fault.CRASH_AFTER:
            if not disk.lie:
                settle(content)
            if fault is None:
                return
        if fault in (Fault.EIO, Fault.ENOSPC, Fault.SHORT):
            content.pending.clear()
            content.apart = True
            raise DiskFailed(label, self.path, "simulated failure of a sync")
        raise Crash(label)

    def truncate(self, label: str, size: int) -> None:
        disk, content = self._disk, self._content
        assert self._life == disk.life, f"{self.path} was opened before the crash"
        fault = disk.enter(label)
        if fault is None or fault is Fault.CRASH_AFTER:
            disk.used_bytes += size - len(content.shown)
            resize(content.shown, size)
            content.pending.append((size, None))
        if fault is not None:
            disk.fail_with(fault, label, self.path)

    def close(self) -> None:
        pass


class SimDisk:
    """Files and folders by path, in memory. `life` counts the processes that have used it."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.random = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.life = 0
        self.lie = False
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.fault_counts: dict[str, int] = {}
        self.on_call: Callable[[str], Fault | None] | None = None
        self._root = Folder()
        self._known: dict[str, Bytes | Folder] = {}  # cache of lookups by path

    # ---------------------------------------------------------------------------------------------- injected faults

    def fail_nth(self, nth: int, fault: Fault, label: str | None = None) -> None:
        """Do this to the nth call from now that carries a label (or this label)."""
        left = nth

        def on_call(called: str) -> Fault | None:
            nonlocal left
            if label is None or called == label:
                left -= 1
                if left == 0:
                    return fault
            return None

        self.on_call = on_call

    def enter(self, label: str) -> Fault | None:
        self.calls += 1
        counts = self.counts
        counts[label] = counts.get(label, 0) + 1
        if self.on_call is None:
            return None
        fault = self.on_call(label)
        if fault is not None:
            self._count(fault.value)
            if fault is Fault.CRASH_BEFORE:
                raise Crash(label)
        return fault

    def _count(self, fault: str) -> None:
        self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1

    def fail_with(self, fault: Fault, label: str, path: str) -> None:
        if fault is Fault.EIO:
            raise DiskFailed(label, path, "simulated input/output error")
        if fault in (Fault.ENOSPC, Fault.SHORT):
            raise DiskFull(f"{label}: {path}: simulated full disk")
        raise Crash(label)

    def grow(self, label: str, path: str, content: Bytes, size: int) -> None:
        more = size - len(content.shown)
        if self.capacity_bytes is not None and self.used_bytes + more > self.capacity_bytes:
            self._count("full")
            raise DiskFull(f"{label}: {path}: the simulated disk is full")
        self.used_bytes += more
        content.shown.extend(bytes(more))

    # --------------------------------------------------------------------------------------------------- the disk seam

    def create(self, label: str, path: str, allocate_bytes: int = 0) -> SimFile:
        fault = self._enter_name(label, path)
        folder, name = self._parent(label, path)
        if name in folder.shown:
            raise DiskFailed(label, path, "the file exists")
        content = Bytes()
        if allocate_bytes:
            self.grow(label, path, content, allocate_bytes)
            content.pending.append((allocate_bytes, None))
        folder.move("", name, content)
        self._known[path] = content
        if fault is not None:
            raise Crash(label)
        return SimFile(self, content, path)

    def open(self, path: str, *, write: bool = False) -> SimFile:
        content = self._find(path)
        if not isinstance(content, Bytes):
            raise FileNotFoundError(2, "no such simulated file", path)
        return SimFile(self, content, path)

    def rename(self, label: str, source: str, target: str) -> None:
        fault = self._enter_name(label, source)
        folder, name = self._parent(label, source)
        beside, new_name = self._parent(label, target)
        assert folder is beside, "only renames within one folder"
        if name not in folder.shown or isinstance(folder.shown.get(new_name), Folder):
            raise DiskFailed(label, source, "nothing to rename, or the target is a folder")
        self.used_bytes -= _size(folder.shown.get(new_name))
        self._known.clear()  # a folder's paths change with its own
        folder.move(name, new_name, folder.shown[name])
        if fault is not None:
            raise Crash(label)

    def remove(self, label: str, path: str) -> None:
        fault = self._enter_name(label, path)
        folder, name = self._parent(label, path)
        content = folder.shown.get(name)
        if not isinstance(content, Bytes):
            raise DiskFailed(label, path, "no such simulated file")
        self.used_bytes -= len(content.shown)
        self._known.pop(path, None)
        folder.move(name, "", content)
        if fault is not None:
            raise Crash(label)

    def make_folder(self, label: str, path: str) -> None:
        fault = self._enter_name(label, path)
        folder = self._root
        for name in filter(None, path.split("/")):
            if name not in folder.shown:
                folder.move("", name, Folder())
            below = folder.shown[name]
            if not isinstance(below, Folder):
                raise DiskFailed(label, path, "the path is a file")
            folder = below
        if fault is not None:
            raise Crash(label)

    def remove_folder(self, label: str, path: str) -> None:
        fault = self._enter_name(label, path)
        folder, name = self._parent(label, path)
        gone = folder.shown.get(name)
        if not isinstance(gone, Folder) or gone.shown:
            raise DiskFailed(label, path, "not an empty simulated folder")
        self._known.pop(path, None)
        folder.move(name, "", gone)
        if fault is not None:
            raise Crash(label)

    def sync_folder(self, label: str, path: str) -> None:
        fault = self.enter(label)
        if fault is not None and fault is not Fault.CRASH_AFTER:
            raise DiskFailed(label, path, "simulated failure of a sync")
        folder = self._find(path)
        if not isinstance(folder, Folder):
            raise DiskFailed(label, path, "no such simulated folder")
        if not self.lie:
            for move in folder.moves:
                apply_move(folder.durable, move)
            folder.moves.clear()
        if fault is not None:
            raise Crash(label)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def free_bytes(self, path: str) -> int:
        return (1 << 40 if self.capacity_bytes is None else self.capacity_bytes) - self.used_bytes

    def list(self, path: str) -> list[str]:
        folder = self._find(path)
        return sorted(folder.shown) if isinstance(folder, Folder) else []

    def _enter_name(self, label: str, path: str) -> Fault | None:
        fault = self.enter(label)
        if fault is not None and fault is not Fault.CRASH_AFTER:
            self.fail_with(fault, label, path)
        return fault

    def _find(self, path: str) -> Bytes | Folder | None:
        known = self._known.get(path)
        if known is not None:
            return known
        node: Bytes | Folder | None = self._root
        for name in path.split("/"):
            if name:
                node = node.shown.get(name) if isinstance(node, Folder) else None
        if node is not None:
            self._known[path] = node
        return node

    def _parent(self, label: str, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self._find(above)
        if not isinstance(folder, Folder):
            raise DiskFailed(label, path, "no such simulated folder")
        return folder, name

    # ------------------------------------------------------------------------------------------- loss and corruption

    def restart(self) -> None:
        """The process was killed. What the page cache shows is still there, and what it holds may still be lost."""
        self.life += 1
        self.on_call = None

    def crash(self, keep: str = "random") -> None:
        """The power was cut: `keep` none, all or a random part of what was not synced."""
        assert keep in ("none", "all", "random")
        self.life += 1
        self.on_call = None
        self._known.clear()
        self.used_bytes = self._lose(self._root, keep)

    def _lose(self, folder: Folder, keep: str) -> int:
        """Lose names and writes; returns how many bytes are left."""
        if folder.moves:
            chance = {"none": 0.0, "all": 1.0}.get(keep, 0.5)
            for move in folder.moves:
                if self.random.random() < chance:
                    apply_move(folder.durable, move)
            folder.moves.clear()
            folder.shown = dict(folder.durable)
        left_bytes = 0
        for _, node in sorted(folder.shown.items()):
            if isinstance(node, Folder):
                left_bytes += self._lose(node, keep)
            else:
                if node.pending or node.apart:
                    self._lose_writes(node, keep)
                left_bytes += len(node.shown)
        return left_bytes

    def _lose_writes(self, content: Bytes, keep: str) -> None:
        if content.pending:
            chance = {"none": 0.0, "all": 1.0}.get(keep)
            if chance is None:
                chance = self.random.choice((0.0, 1.0, 0.5))
            for position, data in content.pending:
                if self.random.random() >= chance:
                    continue
                if data is not None and keep == "random" and self.random.random() < 0.4:
                    self._tear(content.durable, position, data)
                else:
                    put(content.durable, position, data)
            content.pending.clear()
        content.apart = False
        if content.shown != content.durable:
            content.shown = bytearray(content.durable)

    def _tear(self, durable: bytearray, position: int, data: bytes) -> None:
        self._count("torn")
        if position + len(data) > len(durable) and self.random.random() < 0.5:
            put(durable, position + len(data), None)  # the size can be durable although the data is not
        for at, piece in sectors(position, data):
            if self.random.random() < 0.5:
                put(durable, at, piece)

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit, on the device and in the cache."""
        self._count("flip")
        content = self._find(path)
        assert isinstance(content, Bytes)
        for world in (content.shown, content.durable):
            if bit >> 3 < len(world):
                world[bit >> 3] ^= 1 << (bit & 7)

    def files(self) -> dict[str, bytes]:
        """Every file as the cache shows it, by path."""
        contents: dict[str, bytes] = {}

        def look(folder: Folder, path: str) -> None:
            for name, node in sorted(folder.shown.items()):
                if isinstance(node, Folder):
                    look(node, f"{path}{name}/")
                else:
                    contents[path + name] = bytes(node.shown)

        look(self._root, "")
        return contents

    def put(self, path: str, data: bytes | None) -> None:
        """Replace, add or (None) remove a file durably, without going through the disk seam."""
        folder, name = self._parent("put", path)
        content = Bytes()
        content.shown, content.durable = bytearray(data or b""), bytearray(data or b"")
        self._known.pop(path, None)
        for names in (folder.shown, folder.durable):
            names.pop(name, None)
            if data is not None:
                names[name] = content

    def copy(self, seed: int) -> SimDisk:
        """A copy of the disk with its own random generator, to try several continuations."""
        twin = SimDisk(seed, capacity_bytes=self.capacity_bytes)
        twin.used_bytes, twin.life, twin.lie, twin.calls = self.used_bytes, self.life, self.lie, self.calls
        twin.counts, twin.fault_counts = dict(self.counts), dict(self.fault_counts)
        twin._root = self._root.copy({})
        return twin


def _size(node: Bytes | Folder | None) -> int:
    return len(node.shown) if isinstance(node, Bytes) else 0

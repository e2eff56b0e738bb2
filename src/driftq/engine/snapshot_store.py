"""The snapshot store seam: where the state of a broker is kept as of some lsn, so that the journal before it can go.

A snapshot is frames of facts; folding them gives the state that all frames of the journal up to its lsn give. Two
generations are kept, so that a damaged one does not cost the state:

    journal    1 ........... 4,000 ........... 9,000 ........ tail
    snapshots                A: 4,000          B: 9,000
               └ first_needed_lsn() is 4,001 ┘

`FolderSnapshots` keeps them in a data folder (the bytes are in `storage.snapshots`), `MemorySnapshots` in memory,
`NoSnapshots` keeps none.

In a folder a snapshot is made by folding the files, not by copying live state: the event loop never pauses, and the
fold runs in a process of its own (`python -m driftq.engine.snapshot_store FOLDER LSN PARENT_PID`). That process reads
only closed segments, which nothing writes to any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from driftq.core.broker import Broker
from driftq.core.model.frames import decode, encode_one, join
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.projection import StoreReader
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal
from driftq.storage.data_folder import DataFolder, find_folder
from driftq.storage.disk import Disk, OsDisk
from driftq.storage.journal_files import frames_between
from driftq.storage.log_store import MemoryLogStore
from driftq.storage.snapshots import GENERATIONS, Snapshot

if TYPE_CHECKING:
    from driftq.storage.corruption import CorruptSnapshot
    from driftq.storage.journal import Journal

FACTS_PER_FRAME = 64
FRAME_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


class FoldFailed(Exception):
    """No snapshot was made. Nothing has changed."""


class SnapshotStore(Protocol):
    """The snapshots of one broker."""

    def newest_lsn(self) -> int:
        """The lsn of the newest snapshot; 0 if there is none. Immediate."""

    def newest(self) -> Snapshot | None:
        """The newest snapshot that is whole, found by reading it through: for a start, not for a running broker."""

    def read(self, snapshot: Snapshot) -> Iterator[bytes]:
        """The frames of a snapshot, in order. Raises `CorruptSnapshot`."""

    async def fold(self, upto_lsn: int) -> None:
        """Make the snapshot at `upto_lsn` from the last one and the journal, durably. `upto_lsn` is at most the
        journal's `closed_lsn()`, where it has one. Done already if a snapshot is as new. Raises `FoldFailed`."""

    def save(self, lsn: int, chain_crc: int, frames: Iterable[bytes]) -> None:
        """Save the state of a stopped broker, durably, with the journal's `crc_at(lsn)`. Raises `DiskFull`."""

    def first_needed_lsn(self) -> int:
        """The first lsn that a kept snapshot still needs the journal for; 1 while fewer than two are kept."""


def snapshot_frames(broker: Broker) -> Iterator[bytes]:
    """A broker's state as frames. Several facts per frame: one each would waste headers, one frame for all could not be
    streamed. A frame ends early when it is large: one fact may hold what a log knows about a million messages."""
    run: list[bytes] = []
    size_bytes = 0
    for fact in broker.snapshot():
        run.append(encode_one(fact))
        size_bytes += len(run[-1])
        if len(run) == FACTS_PER_FRAME or size_bytes >= FRAME_BYTES:
            yield join(run)
            run, size_bytes = [], 0
    if run:
        yield join(run)


def empty_broker() -> Broker:
    """A broker to fold frames into. It decides nothing, so it needs neither limits, records nor chance."""
    return Broker(BrokerLimits(), StoreReader(MemoryLogStore()), SystemChance())


def apply_frames(broker: Broker, frames: Iterable[bytes]) -> None:
    for frame in frames:
        for fact in decode(frame):
            broker.apply(fact)


class MemorySnapshots:
    """Snapshots in memory, folded from a journal of the same process."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._kept: list[tuple[Snapshot, list[bytes]]] = []  # oldest first

    def newest_lsn(self) -> int:
        return self._kept[-1][0].lsn if self._kept else 0

    def newest(self) -> Snapshot | None:
        return self._kept[-1][0] if self._kept else None

    def read(self, snapshot: Snapshot) -> Iterator[bytes]:
        return iter(next(frames for kept, frames in self._kept if kept == snapshot))

    async def fold(self, upto_lsn: int) -> None:
        if upto_lsn <= self.newest_lsn():
            return
        if upto_lsn > self._journal.tail_lsn():
            raise FoldFailed(f"the journal ends at lsn {self._journal.tail_lsn()}, before lsn {upto_lsn}")
        broker = empty_broker()
        if self._kept:
            apply_frames(broker, self._kept[-1][1])
        try:
            above = takewhile(lambda numbered: numbered[0] <= upto_lsn, self._journal.replay(self.newest_lsn()))
            apply_frames(broker, (frame for _, frame in above))
        except CorruptJournal as error:
            raise FoldFailed(str(error)) from error
        self.save(upto_lsn, self._journal.crc_at(upto_lsn) or 0, snapshot_frames(broker))

    def save(self, lsn: int, chain_crc: int, frames: Iterable[bytes]) -> None:
        saved = list(frames)
        self._kept.append((Snapshot("memory", lsn, chain_crc, len(saved)), saved))
        del self._kept[:-GENERATIONS]

    def first_needed_lsn(self) -> int:
        return self._kept[0][0].lsn + 1 if len(self._kept) == GENERATIONS else 1


class NoSnapshots:
    """For a broker in memory: it never restarts, so no snapshot is ever read."""

    def newest_lsn(self) -> int:
        return 0

    def newest(self) -> Snapshot | None:
        return None

    def read(self, snapshot: Snapshot) -> Iterator[bytes]:
        return iter(())

    async def fold(self, upto_lsn: int) -> None:
        pass

    def save(self, lsn: int, chain_crc: int, frames: Iterable[bytes]) -> None:
        pass

    def first_needed_lsn(self) -> int:
        return 1


# --- in a data folder ---


async def _end(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """End a process, also one that is just being started."""
    with contextlib.suppress(OSError):
        process = await starting
        if process.returncode is None:
            process.kill()
            await process.wait()


class FolderSnapshots:
    """The snapshots of a data folder."""

    def __init__(self, disk: Disk, folder: DataFolder) -> None:
        self._disk = disk
        self._folder = folder
        self._newest_lsn = 0
        self.damaged: tuple[CorruptSnapshot, ...] = ()  # newer ones that `newest` passed over

    def newest_lsn(self) -> int:
        """As of the last `newest`, `fold` or `save`."""
        return self._newest_lsn

    def newest(self) -> Snapshot | None:
        newest = snapshots.load_newest(self._disk, self._folder.snapshots, self._folder.store)
        self._newest_lsn, self.damaged = newest.base_lsn(), newest.damaged
        return newest.snapshot

    def read(self, snapshot: Snapshot) -> Iterator[bytes]:
        return snapshots.read_frames(self._disk, snapshot, self._folder.store)

    async def fold(self, upto_lsn: int) -> None:
        arguments = (self._folder.path, str(upto_lsn), str(os.getpid()))
        # asyncio waits endlessly for a process whose start is cancelled before its pipe is connected. So the start is
        # never cancelled: a stop waits for it, which takes milliseconds, and then ends the process.
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable, "-m", "driftq.engine.snapshot_store", *arguments, stderr=asyncio.subprocess.PIPE
            )
        )
        try:
            process = await asyncio.shield(starting)
            _, errors = await process.communicate()
        except OSError as error:  # no descriptors, no memory, no process: the disk has nothing to do with it
            raise FoldFailed(f"its process cannot be started: {error}") from error
        except asyncio.CancelledError:
            await _end(starting)
            raise
        if process.returncode:
            raise FoldFailed(errors.decode(errors="replace"))
        self._newest_lsn = max(self._newest_lsn, upto_lsn)

    def save(self, lsn: int, chain_crc: int, frames: Iterable[bytes]) -> None:
        snapshots.save(self._disk, self._folder.snapshots, self._folder.store, lsn, frames, chain_crc=chain_crc)
        self._newest_lsn = lsn

    def first_needed_lsn(self) -> int:
        return first_needed_lsn(self._disk, self._folder)


def fold(disk: Disk, folder: DataFolder, upto_lsn: int) -> None:
    """Save the snapshot at `upto_lsn`, the last lsn of a closed segment. Reads files only; touches no live state."""
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    if newest.base_lsn() >= upto_lsn:
        snapshots.sync_names(disk, folder.snapshots)  # the journal will be trimmed because of it
        return
    broker = empty_broker()
    if newest.snapshot is not None:
        apply_frames(broker, snapshots.read_frames(disk, newest.snapshot, folder.store))
    chain_crc = 0
    for crc, frames in frames_between(disk, folder.journal, folder.store, newest.base_lsn(), upto_lsn):
        chain_crc = crc
        apply_frames(broker, frames)
    FolderSnapshots(disk, folder).save(upto_lsn, chain_crc, snapshot_frames(broker))


def first_needed_lsn(disk: Disk, folder: DataFolder) -> int:
    """The first lsn that the older of the kept snapshots still needs the journal for."""
    lsns = snapshots.snapshot_lsns(disk, folder.snapshots)
    return lsns[0] + 1 if len(lsns) == snapshots.GENERATIONS else 1


def _die_with(parent_pid: int) -> bool:
    """Let the kernel kill this process when its broker ends: the next broker must not find another process that writes
    to the folder. False if the broker has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def main(arguments: list[str]) -> int:
    path, upto_lsn, parent_pid = arguments
    if not _die_with(int(parent_pid)):
        return 1
    gc.disable()  # the state lives as long as this process
    disk = OsDisk()
    folder = find_folder(disk, path)
    assert folder is not None, f"{path} is not a data folder"
    fold(disk, folder, int(upto_lsn))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

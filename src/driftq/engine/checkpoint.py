"""Makes the journal short again. The order is the proof: sync the log store, save a snapshot, then let go of the
journal and of the files that no snapshot names.

The snapshot is made by folding the last one and the journal behind it, not by copying live state: the loop never
pauses, and the fold can run in a process of its own (`python -m driftq.engine.checkpoint FOLDER LSN PARENT`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator

from driftq.core.broker import Broker
from driftq.core.facts import Fact
from driftq.core.frames import decode, encode_one, join
from driftq.core.limits import Limits
from driftq.engine.clock import SystemChance
from driftq.engine.reading import StoreReader
from driftq.storage import snapshots
from driftq.storage.disk import Disk, OsDisk
from driftq.storage.folder import DataFolder, find_folder
from driftq.storage.journalfiles import frames_between
from driftq.storage.logstore import MemoryLogStore

FACTS_PER_FRAME = 64
FRAME_BYTES = 4 << 20
_PR_SET_PDEATHSIG = 1


def fold(disk: Disk, folder: DataFolder, upto_lsn: int) -> None:
    """Save the snapshot at `upto_lsn`, the last lsn of a closed segment. Reads files only; touches no live state."""
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    if newest.base_lsn() >= upto_lsn:
        snapshots.sync_names(disk, folder.snapshots)  # the journal will be trimmed because of it
        return
    broker = Broker(Limits(), StoreReader(MemoryLogStore()), SystemChance())  # folding asks neither of them
    if newest.snapshot is not None:
        for frame in snapshots.read_frames(disk, newest.snapshot, folder.store):
            for fact in decode(frame):
                broker.apply(fact)
    chain_crc = 0
    for crc, frames in frames_between(disk, folder.journal, folder.store, newest.base_lsn(), upto_lsn):
        chain_crc = crc
        for frame in frames:
            for fact in decode(frame):
                broker.apply(fact)
    save(disk, folder, broker, upto_lsn, chain_crc)


def save(disk: Disk, folder: DataFolder, broker: Broker, lsn: int, chain_crc: int) -> None:
    """Save a broker's state as it is at `lsn`."""
    frames = _in_frames(broker.snapshot())
    snapshots.save(disk, folder.snapshots, folder.store, lsn, frames, chain_crc=chain_crc)


def _in_frames(facts: Iterator[Fact]) -> Iterator[bytes]:
    """Some facts to a frame: fewer would waste headers, all would not stream. A frame ends early when it is large: one
    fact may hold what a log knows of a million messages."""
    run: list[bytes] = []
    size_bytes = 0
    for fact in facts:
        run.append(encode_one(fact))
        size_bytes += len(run[-1])
        if len(run) == FACTS_PER_FRAME or size_bytes >= FRAME_BYTES:
            yield join(run)
            run, size_bytes = [], 0
    if run:
        yield join(run)


def needed_lsn(disk: Disk, folder: DataFolder) -> int:
    """The first lsn that the older of the kept snapshots still needs the journal for."""
    known = snapshots.snapshot_lsns(disk, folder.snapshots)
    return known[0] + 1 if len(known) == snapshots.GENERATIONS else 1


def _end_with(parent_pid: int) -> bool:
    """Let the system end this process with the broker it works for: the next broker must find nobody in the folder.
    False if the broker is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent_pid


def main(arguments: list[str]) -> int:
    path, upto_lsn, parent_pid = arguments
    if not _end_with(int(parent_pid)):
        return 1
    disk = OsDisk()
    folder = find_folder(disk, path)
    assert folder is not None, f"{path} is not a data folder"
    fold(disk, folder, int(upto_lsn))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

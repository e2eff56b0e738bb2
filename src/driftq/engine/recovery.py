"""Recovery: from what is stored to a running state.

    newest snapshot ──▶ fold its frames            into the broker and the log store
         │
         └─▶ check that it belongs to this journal's history
             replay every frame above it, fold it

It knows the seams `Journal`, `LogStore` and `SnapshotStore` and not where they keep their bytes. What is wrong with
them is noticed here, before anything is served.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.core.model.frames import decode
from driftq.engine.projection import project
from driftq.storage.corruption import CorruptSnapshot

if TYPE_CHECKING:
    from driftq.core.broker import Broker
    from driftq.core.model.facts import Fact
    from driftq.engine.snapshot_store import SnapshotStore
    from driftq.storage.journal import Journal
    from driftq.storage.log_store import LogStore
    from driftq.storage.snapshots import Snapshot

Progress = Callable[[int, int], None]  # (lsn reached, lsn to reach)
REPORT_EVERY = 50_000
PROJECTED_BYTES = 256 << 10  # the log store is written once per this many bytes of frames


def recover(
    broker: Broker,
    journal: Journal,
    store: LogStore,
    snapshots: SnapshotStore,
    newest: Snapshot | None,
    progress: Progress | None = None,
) -> int:
    """Fold the newest snapshot and the journal above it into an empty broker and the log store. Returns how many frames
    of the journal were replayed."""
    collects = gc.isenabled()
    gc.disable()  # nothing that is built here is garbage: looking for it again and again takes most of the time
    try:
        if newest is not None:
            _check_chain(journal, newest)
            for frame in snapshots.read(newest):
                facts = decode(frame)
                for fact in facts:
                    broker.apply(fact)
                project(store, facts)
        return _replay(journal, broker, store, newest.lsn if newest is not None else 0, progress)
    finally:
        if collects:
            gc.enable()


def _check_chain(journal: Journal, snapshot: Snapshot) -> None:
    """The snapshot must belong to this journal's history, not to another one of the same length."""
    crc = journal.crc_at(snapshot.lsn)
    if snapshot.chain_crc and crc is not None and crc != snapshot.chain_crc:
        raise CorruptSnapshot(snapshot.path, 0, f"the journal's history up to lsn {snapshot.lsn} is another one")


def _replay(journal: Journal, broker: Broker, store: LogStore, base_lsn: int, progress: Progress | None) -> int:
    apply = broker.apply
    tail_lsn = journal.tail_lsn()
    count = 0
    folded: list[Fact] = []
    folded_bytes = 0
    for lsn, frame in journal.replay(base_lsn):
        facts = decode(frame)
        for fact in facts:
            apply(fact)
        folded += facts
        folded_bytes += len(frame)
        if folded_bytes >= PROJECTED_BYTES:
            project(store, folded)
            folded, folded_bytes = [], 0
        count += 1
        if progress is not None and count % REPORT_EVERY == 0:
            progress(lsn, tail_lsn)
    project(store, folded)
    return count

"""What is in a data folder, in numbers: sizes, facts by kind, topics, groups with their lag, streams, keys, snapshots.

Reads and folds; changes nothing. The figures are of one moment: the newest readable snapshot and the journal after it,
up to the first damage. The result is plain data, ready for JSON.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from driftq.core.model.frames import decode
from driftq.core.model.snapshot_facts import NumbersState
from driftq.repair.folder_reader import (
    Damage,
    FolderFold,
    OnBytes,
    file_bytes,
    ignore_bytes,
    read_journal,
    require_folder,
    retry_if_moved,
)
from driftq.storage import snapshots
from driftq.storage.journal_files import SUFFIX as JOURNAL_SUFFIX

if TYPE_CHECKING:
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk


def sizes(disk: Disk, path: str) -> dict[str, dict[str, int]]:
    """Files and bytes of each part of a folder."""
    folder = require_folder(disk, path)
    return {
        "journal": _sizes(disk, [folder.journal], JOURNAL_SUFFIX),
        "snapshots": _sizes(disk, [folder.snapshots], snapshots.SUFFIX),
        "logs": _sizes(disk, [f"{folder.logs}/{name}" for name in disk.list(folder.logs)], ".log"),
    }


def _sizes(disk: Disk, folders: list[str], suffix: str) -> dict[str, int]:
    file_sizes: list[int] = []
    for path in (f"{folder}/{name}" for folder in folders for name in disk.list(folder) if name.endswith(suffix)):
        with suppress(FileNotFoundError):  # the running broker removed it
            file_sizes.append(file_bytes(disk, path))
    return {"files": len(file_sizes), "bytes": sum(file_sizes)}


def stats(disk: Disk, path: str, now_ms: int, on_bytes: OnBytes = ignore_bytes) -> dict[str, Any]:
    """Everything `driftq inspect stats` shows."""
    return retry_if_moved(lambda: _stats(disk, path, now_ms, on_bytes))


def _stats(disk: Disk, path: str, now_ms: int, on_bytes: OnBytes) -> dict[str, Any]:
    folder = require_folder(disk, path)
    newest = snapshots.load_newest(disk, folder.snapshots, folder.store)
    fold = FolderFold(disk, folder, newest.snapshot)
    kinds: Counter[str] = Counter()
    frames, damaged, is_foldable = 0, 0, True
    for item in read_journal(disk, folder):
        if isinstance(item, Damage):
            damaged += 1
            continue
        on_bytes(len(item.frame) + 4)
        kinds.update(type(fact).__name__ for fact in decode(item.frame))
        frames += 1
        is_foldable = is_foldable and fold.take(item) is None
    return {
        "folder": path,
        "store": folder.store.hex(),
        "as_of_lsn": fold.lsn,
        "sizes": sizes(disk, path),
        "journal": {"frames": frames, "damaged_places": damaged, "facts": dict(kinds.most_common())},
        "snapshot": _snapshot(disk, folder, newest, now_ms),
        **_state(fold.broker.state),
    }


def _snapshot(disk: Disk, folder: DataFolder, newest: snapshots.Newest, now_ms: int) -> dict[str, Any] | None:
    if newest.snapshot is None:
        return None
    at_ms = 0
    for fact in decode(next(snapshots.read_frames(disk, newest.snapshot, folder.store))):
        at_ms = max(at_ms, fact.at_ms if isinstance(fact, NumbersState) else 0)
    return {
        "lsn": newest.snapshot.lsn,
        "age_ms": max(0, now_ms - at_ms),
        "frames": newest.snapshot.frame_count,
        "damaged": [error.file for error in newest.damaged],
    }


def _state(state: State) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic.name,
                "partitions": [_log(state, log_id) for log_id in topic.log_ids],
                "groups": [
                    {"group": group.name, "paused": group.paused, **_lag(state, group.progress)}
                    for group in topic.groups.values()
                ],
            }
            for topic in state.topics.values()
        ],
        "streams": [
            {"path": stream.path, "closed": stream.closed, **_log(state, log_id)}
            for log_id, stream in state.streams.by_log.items()
        ],
        "producers": sum(len(log.producers.states) for log in state.logs.values()),
        "idempotency_keys": len(state.keys),
        "effects": len(state.effects),
        "stages": len(state.stages.by_handle),
        "staged_bytes": state.stages.payload_bytes,
    }


def _log(state: State, log_id: int) -> dict[str, int]:
    log = state.logs[log_id]
    return {
        "log": log_id,
        "start": log.start,
        "end": log.end,
        "payload_bytes": log.bytes_from(log.start) if log.topic else log.payload_bytes,
    }


def _lag(state: State, progresses: list[Progress]) -> dict[str, int]:
    unsettled = (state.logs[progress.log_id].end - progress.floor - progress.settled.count for progress in progresses)
    return {
        "lag": sum(unsettled),
        "in_flight": sum(progress.in_flight for progress in progresses),
        "resting": sum(progress.resting for progress in progresses),
    }

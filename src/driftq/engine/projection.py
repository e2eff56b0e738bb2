"""Writes durable facts into the log store. The journal is the truth; this is how the log store comes to hold the
same."""

from __future__ import annotations

from collections.abc import Iterable

from driftq.core import facts as f
from driftq.core.images import LogPlaced
from driftq.storage.logstore import LogStore, Placed
from driftq.wire.records import stamp


def project(store: LogStore, facts: Iterable[f.Fact]) -> None:
    """Fold facts, in the order of the journal. Appends are gathered by log as long as nothing else comes between, so
    that a log is written once for many commands."""
    gathered: dict[int, list[Placed]] = {}
    for fact in facts:
        kind = type(fact)
        if kind is f.Appended:
            assert isinstance(fact, f.Appended)
            gathered.setdefault(fact.log_id, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind is f.Staged:
            assert isinstance(fact, f.Staged)
            gathered.setdefault(f.STAGING_LOG, []).append((fact.first_offset, fact.count, fact.batch))
        elif kind in _OTHERS:
            _append(store, gathered)
            _project(store, fact)
    _append(store, gathered)


def _append(store: LogStore, gathered: dict[int, list[Placed]]) -> None:
    for log_id, batches in gathered.items():
        store.extend(log_id, batches)
    gathered.clear()


_OTHERS = {
    f.Published,
    f.StagesForgotten,
    f.Trimmed,
    f.RecordsLost,
    f.TopicDeleted,
    f.StreamDeleted,
    LogPlaced,
}


def _project(store: LogStore, fact: f.Fact) -> None:
    match fact:
        case f.Published():
            for part in fact.parts:
                _show(store, part, fact.at_ms)
            store.trim(f.STAGING_LOG, fact.staging_start)
        case f.StagesForgotten():
            store.trim(f.STAGING_LOG, fact.staging_start)
        case f.Trimmed():
            store.trim(fact.log_id, fact.start_offset)
        case f.RecordsLost():
            store.skip(fact.log_id, fact.end_offset)
        case f.TopicDeleted():
            for log_id in fact.log_ids:
                store.drop(log_id)
        case f.StreamDeleted(soft=False):
            store.drop(fact.log_id)
        case LogPlaced():
            store.restore(fact.log_id, fact.start_offset, fact.end_offset)
        case _:
            pass


def _show(store: LogStore, part: f.Part, at_ms: int) -> None:
    """Copy one staged batch to the place it was given."""
    found = store.read(f.STAGING_LOG, part.staged_offset, part.staged_offset + part.count, 1)
    assert found, f"the staged batch at {part.staged_offset} is missing"
    store.append(part.log_id, part.first_offset, part.count, stamp(found[0], part.first_offset, at_ms))

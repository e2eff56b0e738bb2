"""What a segment file of a log holds, found out when it is first needed: from the index beside it, or by walking.

Trusts nothing behind the offset up to which its caller knows the records to be synced. Damage is noted in the segment,
and whoever reads there is told. Knows one file at a time; the log store says which.
"""

from __future__ import annotations

from driftq.storage.disk import Disk, File
from driftq.storage.logfiles import HEADER_BYTES, LogSegment, index_path, read_index, walk, wrong_header


def load(
    disk: Disk, file: File, store: bytes, log_id: int, segment: LogSegment, end: int, *, is_last: bool = False
) -> bool:
    """Fill a segment whose records end at `end`. The last one of a log is also cut there: the journal brings the rest
    again. True if its index has to be written anew."""
    segment.loaded = True
    segment.end_offset = segment.first_offset
    size = file.size()
    wrong = wrong_header(file.read_at(0, HEADER_BYTES), store, log_id, segment.first_offset)
    if wrong:
        segment.wrong = wrong  # it holds nothing that can be trusted, and a read says so
        return False
    index = index_path(segment)
    if disk.exists(index):
        beside = disk.open(index)
        if not read_index(beside.read_at(0, beside.size()), store, log_id, segment):
            segment.cut(0)
        beside.close()
    changed = False
    if segment.end_offset > end:
        _cut(file, segment, end)
    elif segment.end_offset < end and size > segment.size_bytes:
        # The index is older than the snapshot, or gone: walk through what it does not cover.
        _walk(file, segment, size, end)
        changed = True
    segment.closed = size < segment.size_bytes
    if is_last and size > segment.size_bytes and segment.end_offset == end:
        file.truncate("log.cut", segment.size_bytes)
        changed = True
    return changed


def _cut(file: File, segment: LogSegment, end: int) -> None:
    """Forget what lies behind `end`. The run that holds it is read again, batch by batch."""
    at = segment.find(end)
    stop = segment.runs[at].position + segment.runs[at].size_bytes
    segment.cut(at)
    _walk(file, segment, stop, end)


def _walk(file: File, segment: LogSegment, stop: int, end: int) -> None:
    for walked in walk(file, segment.size_bytes, stop, segment.end_offset):
        if walked.first_offset >= end:
            break
        segment.add(walked.first_offset, walked.records, walked.batch, walked.at_ms)

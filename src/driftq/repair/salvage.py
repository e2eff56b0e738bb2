"""Salvage: every record that can still be read, written to NDJSON files.

A record is in two places: in the files of its log, and, until a checkpoint trims it, in the journal. `ReadableRecords`
takes it from wherever it is readable:

    1. Read the log files: `ranges` are the offsets that are readable there.
    2. Read the snapshots and the journal, passing over damage: names of logs, where they start, which are deleted, and
       the batches that step 1 did not find.
    3. `batches(log)` merges the two in the order of offsets; `write` makes one file for each log.

Nothing is folded, so damage in the middle of the journal does not matter here. If the journal is whole, it decides what
the broker has: log files may hold records that a truncation cut, until the broker next uses them. The data folder is
not changed. A broker may be running on it: if it removes a file in the meantime, `salvage` starts again.

A line of a file is an object that `driftq produce --ndjson` accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING
from urllib.parse import quote

from driftq.core.model import facts as f
from driftq.core.model import snapshot_facts as i
from driftq.core.model.effect_facts import Published, Staged
from driftq.core.model.frames import decode
from driftq.core.model.ranges import RangeSet
from driftq.core.model.stream_facts import StreamDeleted
from driftq.repair.folder_reader import Damage, LogFiles, retry_if_moved, scan_journal, snapshot_facts
from driftq.repair.names import Names
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptLog
from driftq.storage.log_segment import walk
from driftq.storage.shared_segment import is_shared_path
from driftq.wire import records
from driftq.wire.dead_letters import line_of

if TYPE_CHECKING:
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk, File
    from driftq.storage.log_segment import Walked

OFFSET_MAX = 1 << 62
_FILE_NAME_MAX = 200  # characters; file systems allow 255 bytes


class ReadableRecords:
    """What can be read of each log, at or above its offset in `first_offsets` (default: all of it)."""

    def __init__(self, disk: Disk, folder: DataFolder, first_offsets: Mapping[int, int] | None = None) -> None:
        self._disk = disk
        self._files = LogFiles(disk, folder)
        self._first_offsets = first_offsets or {}
        self.names = Names()
        self.ranges: dict[int, RangeSet] = {}  # readable offsets, by log
        self.last_lsn = 0  # the last frame that is readable
        self._starts: dict[int, int] = {}  # after retention and trims
        self._ends: dict[int, int] = {}  # as far as facts show them
        self._deleted: set[int] = set()
        self._from_journal: dict[int, dict[int, bytes]] = {}  # batches that the log files do not hold, by first offset
        self._staged: dict[int, bytes] = {}  # batches in the journal that were not published yet, by staging offset
        try:
            self._read_files()
            is_complete = self._read_facts(disk, folder)
        except BaseException:
            self.close()
            raise
        for log_id, ranges in list(self.ranges.items()):
            ranges.discard(0, self._starts.get(log_id, 0))
            if is_complete:
                ranges.discard(self._ends.get(log_id, 0), OFFSET_MAX)
            if log_id in self._deleted or log_id == f.STAGING_LOG or not ranges:
                del self.ranges[log_id]

    def close(self) -> None:
        self._files.close()

    def _read_files(self) -> None:
        for log_id in self._files.ids():
            ranges = self.ranges[log_id] = RangeSet()
            first_offset = self._first_offsets.get(log_id, 0)
            for header, _ in self._file_batches(log_id):
                ranges.add(max(header.first_offset, first_offset), header.end_offset)

    def _read_facts(self, disk: Disk, folder: DataFolder) -> bool:
        """Whether the snapshots and the journal together are complete: the facts of every record were seen."""
        for fact in snapshot_facts(disk, folder):
            self._note(fact)
        base_lsn = snapshots.load_newest(disk, folder.snapshots, folder.store).base_lsn()
        is_complete = True
        for item in scan_journal(disk, folder.journal, folder.store, base_lsn):
            if isinstance(item, Damage):
                is_complete = False
                continue
            is_complete = is_complete and item.lsn <= max(base_lsn, self.last_lsn) + 1
            self.last_lsn = item.lsn
            for fact in decode(item.frame):
                self._note(fact)
        return is_complete

    def _note(self, fact: f.Fact) -> None:
        self.names.note(fact)
        match fact:
            case i.LogState():
                self._note_start(fact.log_id, fact.start_offset)
                self._note_end(fact.log_id, fact.end_offset)
            case i.PlainStreamsState():
                for log_id, start, end in fact.logs():
                    self._note_start(log_id, start)
                    self._note_end(log_id, end)
            case f.Trimmed():
                self._note_start(fact.log_id, fact.start_offset)
            case f.TopicDeleted():
                self._deleted.update(fact.log_ids)
            case StreamDeleted(soft=False):
                self._deleted.add(fact.log_id)
            case f.Appended():
                self._note_end(fact.log_id, fact.first_offset + fact.count)
                self._note_batch(fact.log_id, records.stamp(fact.batch, fact.first_offset, fact.at_ms))
            case Staged():
                self._staged[fact.first_offset] = fact.batch
            case Published():
                for part in fact.parts:
                    self._note_end(part.log_id, part.first_offset + part.count)
                    batch = self._staged.pop(part.staged_offset, None) or self._staged_batch(part.staged_offset)
                    if batch is not None:
                        self._note_batch(part.log_id, records.stamp(batch, part.first_offset, fact.at_ms))
            case _:
                pass

    def _note_start(self, log_id: int, offset: int) -> None:
        self._starts[log_id] = max(offset, self._starts.get(log_id, 0))

    def _note_end(self, log_id: int, offset: int) -> None:
        self._ends[log_id] = max(offset, self._ends.get(log_id, 0))

    def _note_batch(self, log_id: int, batch: bytes) -> None:
        header = records.read_header(batch)
        first_offset = max(header.first_offset, self._first_offsets.get(log_id, 0))
        ranges = self.ranges.setdefault(log_id, RangeSet())
        if first_offset < header.end_offset and ranges.next_outside(first_offset) < header.end_offset:
            ranges.add(first_offset, header.end_offset)
            self._from_journal.setdefault(log_id, {})[header.first_offset] = batch

    def _staged_batch(self, offset: int) -> bytes | None:
        """A batch that was staged before the journal begins: only the staging log's files hold it."""
        for item in self._files.batches(f.STAGING_LOG, offset, offset + 1):
            if not isinstance(item, CorruptLog):
                return item
            for damage in self._staging_damage:
                for batch in self._intact_batches(damage) if offset < damage.end_offset else ():
                    header = records.read_header(batch)
                    if header.first_offset <= offset < header.end_offset:
                        return batch
        return None

    @cached_property
    def _staging_damage(self) -> list[CorruptLog]:
        """The damaged runs of the staging log. A run has to be read whole to find what is intact in it."""
        items = self._files.batches(f.STAGING_LOG, 0, self._files.end(f.STAGING_LOG))
        return [item for item in items if isinstance(item, CorruptLog)]

    def batches(self, log_id: int) -> Iterator[tuple[records.Header, bytes]]:
        """The readable batches of a log in the order of their offsets. The first may begin before the first offset."""
        waiting = sorted(self._from_journal.get(log_id, {}).items(), reverse=True)
        for header, batch in self._file_batches(log_id):
            while waiting and waiting[-1][0] < header.first_offset:
                from_journal = waiting.pop()[1]
                yield records.read_header(from_journal), from_journal
            if not waiting or waiting[-1][0] != header.first_offset:
                yield header, batch
        for _, from_journal in reversed(waiting):
            yield records.read_header(from_journal), from_journal

    def _file_batches(self, log_id: int) -> Iterator[tuple[records.Header, bytes]]:
        end = self._files.end(log_id)
        for item in self._files.batches(log_id, self._first_offsets.get(log_id, 0), end):
            for batch in self._intact_batches(item) if isinstance(item, CorruptLog) else (item,):
                yield records.read_header(batch), batch

    def _intact_batches(self, damage: CorruptLog) -> Iterator[bytes]:
        """The batches of a damaged run around the one that is damaged. Their own checksums do not cover offsets, so
        only batches count whose offsets lead without a gap from the start of the run, or to its end."""
        if not damage.position or is_shared_path(damage.file):
            return  # records are missing, or it is a single batch: there is no run
        file = self._disk.open(damage.file)
        try:
            size = file.size()
            position, offset = damage.position, damage.offset
            for walked in _walk_run(file, position, offset, damage):
                yield walked.batch
                position, offset = position + len(walked.batch), walked.first_offset + walked.records
            data = file.read_at(position, size - position)
            at = 0
            while offset < damage.end_offset and (at := data.find(records.MAGIC, at + 1)) >= 0:
                first_offset = int.from_bytes(data[at + 8 : at + 16], "little", signed=True)
                if not offset < first_offset < damage.end_offset:
                    continue
                tail = list(_walk_run(file, position + at, first_offset, damage))
                if tail and tail[-1].first_offset + tail[-1].records == damage.end_offset:
                    yield from (walked.batch for walked in tail)
                    return
        finally:
            file.close()


def _walk_run(file: File, position: int, offset: int, damage: CorruptLog) -> Iterator[Walked]:
    """The batches from a position on, up to the end of the damaged run."""
    return takewhile(lambda walked: walked.first_offset < damage.end_offset, walk(file, position, file.size(), offset))


@dataclass(frozen=True, slots=True)
class SalvagedLog:
    """One log that was written to a file."""

    log: str  # topic/partition, or a stream's path
    file: str
    records: int
    ranges: tuple[tuple[int, int], ...]


def salvage(disk: Disk, folder: DataFolder, target: str) -> list[SalvagedLog]:
    """Write every readable record of a data folder below `target`, a new or empty folder."""

    def attempt() -> list[SalvagedLog]:
        readable = ReadableRecords(disk, folder)
        try:
            disk.make_folder("salvage.folder", target)
            return write(disk, readable, target)
        finally:
            readable.close()

    return retry_if_moved(attempt)


def write(disk: Disk, readable: ReadableRecords, target: str) -> list[SalvagedLog]:
    """Write every readable record below `target`, a folder without salvaged files. Durable when it returns. If a file
    that it reads is gone, it removes what it wrote and raises."""
    salvaged: list[SalvagedLog] = []
    paths: list[str] = []
    try:
        for log_id in sorted(readable.ranges):
            folder, name = _file_name(readable.names, log_id)
            disk.make_folder("salvage.folder", f"{target}/{folder}")
            if disk.exists(path := f"{target}/{folder}/{name}.ndjson"):  # a stream that was deleted and created again
                path = f"{target}/{folder}/{name}~{log_id}.ndjson"
            paths.append(path)
            count = _write_log(disk, readable, log_id, path)
            disk.sync_folder("salvage.sync_folder", f"{target}/{folder}")
            salvaged.append(SalvagedLog(readable.names.log(log_id), path, count, tuple(readable.ranges[log_id])))
    except FileNotFoundError:
        for path in paths:
            disk.remove("salvage.remove", path)
        raise
    if salvaged:
        disk.sync_folder("salvage.sync_folder", target)
        disk.sync_folder("salvage.sync_folder", target.rpartition("/")[0] or "/")
    return salvaged


def _write_log(disk: Disk, readable: ReadableRecords, log_id: int, path: str) -> int:
    """Write the records of one log to a new file. Returns how many they are."""
    file = disk.create("salvage.create", path)
    try:
        count = position = 0
        for lines in _lines(readable, log_id):
            file.write_at("salvage.write", position, data := b"".join(lines))
            position += len(data)
            count += len(lines)
        file.sync("salvage.sync")
    finally:
        file.close()
    return count


def _file_name(names: Names, log_id: int) -> tuple[str, str]:
    """A folder and a file name for a log. Names of topics and paths of streams are escaped and shortened."""
    if log_id in names.partitions:
        topic, partition = names.partitions[log_id]
        folder, name = "topics", f"{quote(topic, safe='')}-{partition}"
    elif log_id in names.paths:
        folder, name = "streams", quote(names.paths[log_id], safe="")
    else:
        folder, name = "logs", str(log_id)
    return folder, name if len(name) <= _FILE_NAME_MAX else f"{name[:_FILE_NAME_MAX]}~{log_id}"


def _lines(readable: ReadableRecords, log_id: int) -> Iterator[list[bytes]]:
    """The lines of each batch."""
    ranges = readable.ranges[log_id]
    partition = readable.names.partitions[log_id][1] if log_id in readable.names.partitions else None
    written = 0  # a batch of the journal may overlap batches of the files
    for header, batch in readable.batches(log_id):
        yield [
            line_of(offset, header.at_ms, record, partition)
            for offset, record in enumerate(records.unpack(batch, header), header.first_offset)
            if offset >= written and offset in ranges
        ]
        written = max(written, header.end_offset)

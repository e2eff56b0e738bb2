"""Reads the checkpoint of a streaming query: the offsets that each micro-batch ends at, and the last one that is done.

    checkpoint/offsets/7   written before micro-batch 7 runs: a line of metadata, then one line for each source
    checkpoint/commits/7   written after it

A checkpoint on a local or mounted file system can be read. Of any other path nothing is known, and every answer is
empty. Knows no Spark and no broker.
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from driftq.spark.source.offsets import BadCheckpoint, Offsets, ReadProgress, from_json

HEADER_LINES = 2  # the version of the format, and metadata


class Checkpoint:
    """The folder of one query's progress."""

    def __init__(self, path: str) -> None:
        parts = urlsplit(path)
        self._folder: Path | None = Path(path) if path and not parts.scheme else None
        if parts.scheme == "file":
            self._folder = Path(unquote(parts.path))

    def batches(self) -> list[int]:
        """The micro-batches whose offsets are kept, in order."""
        return self._numbers("offsets")

    def done(self) -> int | None:
        """The last micro-batch that is done."""
        return max(self._numbers("commits"), default=None)

    def content(self, batch_id: int) -> str:
        """Identifies what a micro-batch reads, by the offsets that it ends at. Empty if that is not known: the file
        cannot be read, or a source has offsets that do not identify its rows, such as the numbers of a file source."""
        trees = self._ends(batch_id)
        if not trees or not all(_is_progress(tree) for tree in trees):
            return ""
        # Not the number of splits, nor what was seen of the log: a batch with other ones has the same rows.
        named = [{name: tree.get(name) for name in ("offsets", "begins", "made")} for tree in trees]
        text = json.dumps(named, sort_keys=True)
        return f"offsets:{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def progress(self, batch_id: int) -> ReadProgress | None:
        """How far a query with a single driftq source has read after a micro-batch; None if that is not known."""
        trees = self._ends(batch_id)
        if len(trees) != 1 or not _is_progress(trees[0]):
            return None
        try:
            return from_json(trees[0])
        except BadCheckpoint:
            return None

    def passed(self) -> tuple[Offsets, Offsets]:
        """For each log the range of offsets that the query is known to have passed: from the end of the first
        micro-batch that is still kept to the end of the last one that is done."""
        last = self.done()
        kept = self.batches()
        first = self.progress(kept[0]) if kept else None
        end = self.progress(last) if last is not None else None
        if first is None or end is None:
            return {}, {}
        return {log: min(first.offsets.get(log, offset), offset) for log, offset in end.offsets.items()}, end.offsets

    def mend(self) -> list[str]:
        """Remove what a power failure has torn, and return the names of these files. Spark does not sync its files, and
        fails on one that is empty. The query then continues from the last micro-batch whose files are whole. Only for a
        sink that is exact from every older checkpoint, and before the query starts."""
        if self._folder is None or not self._folder.is_dir():
            return []
        torn = {name: self._first_torn(name) for name in ("offsets", "commits")}
        ends = {"offsets": torn["offsets"], "commits": min(torn["offsets"], torn["commits"])}
        removed = [
            self._folder / name / str(number)
            for name, end in ends.items()
            for number in self._numbers(name)
            if number >= end
        ]
        for path in removed:
            path.unlink()
        metadata = self._folder / "metadata"
        if metadata.exists() and not _is_whole(metadata, 0):
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
            removed.append(metadata)
        # Spark's checksums of these files are as likely to be torn, and it reads files without them.
        for checksum in (*self._folder.glob(".*.crc"), *self._folder.glob("*/.*.crc")):
            checksum.unlink()
        return [str(path.relative_to(self._folder)) for path in removed]

    def _first_torn(self, name: str) -> float:
        """The first micro-batch whose file is not whole."""
        assert self._folder is not None
        return next((n for n in self._numbers(name) if not _is_whole(self._folder / name / str(n), 1)), math.inf)

    def _numbers(self, name: str) -> list[int]:
        folder = self._folder / name if self._folder is not None else None
        if folder is None or not folder.is_dir():
            return []
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())

    def _ends(self, batch_id: int) -> list[Any]:
        """The end offsets of each source; empty if they cannot be read."""
        if self._folder is None:
            return []
        try:
            lines = (self._folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines[HEADER_LINES:]]
        except (OSError, ValueError):
            return []


def _is_whole(path: Path, header_lines: int) -> bool:
    """Whether a file has its header, and JSON or `-` in every line after it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines[header_lines:]:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError):
        return False
    return len(lines) > header_lines


def _is_progress(tree: Any) -> bool:
    return isinstance(tree, dict) and "version" in tree and isinstance(tree.get("offsets"), dict)

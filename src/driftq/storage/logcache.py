"""What a log store keeps at hand: a bounded number of open files and a bounded amount of batches in memory.

Both forget the least recently used first, and forgetting loses nothing: files are opened again, batches read again.
"""

from __future__ import annotations

from collections import OrderedDict

from driftq.storage.disk import Disk, File
from driftq.storage.logfiles import Run

_RUN_COST_BYTES = 512  # what a cached run costs beside its bytes
_BATCH_COST_BYTES = 96


class OpenFiles:
    """Files by path, at most `limit` of them open."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()

    def __getitem__(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._disk.open(path, write=True)
            self.add(path, file)
        else:
            self._files.move_to_end(path)
        return file

    def add(self, path: str, file: File) -> None:
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class RunCache:
    """The runs whose batches are in memory: what was appended or read last."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._runs: OrderedDict[Run, int] = OrderedDict()

    def touch(self, run: Run) -> None:
        """Move a run to the young end, count what it costs now, and let the oldest go."""
        cost = run.size_bytes + _RUN_COST_BYTES + _BATCH_COST_BYTES * len(run.firsts or ())
        self._size_bytes += cost - self._runs.pop(run, 0)
        self._runs[run] = cost
        while self._size_bytes > self._limit_bytes and len(self._runs) > 1:
            old, old_cost = self._runs.popitem(last=False)
            old.firsts = old.batches = None
            self._size_bytes -= old_cost

    def clear(self) -> None:
        self._runs.clear()
        self._size_bytes = 0

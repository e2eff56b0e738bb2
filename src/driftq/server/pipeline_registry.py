"""The registry of pipelines: what each reported last. In memory, like that of workers: a restart forgets it, and the
next micro-batch reports again. Bounded in entries; an entry ends a day after its last report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from driftq.wire.pipelines import PipelineReport

ENTRIES_MAX = 1_000
TTL_S = 86_400.0


class PipelineEntry(NamedTuple):
    """The last report of a pipeline. Times are of a clock that is never set."""

    report: PipelineReport
    first_s: float
    seen_s: float
    total_rows: int


class PipelineRegistry:
    """The pipelines that reported in the last day."""

    def __init__(self, now_s: Callable[[], float], entries_max: int = ENTRIES_MAX) -> None:
        self.now_s = now_s
        self._entries_max = entries_max
        self._entries: dict[str, PipelineEntry] = {}  # the one that reported longest ago comes first

    def find(self, name: str) -> PipelineEntry | None:
        self._drop_silent()
        return self._entries.get(name)

    def report(self, name: str, report: PipelineReport) -> None:
        """Renew an entry. If there are too many, the one that was silent longest is dropped. A verdict is kept until
        the next one."""
        self._drop_silent()
        now_s = self.now_s()
        known = self._entries.pop(name, None)
        while len(self._entries) >= self._entries_max:
            del self._entries[next(iter(self._entries))]
        total, first_s = (known.total_rows, known.first_s) if known is not None else (0, now_s)
        self._entries[name] = PipelineEntry(report, first_s, now_s, total + report.rows)

    def __iter__(self) -> Iterator[tuple[str, PipelineEntry]]:
        self._drop_silent()
        return iter(sorted(self._entries.items()))

    def _drop_silent(self) -> None:
        oldest_s = self.now_s() - TTL_S
        while self._entries:
            name, entry = next(iter(self._entries.items()))
            if entry.seen_s >= oldest_s:
                return
            del self._entries[name]

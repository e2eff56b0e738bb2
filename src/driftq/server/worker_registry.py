"""The registry of workers: which processes run workers now, as they say themselves.

    process ──PUT /v1/workers/{id}──▶ heartbeat() ──▶ an entry, kept for TTL heartbeats ──▶ entries(), for people
            ◀──command, interval────        ▲
                                       request(id, "drain")

Not durable, and no part of the broker's state: entries are presence, like open connections. After a restart of the
broker the registry is complete again within one heartbeat. A command is kept in its entry and is returned with every
heartbeat until the process ends; a restart of the broker forgets it.

Everything is bounded: the number of entries, and the bytes of their texts. With many entries the interval between
heartbeats grows, so that they never cost more than `HEARTBEATS_PER_S_MAX` requests a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from driftq.wire.workers import HEARTBEAT_MS, HeartbeatReply

if TYPE_CHECKING:
    from driftq.wire.workers import HeartbeatRequest, WorkerCommand

ENTRIES_MAX = 10_000
BYTES_MAX = 16 << 20  # of all heartbeats, as they were sent
PAGE_BYTES = 1 << 20  # about what a page of the list holds
HEARTBEATS_PER_S_MAX = 200
TTL_HEARTBEATS = 5  # an entry ends after so many intervals without a heartbeat
TTL_S_MIN = 10.0


class WorkerEntry:
    """One process."""

    __slots__ = ("command", "heartbeat", "id", "seen_s", "size_bytes")

    def __init__(self, id: str) -> None:
        self.id = id
        self.heartbeat: HeartbeatRequest | None = None  # the last one
        self.seen_s = 0.0  # when it came
        self.size_bytes = 0
        self.command: WorkerCommand = ""  # what it was asked to do


class WorkerRegistry:
    """The processes whose heartbeats are recent. Times are of a clock that is never set."""

    def __init__(self, now_s: Callable[[], float], entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._now_s = now_s
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: dict[str, WorkerEntry] = {}  # the one that was seen longest ago comes first
        self._size_bytes = 0

    def heartbeat(self, id: str, heartbeat: HeartbeatRequest, size_bytes: int) -> HeartbeatReply | None:
        """Renew an entry. None if there is no room for it: the process works without one."""
        self._drop_silent()
        entry = self._entries.pop(id, None)
        known_bytes = entry.size_bytes if entry is not None else 0
        if entry is None:
            if len(self._entries) >= self._entries_max:
                return None
            entry = WorkerEntry(id)
        grown_bytes = self._size_bytes - known_bytes + size_bytes
        if grown_bytes > self._bytes_max:
            self._size_bytes -= known_bytes
            return None
        entry.heartbeat, entry.seen_s, entry.size_bytes = heartbeat, self._now_s(), size_bytes
        self._size_bytes = grown_bytes
        self._entries[id] = entry
        return HeartbeatReply(entry.command, self.heartbeat_ms)

    @property
    def heartbeat_ms(self) -> int:
        """The interval between two heartbeats of a process."""
        return max(HEARTBEAT_MS, 1_000 * len(self._entries) // HEARTBEATS_PER_S_MAX)

    def remove(self, id: str) -> bool:
        """The process has ended."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return False
        self._size_bytes -= entry.size_bytes
        return True

    def request(self, id: str, command: WorkerCommand) -> WorkerEntry | None:
        """Ask a process to end. It gets the command with its next heartbeat. A stop is not taken back by a drain."""
        entry = self.find(id)
        if entry is not None and entry.command != "stop":
            entry.command = command
        return entry

    def find(self, id: str) -> WorkerEntry | None:
        self._drop_silent()
        return self._entries.get(id)

    def __len__(self) -> int:
        self._drop_silent()
        return len(self._entries)

    def page(
        self, after: str, limit: int, is_seen: Callable[[WorkerEntry], bool] = lambda entry: True
    ) -> tuple[list[WorkerEntry], bool]:
        """Up to `limit` of the entries that the caller may see, by id, from the one after `after` on, and whether there
        are more."""
        self._drop_silent()
        ids = sorted(id for id, entry in self._entries.items() if id > after and is_seen(entry))
        entries: list[WorkerEntry] = []
        size_bytes = 0
        for id in ids[:limit]:
            if size_bytes > PAGE_BYTES:
                break
            entries.append(self._entries[id])
            size_bytes += entries[-1].size_bytes
        return entries, len(ids) > len(entries)

    def age_ms(self, entry: WorkerEntry) -> int:
        """How long ago the last heartbeat came."""
        return max(0, int(1_000 * (self._now_s() - entry.seen_s)))

    def _drop_silent(self) -> None:
        """Entries are in the order of their heartbeats, so this looks at those that end and at one more."""
        oldest_s = self._now_s() - max(TTL_S_MIN, TTL_HEARTBEATS * self.heartbeat_ms / 1_000)
        while self._entries:
            first = next(iter(self._entries.values()))
            if first.seen_s >= oldest_s:
                return
            self.remove(first.id)

"""The registry of workers as a tenant sees it. Ids and topics have the broker's names in the registry, so an operator
sees the workers of all tenants, and two tenants may use the same id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.server.worker_registry import WorkerEntry

if TYPE_CHECKING:
    from driftq.server.worker_registry import WorkerRegistry
    from driftq.wire.namespaces import Namespace
    from driftq.wire.workers import HeartbeatReply, HeartbeatRequest, WorkerCommand


class TenantWorkers:
    """The workers of one tenant."""

    def __init__(self, registry: WorkerRegistry, space: Namespace) -> None:
        self._registry = registry
        self._space = space
        self.age_ms = registry.age_ms

    def heartbeat(self, id: str, heartbeat: HeartbeatRequest, size_bytes: int) -> HeartbeatReply | None:
        return self._registry.heartbeat(self._space.name(id), _renamed(heartbeat, self._space.topic), size_bytes)

    def remove(self, id: str) -> bool:
        return self._registry.remove(self._space.name(id))

    def request(self, id: str, command: WorkerCommand) -> WorkerEntry | None:
        return self._own(self._registry.request(self._space.name(id), command))

    def find(self, id: str) -> WorkerEntry | None:
        return self._own(self._registry.find(self._space.name(id)))

    def page(self, after: str, limit: int, is_seen: Callable[[WorkerEntry], bool]) -> tuple[list[WorkerEntry], bool]:
        def is_own(entry: WorkerEntry) -> bool:
            own = self._own(entry) if self._space.holds(entry.id) else None
            return own is not None and is_seen(own)

        entries, has_more = self._registry.page(self._space.name(after), limit, is_own)
        return [own for entry in entries if (own := self._own(entry)) is not None], has_more

    def _own(self, entry: WorkerEntry | None) -> WorkerEntry | None:
        if entry is None or entry.heartbeat is None:
            return None
        own = WorkerEntry(self._space.own(entry.id))
        own.heartbeat = _renamed(entry.heartbeat, self._space.own)
        own.seen_s, own.size_bytes, own.command = entry.seen_s, entry.size_bytes, entry.command
        return own


def _renamed(heartbeat: HeartbeatRequest, name: Callable[[str], str]) -> HeartbeatRequest:
    return replace(heartbeat, workers=tuple(replace(worker, topic=name(worker.topic)) for worker in heartbeat.workers))

"""What the tenants have stored, and what waits in their topics.

Both are sums over logs, so they are measured now and then, in slices between which the server handles requests, and
only for tenants with such a quota. What was charged since the measurement is added to it: a tenant cannot pass its
quota by much between two of them. What it frees shows with the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.backlog import backlog_of
from driftq.engine.lifetime import EngineStopped
from driftq.server.slices import slices
from driftq.wire.namespaces import DEAD_PREFIX, Namespace

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView

EVERY_S = 1.0
SHARE_MAX = 0.05  # of the loop's time that measurements may take
STREAMS_AT_ONCE = 64


class Stored(NamedTuple):
    """A measurement."""

    stored_bytes: int = 0
    backlog: int = 0


class TenantUsage:
    """Measures the tenants of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._measured: dict[str, Stored] = {}
        self._charged: dict[str, Stored] = {}  # since the last measurement began
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._engine.monitor.steps("tenants", self._run()))
        self._engine.stopped.add_done_callback(lambda _: self.stop())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def charge(self, tenant: str, messages: int, size_bytes: int) -> None:
        before = self._charged.get(tenant, Stored())
        self._charged[tenant] = Stored(before.stored_bytes + size_bytes, before.backlog + messages)

    def used(self, tenant: str) -> Stored:
        """At most this much, as far as is known."""
        measured, charged = self._measured.get(tenant, Stored()), self._charged.get(tenant, Stored())
        return Stored(measured.stored_bytes + charged.stored_bytes, measured.backlog + charged.backlog)

    async def measure(self, tenant: str) -> Stored:
        """Measure a tenant now."""
        charged = self._charged.pop(tenant, None)
        stored_bytes = backlog = 0
        try:
            async for rows in slices(self._engine.queries, lambda view: _rows(view, Namespace(tenant))):
                stored_bytes += sum(row.stored_bytes for row in rows)
                backlog += sum(row.backlog for row in rows)
        except BaseException:
            if charged is not None:
                self.charge(tenant, charged.backlog, charged.stored_bytes)
            raise
        measured = self._measured[tenant] = Stored(stored_bytes, backlog)
        return measured

    async def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                await self._measure_all()
            except EngineStopped:
                return
            took_s = time.perf_counter() - began_s
            await asyncio.sleep(max(EVERY_S, took_s / SHARE_MAX))

    async def _measure_all(self) -> None:
        by_name = self._engine.latest_state.tenants.by_name
        for name, tenant in list(by_name.items()):
            if tenant.quotas.stored_bytes or tenant.quotas.backlog:
                await self.measure(name)
        for name in [name for name in (*self._measured, *self._charged) if name not in by_name]:
            self._measured.pop(name, None)
            self._charged.pop(name, None)


def _rows(view: StateView, space: Namespace) -> Iterator[Stored | None]:
    state = view.state
    for name in list(state.topics):
        if not space.holds(name):
            continue
        yield None
        topic = state.topics.get(name)
        for log_id in topic.log_ids if topic is not None else ():
            if state.topics.get(name) is not topic:
                break  # deleted in the meantime
            log = state.logs[log_id]
            waiting = None if name.startswith(DEAD_PREFIX) else backlog_of(state, view.limits, log)
            yield Stored(_bytes(log), waiting.lag if waiting is not None else 0)
    after = ""
    while True:
        size_bytes, count = 0, 0
        for path in state.streams.paths_from(space.prefix, after):
            after, count = path, count + 1
            size_bytes += _bytes(state.logs[state.streams.by_path[path].log_id])
            if count == STREAMS_AT_ONCE:
                break
        yield Stored(size_bytes, 0)
        if count < STREAMS_AT_ONCE:
            return


def _bytes(log: Log) -> int:
    return log.bytes_from(log.start)

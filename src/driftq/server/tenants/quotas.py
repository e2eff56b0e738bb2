"""Quotas: what a tenant may still do.

    request ──▶ requests_per_s, connections          by route, before its handler
    command ──▶ stored_bytes, backlog                measured (`TenantUsage`)
            ──▶ messages_per_s, bytes_per_s          buckets (`TenantRates`)
            ──▶ topics, streams, groups, schedules   counted and refused by the broker

Over a quota only what adds something is refused, with 429. Reads, claims, acks and deletions pass: they are the way
back below the quota. They are counted as requests.

A caller that repeats a refused call at once must gain nothing by it, so the answer waits for `REFUSAL_DELAY_S`. The
callers of a tenant are refused together and call again together: answers that leave in one go hold the loop for
milliseconds, and so does what comes back. So they leave one after the other (`RefusalQueue`):

    refused ──▶ | due at 50 ms | at 50 ms | at 51 ms | ──one per tick of `REFUSAL_TICK_S`──▶ answered

That is up to a thousand per second. With more than `REFUSALS_LONG` waiting, each tick answers a part of them, so none
waits for many seconds. The wait costs the tenant alone: the calls of others pass in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from driftq.core.model.commands import CommitOutcome
from driftq.core.model.interventions import MoveMessages, Redrive
from driftq.core.model.job_batches import AddToJobBatch, CreateJobBatch
from driftq.core.state.job_batches import jobs_in, template_bytes
from driftq.core.transitions.lookups import quota_exceeded
from driftq.server.handlers.codec import refusal
from driftq.server.http.limits import LARGE_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.core.model.commands import Command
    from driftq.core.model.replies import Rejected
    from driftq.core.model.tenant_facts import TenantQuotas
    from driftq.engine.engine import Engine
    from driftq.server.http import Request, Response
    from driftq.server.tenants.rates import TenantRates
    from driftq.server.tenants.usage import TenantUsage

RETRY_AFTER_MS = 1_000  # for quotas that time alone does not free
REFUSAL_DELAY_S: Final = 0.05
REFUSAL_TICK_S: Final = 0.001
REFUSALS_LONG: Final = 1_000
_ONE = {"requests_per_s": 1}


class TenantCounters:
    """What a tenant did since the start, for the metrics."""

    __slots__ = ("bytes", "messages", "refused", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.messages = 0
        self.bytes = 0
        self.refused: dict[str, int] = {}  # by quota


class TenantMeter:
    """The quotas of one tenant."""

    def __init__(
        self,
        tenant: str,
        engine: Engine,
        rates: TenantRates,
        usage: TenantUsage,
        connections: Callable[[str], int],
    ) -> None:
        self.tenant = tenant
        self._tenants = engine.latest_state.tenants
        self._now_ms = engine.now_ms
        self._rates = rates
        self._usage = usage
        self._connections = connections
        self.counters = TenantCounters()
        self.refusals = RefusalQueue()

    @property
    def _quotas(self) -> TenantQuotas | None:
        tenant = self._tenants.by_name.get(self.tenant)
        return tenant.quotas if tenant is not None else None

    def admit(self, request: Request, adds: bool) -> Response | None:
        """Count a request. Returns the response to one that is refused."""
        self.counters.requests += 1
        quotas = self._quotas
        if quotas is None:
            return None
        if quotas.connections and not request.is_counted and self._connections(self.tenant) >= quotas.connections:
            request.keep_alive = False  # what passes does not leave a connection
            if adds:
                used = self._connections(self.tenant)
                return self._refused(
                    quota_exceeded(self.tenant, "connections", used, quotas.connections, RETRY_AFTER_MS)
                )
        if quotas.requests_per_s:
            rejected = self._rates.take(self.tenant, _ONE, self._now_ms(), always=not adds)
            if rejected is not None:
                return self._refused(rejected)
        if adds and len(request.body) > LARGE_BODY_BYTES:
            # Before it is read: to decode a megabyte only to refuse it takes the time of others.
            rejected = self._rates.refusal(self.tenant, {"bytes_per_s": len(request.body)}, self._now_ms())
            if rejected is not None:
                return self._refused(rejected)
        return None

    def charge(self, command: Command) -> Rejected | None:
        """Count what a command stores. Refused if there is no room for it."""
        messages, size_bytes = weight(command)
        if not messages:
            return None
        rejected = self._over_stored() or self._rates.take(
            self.tenant, {"messages_per_s": messages, "bytes_per_s": size_bytes}, self._now_ms()
        )
        if rejected is not None:
            self._count(rejected)
            return rejected
        quotas = self._quotas
        if quotas is not None and (quotas.stored_bytes or quotas.backlog):
            self._usage.charge(self.tenant, messages, size_bytes)
        self.counters.messages += messages
        self.counters.bytes += size_bytes
        return None

    def _over_stored(self) -> Rejected | None:
        quotas = self._quotas
        if quotas is None or not (quotas.stored_bytes or quotas.backlog):
            return None
        used = self._usage.used(self.tenant)
        for quota, is_used, limit in (
            ("stored_bytes", used.stored_bytes, quotas.stored_bytes),
            ("backlog", used.backlog, quotas.backlog),
        ):
            if 0 < limit <= is_used:
                return quota_exceeded(self.tenant, quota, is_used, limit, RETRY_AFTER_MS)
        return None

    def _refused(self, rejected: Rejected) -> Response:
        self._count(rejected)
        return refusal(rejected)

    def _count(self, rejected: Rejected) -> None:
        quota = str(rejected.details["quota"])
        self.counters.refused[quota] = self.counters.refused.get(quota, 0) + 1


class RefusalQueue:
    """The refused calls of one tenant that have no answer yet."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Callable[[], object]]] = deque()  # when an answer is due, and what sends it

    def add(self, answer: Callable[[], object]) -> None:
        """Call `answer` when its time has come. It must not fail if its caller is gone."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + REFUSAL_DELAY_S
        if not self._waiting:
            loop.call_at(due_s, self._tick)
        self._waiting.append((due_s, answer))

    def _tick(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        now_s = loop.time()
        count_max = max(1, len(waiting) // REFUSALS_LONG)
        due: list[Callable[[], object]] = []
        while waiting and waiting[0][0] <= now_s and len(due) < count_max:
            due.append(waiting.popleft()[1])
        if waiting:
            loop.call_at(max(waiting[0][0], now_s + REFUSAL_TICK_S), self._tick)
        for answer in due:
            answer()


def weight(command: Command) -> tuple[int, int]:
    """How many messages a command stores, and their bytes. What is redriven or moved was counted before."""
    if isinstance(command, Redrive | MoveMessages):
        return 0, 0
    if isinstance(command, CommitOutcome):
        parts = [weight(part) for part in (*command.produces, *command.appends)]
        return sum(messages for messages, _ in parts), sum(size for _, size in parts)
    if isinstance(command, CreateJobBatch | AddToJobBatch):
        members = command.members if isinstance(command, AddToJobBatch) else (command.template,)
        jobs = [job for member in members for job in jobs_in(member)]
        return len(jobs), sum(map(template_bytes, jobs))
    fields: Any = command
    size_bytes = getattr(fields, "payload_bytes", 0)
    return (fields.count or 1 if size_bytes else 0), size_bytes

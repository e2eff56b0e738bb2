"""The routes of each tenant: the same route table as everyone's, over an engine that sees only the tenant's names.

    App ──identity has a tenant──▶ TenantApps(tenant) ──▶ App of the tenant ──▶ quota ──▶ handler

A table is made at the first request of a tenant. Their number is bounded; the oldest is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from driftq.server.access.identity import OWN, PUBLIC, AccessRefused, Right
from driftq.server.handlers.context import Context
from driftq.server.http import Deferred
from driftq.server.metrics.registry import TenantRow
from driftq.server.tenants.engine import TenantEngine
from driftq.server.tenants.names import TenantNames
from driftq.server.tenants.quotas import TenantCounters, TenantMeter
from driftq.server.tenants.usage import TenantUsage
from driftq.server.tenants.workers import TenantWorkers
from driftq.wire.errors import Code
from driftq.wire.grants import APPEND, MANAGE, PRODUCE
from driftq.wire.namespaces import Namespace
from driftq.wire.tenants import QUOTAS

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.http import Answer, Request
    from driftq.server.observation.observers import Observers
    from driftq.server.observation.sampler import BrokerSample, Sampler
    from driftq.server.worker_registry import WorkerRegistry

T = TypeVar("T")

APPS_MAX = 1_000
COUNTERS_MAX = 1_000  # tenants with metrics of their own
_ADDS = (PRODUCE, APPEND, MANAGE)
_OPERATORS = "this is for operators: a credential of a tenant cannot do it, whatever its grants"


class Route(Protocol):
    """A row of the route table, as far as it is looked at here."""

    @property
    def method(self) -> str: ...

    @property
    def handler(self) -> Callable[..., Answer]: ...

    @property
    def right(self) -> Any: ...

    def _replace(self, **fields: Any) -> Any: ...


class TenantApps:
    """The apps of all tenants."""

    def __init__(
        self,
        context: Context,
        make: Callable[[Context, Callable[[Any], Any]], Callable[[Request], Answer]],
        connections: Callable[[str], int],
    ) -> None:
        self._context = context
        self._make = make
        self.connections = connections  # of a tenant
        self.usage = context.once(TenantUsage, lambda: TenantUsage(context.engine))
        self._apps: dict[str, Callable[[Request], Answer]] = {}
        self.counters: dict[str, TenantCounters] = {}

    def __call__(self, tenant: str) -> Callable[[Request], Answer]:
        app = self._apps.get(tenant)
        if app is None:
            if len(self._apps) >= APPS_MAX:
                del self._apps[next(iter(self._apps))]
            app = self._apps[tenant] = self._new(tenant)
        return app

    def rows(self) -> list[TenantRow]:
        """The metrics of the tenants that called."""
        return [self.row(tenant) for tenant in self.counters]

    def row(self, tenant: str) -> TenantRow:
        counters = self.counters.get(tenant) or TenantCounters()
        known = self._context.root_engine.latest_state.tenants.by_name.get(tenant)
        used = {"connections": self.connections(tenant)}
        if known is not None:
            used |= {quota: getattr(known, quota) for quota in ("topics", "streams", "groups", "schedules")}
        quotas = {quota: getattr(known.quotas, quota) for quota in QUOTAS} if known is not None else {}
        return TenantRow(
            tenant, counters.requests, counters.messages, counters.bytes, dict(counters.refused), used, quotas
        )

    def _new(self, tenant: str) -> Callable[[Request], Answer]:
        root = self._context
        meter = TenantMeter(tenant, root.engine, root.rates, self.usage, self.connections)
        if tenant in self.counters or len(self.counters) < COUNTERS_MAX:
            meter.counters = self.counters.setdefault(tenant, meter.counters)
        names = TenantNames(Namespace(tenant))
        engine = cast("Engine", TenantEngine(root.engine, names, meter))
        workers = cast("WorkerRegistry", TenantWorkers(root.workers, names.space))
        router = root.router.over(engine) if root.router is not None else None
        observers = cast("Observers", TenantObservers(root.observers, names.space))
        context = Context(
            engine, root.settings, router, None, root.outbound, workers, observers, root.tracer, tenant, root, self
        )
        return self._make(context, lambda route: guarded(route, meter))


class TenantObservers:
    """What a tenant sees of the observers. Those of all topics together, runs and events, are for operators."""

    runs = None
    events = None

    def __init__(self, observers: Observers, space: Namespace) -> None:
        self.sampler = TenantSampler(observers.sampler, space)


class TenantSampler:
    """The figures of a tenant's topics and groups, from the samples of the server."""

    def __init__(self, sampler: Sampler, space: Namespace) -> None:
        self._sampler = sampler
        self._space = space

    async def fresh(self) -> BrokerSample:
        sample = await self._sampler.fresh()
        return sample._replace(
            groups=self._own(sample.groups),
            topic_rates=self._own(sample.topic_rates),
            group_rates=self._own(sample.group_rates),
        )

    def _own(self, figures: dict[tuple[str, ...], T]) -> dict[tuple[str, ...], T]:
        space = self._space
        return {(space.own(name[0]), *name[1:]): row for name, row in figures.items() if space.holds(name[0])}


def guarded(route: Route, meter: TenantMeter) -> Any:
    """The route with the quotas of a tenant before its handler, closed if it is for operators."""
    right, handler = route.right, route.handler
    if isinstance(right, Right) and right.operators:
        return route._replace(handler=_closed)

    def call(request: Request, *values: Any) -> Answer:
        needed = right if isinstance(right, Right) else right(request.method, *values)
        refused = meter.admit(request, needed.verb in _ADDS and request.method != "DELETE")
        if refused is None:
            return handler(request, *values)
        answer = Deferred()
        meter.refusals.add(partial(answer.resolve, refused))
        return answer

    return route._replace(handler=call) if right not in (PUBLIC, OWN) else route


def _closed(request: Request, *values: Any) -> Answer:
    identity = request.identity
    if identity is not None and identity.audit is not None:
        identity.audit.denied(request, identity, "for operators only", request.head.route)
    raise AccessRefused(Code.PERMISSION_DENIED, _OPERATORS)

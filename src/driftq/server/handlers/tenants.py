"""Tenants: create, list, show with what they use, change their quotas, delete."""

from __future__ import annotations

from heapq import nsmallest
from typing import TYPE_CHECKING

from driftq.core.model import tenants as t
from driftq.core.model.replies import Rejected
from driftq.core.model.tenant_facts import TenantQuotas
from driftq.core.transitions.lookups import no_such_tenant
from driftq.server.handlers.codec import PAGE_LIMIT_MAX, json_response, no_content, page_limit, read_json, refusal
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.tenants.rates import RATES
from driftq.server.tenants.usage import TenantUsage
from driftq.wire.fields import to_rfc3339
from driftq.wire.tenants import (
    QUOTAS,
    TenantAmounts,
    TenantChange,
    TenantInfo,
    TenantListing,
    TenantRequest,
    TenantsReply,
)

if TYPE_CHECKING:
    from driftq.core.state.tenants import Tenant
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context


class TenantsHandlers:
    """Handlers of `/v1/tenants`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._usage = context.once(TenantUsage, lambda: TenantUsage(context.root_engine))

    async def create(self, request: Request) -> Response:
        body = read_json(request.body, TenantRequest)
        command = t.CreateTenant(body.name, _quotas(body.quotas))
        quotas = {quota: amount for quota in QUOTAS if (amount := getattr(body.quotas, quota))}
        reply = await self._engine.submit(self._context.audited(request, command, body.name, **quotas))
        return refusal(reply) if isinstance(reply, Rejected) else await self._described(body.name, 201)

    def list(self, request: Request) -> Answer:
        """A page of tenants, in the order of their names."""
        limit, after = page_limit(request, PAGE_LIMIT_MAX), request.query.get("after", "")

        def look(view: StateView) -> Response:
            tenants = view.state.tenants.by_name
            page = nsmallest(limit + 1, (name for name in tenants if name > after))
            shown = [_listing(tenants[name]) for name in page[:limit]]
            return json_response(TenantsReply(shown, page[limit - 1] if len(page) > limit else None))

        return self._context.query(look)

    async def show(self, request: Request, name: str) -> Response:
        return await self._described(name, 200)

    async def change(self, request: Request, name: str) -> Response:
        body = read_json(request.body, TenantChange)
        quotas = {quota: amount for quota in QUOTAS if (amount := getattr(body, quota)) is not None}
        if not quotas:
            raise BadRequest("nothing to change: name the quotas that change; 0 takes one away")
        command = self._context.audited(request, t.ChangeTenant(name, quotas), name, **quotas)
        reply = await self._engine.submit(command)
        return refusal(reply) if isinstance(reply, Rejected) else await self._described(name, 200)

    def delete(self, request: Request, name: str) -> Answer:
        return self._context.ask(self._context.audited(request, t.DeleteTenant(name), name), no_content)

    async def _described(self, name: str, status: int) -> Response:
        known = await self._engine.queries.result(lambda view: name in view.state.tenants.by_name)
        stored = await self._usage.measure(name) if known else None

        def look(view: StateView) -> Response:
            tenant = view.state.tenants.by_name.get(name)
            if tenant is None or stored is None:
                return refusal(no_such_tenant(name))
            rates = {rate: self._context.rates.used(name, rate, view.now_ms) for rate in RATES}
            apps = self._context.apps
            used = TenantAmounts(
                **rates,
                stored_bytes=stored.stored_bytes,
                backlog=stored.backlog,
                topics=tenant.topics,
                streams=tenant.streams,
                groups=tenant.groups,
                schedules=tenant.schedules,
                connections=apps.connections(name) if apps is not None else 0,
            )
            listing = _listing(tenant)
            return json_response(TenantInfo(listing.name, listing.created_at, listing.quotas, used), status)

        return await self._engine.queries.result(look)


def _quotas(amounts: TenantAmounts) -> TenantQuotas:
    return TenantQuotas(**{quota: getattr(amounts, quota) for quota in QUOTAS})


def _listing(tenant: Tenant) -> TenantListing:
    amounts = TenantAmounts(**{quota: getattr(tenant.quotas, quota) for quota in QUOTAS})
    return TenantListing(tenant.name, to_rfc3339(tenant.created.at_ms), amounts)

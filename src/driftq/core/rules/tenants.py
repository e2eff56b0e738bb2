"""Tenants: create, change their quotas, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model.replies import Done, Rejected, Reply
from driftq.core.model.tenant_facts import TenantChanged, TenantCreated, TenantDeleted
from driftq.core.transitions.lookups import no_such_tenant
from driftq.wire.errors import Code
from driftq.wire.namespaces import TENANT_LENGTH_MAX, Namespace, is_tenant_name

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model import tenants as t

TENANTS_MAX = 10_000


def create(ctx: DecisionContext, command: t.CreateTenant) -> Reply:
    name = command.tenant
    if not is_tenant_name(name):
        return Rejected(
            Code.INVALID_ARGUMENT,
            f"the name of a tenant has 1 to {TENANT_LENGTH_MAX} characters of a-z 0-9 -, and does not begin or end "
            f"with - (got {name!r})",
        )
    if name in ctx.state.tenants.by_name:
        return Rejected(Code.ALREADY_EXISTS, f"there is a tenant {name} already")
    if len(ctx.state.tenants.by_name) >= TENANTS_MAX:
        return Rejected(Code.OVERLOADED, f"there are {TENANTS_MAX} tenants, the most allowed; delete some")
    taken = _something_in(ctx, Namespace(name))
    if taken:
        return Rejected(Code.CONFLICT, f"{taken} has a name that would belong to this tenant; delete it first")
    ctx.facts.append(TenantCreated(name, ctx.now_ms, command.quotas))
    return Done()


def change(ctx: DecisionContext, command: t.ChangeTenant) -> Reply:
    tenant = ctx.state.tenants.by_name.get(command.tenant)
    if tenant is None:
        return no_such_tenant(command.tenant)
    quotas = replace(tenant.quotas, **command.quotas)
    if quotas == tenant.quotas:
        return Done(changed=False)
    ctx.facts.append(TenantChanged(command.tenant, quotas, ctx.now_ms))
    return Done()


def delete(ctx: DecisionContext, command: t.DeleteTenant) -> Reply:
    if command.tenant not in ctx.state.tenants.by_name:
        return no_such_tenant(command.tenant)
    left = _something_in(ctx, Namespace(command.tenant)) or _token_of(ctx, command.tenant)
    if left:
        return Rejected(Code.CONFLICT, f"tenant {command.tenant} is not empty: delete {left} first")
    ctx.facts.append(TenantDeleted(command.tenant, ctx.now_ms))
    return Done()


def _something_in(ctx: DecisionContext, space: Namespace) -> str:
    """A topic, stream, schedule or subscription in a namespace; "" if there is none."""
    topic = next(filter(space.holds, ctx.state.topics), None)
    if topic is not None:
        return f"topic {topic}"
    path = next(ctx.state.streams.paths_from(space.prefix, ""), None)
    if path is not None:
        return f"stream {path}"
    schedule = next(ctx.state.schedules.names_from(space.prefix, ""), None)
    if schedule is not None:
        return f"schedule {schedule}"
    subscription = next(filter(space.holds, ctx.state.subscriptions.by_name), None)
    return f"subscription {subscription}" if subscription is not None else ""


def _token_of(ctx: DecisionContext, tenant: str) -> str:
    tokens = ctx.state.access_tokens.by_id.values()
    return next((f"access token {token.token_id}" for token in tokens if token.tenant == tenant), "")

"""Commands of tenants. The facts are in `core.model.tenant_facts`."""

from __future__ import annotations

from driftq.core.model.commands import Command
from driftq.core.model.tenant_facts import TenantQuotas


class CreateTenant(Command, frozen=True):
    tenant: str
    quotas: TenantQuotas = TenantQuotas()


class ChangeTenant(Command, frozen=True):
    """Change the quotas of a tenant. Those that are not named stay; 0 takes one away."""

    tenant: str
    quotas: dict[str, int]


class DeleteTenant(Command, frozen=True):
    """Delete a tenant that has nothing left."""

    tenant: str

"""Bodies of tenants: create, list, show with what is used, change."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Natural
from driftq.wire.namespaces import TENANT_LENGTH_MAX

QUOTAS = (
    "messages_per_s",
    "bytes_per_s",
    "requests_per_s",
    "stored_bytes",
    "backlog",
    "topics",
    "streams",
    "groups",
    "schedules",
    "connections",
)


class TenantAmounts(Body, frozen=True):
    """An amount for each quota. In `quotas` 0 means that there is none."""

    messages_per_s: Natural = 0
    bytes_per_s: Natural = 0
    requests_per_s: Natural = 0
    stored_bytes: Natural = 0
    backlog: Natural = 0
    topics: Natural = 0
    streams: Natural = 0
    groups: Natural = 0
    schedules: Natural = 0
    connections: Natural = 0


class TenantRequest(Body, frozen=True):
    """A tenant to create, with its quotas."""

    name: Annotated[str, Meta(min_length=1, max_length=TENANT_LENGTH_MAX)]
    quotas: TenantAmounts = TenantAmounts()


class TenantChange(Body, frozen=True):
    """Quotas to change. A missing one stays; 0 takes it away."""

    messages_per_s: Natural | None = None
    bytes_per_s: Natural | None = None
    requests_per_s: Natural | None = None
    stored_bytes: Natural | None = None
    backlog: Natural | None = None
    topics: Natural | None = None
    streams: Natural | None = None
    groups: Natural | None = None
    schedules: Natural | None = None
    connections: Natural | None = None


class TenantListing(Struct, frozen=True):
    """A tenant in a list."""

    name: str
    created_at: str
    quotas: TenantAmounts


class TenantInfo(Struct, frozen=True):
    """A tenant: its quotas, and what it uses of them now. The rates are of the last second."""

    name: str
    created_at: str
    quotas: TenantAmounts
    used: TenantAmounts


class TenantsReply(Struct, frozen=True, omit_defaults=True):
    """Tenants in the order of their names. `after` starts the next page; it is missing on the last page."""

    tenants: list[TenantListing]
    after: str | None = None

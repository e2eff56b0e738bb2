"""Facts of tenants (tags 140 to 143). Facts evolve as described in `core.model.facts`."""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import Fact


class TenantQuotas(Struct, frozen=True, array_like=True, gc=False):
    """What a tenant may use. 0: no quota."""

    messages_per_s: int = 0  # produced and appended
    bytes_per_s: int = 0
    requests_per_s: int = 0
    stored_bytes: int = 0  # of all its topics and streams
    backlog: int = 0  # messages that the slowest group of each topic has not finished
    topics: int = 0
    streams: int = 0
    groups: int = 0
    connections: int = 0
    schedules: int = 0


class TenantCreated(Fact, tag=140, frozen=True):
    """A tenant was created, with its quotas."""

    tenant: str
    at_ms: int
    quotas: TenantQuotas


class TenantChanged(Fact, tag=141, frozen=True):
    """A tenant has other quotas."""

    tenant: str
    quotas: TenantQuotas
    at_ms: int


class TenantDeleted(Fact, tag=142, frozen=True):
    """A tenant was deleted. Nothing was left in its namespace."""

    tenant: str
    at_ms: int


class TenantSnapshot(Fact, tag=143, frozen=True):
    """State of a tenant, in a snapshot. Comes before what is in its namespace."""

    created: TenantCreated
    quotas: TenantQuotas

"""Tenants: their quotas, and how many topics, streams, groups and schedules each has.

A tenant is created while nothing is in its namespace, so the counts start at 0 and follow what is added and removed.
Without tenants each of these calls is a test of an empty dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model.tenant_facts import TenantChanged, TenantCreated, TenantDeleted, TenantSnapshot
from driftq.wire.namespaces import DEAD_PREFIX, tenant_of

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact


class Tenant:
    """One tenant."""

    __slots__ = ("created", "groups", "quotas", "schedules", "streams", "topics")

    def __init__(self, created: TenantCreated) -> None:
        self.created = created
        self.quotas = created.quotas
        self.topics = 0  # without dead-letter topics
        self.streams = 0
        self.groups = 0  # without those of dead-letter topics
        self.schedules = 0

    @property
    def name(self) -> str:
        return self.created.tenant


class TenantTable:
    """Every tenant, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, Tenant] = {}
        self.folds: dict[type, Callable[[Any], None]] = {
            TenantCreated: self._created,
            TenantChanged: self._changed,
            TenantDeleted: self._deleted,
            TenantSnapshot: self._restored,
        }

    def of(self, name: str) -> Tenant | None:
        """The tenant that a name of the broker belongs to."""
        return self.by_name.get(tenant_of(name)) if self.by_name else None

    # --- what it has ---

    def count_topic(self, topic: str, change: int) -> None:
        if self.by_name and not topic.startswith(DEAD_PREFIX) and (tenant := self.of(topic)) is not None:
            tenant.topics += change

    def count_group(self, topic: str, change: int) -> None:
        if self.by_name and not topic.startswith(DEAD_PREFIX) and (tenant := self.of(topic)) is not None:
            tenant.groups += change

    def count_stream(self, path: str, change: int) -> None:
        if self.by_name and (tenant := self.of(path)) is not None:
            tenant.streams += change

    def count_schedule(self, schedule: str, change: int) -> None:
        if self.by_name and (tenant := self.of(schedule)) is not None:
            tenant.schedules += change

    # --- facts ---

    def _created(self, fact: TenantCreated) -> None:
        self.by_name[fact.tenant] = Tenant(fact)

    def _changed(self, fact: TenantChanged) -> None:
        self.by_name[fact.tenant].quotas = fact.quotas

    def _deleted(self, fact: TenantDeleted) -> None:
        del self.by_name[fact.tenant]

    def _restored(self, fact: TenantSnapshot) -> None:
        tenant = self.by_name[fact.created.tenant] = Tenant(fact.created)
        tenant.quotas = fact.quotas

    def snapshot(self) -> Iterator[Fact]:
        for tenant in self.by_name.values():
            yield TenantSnapshot(tenant.created, tenant.quotas)

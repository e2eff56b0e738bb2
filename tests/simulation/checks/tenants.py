"""Tenants: their quotas are what was last set, they have what the facts gave them, and never more than a quota allowed
at the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model import stream_facts as s
from driftq.core.model import tenant_facts as t
from driftq.core.state.state import State
from driftq.wire.namespaces import tenant_of
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation


class TenantModel:
    """One tenant, from its facts."""

    def __init__(self, quotas: t.TenantQuotas) -> None:
        self.quotas = quotas
        self.topics: set[str] = set()
        self.streams: set[int] = set()  # their logs
        self.groups: set[int] = set()


class TenantsCheck:
    """All tenants."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantModel] = {}
        self._topics_of_groups: dict[int, str] = {}

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            t.TenantCreated: self._created,
            t.TenantChanged: self._changed,
            t.TenantDeleted: self._deleted,
            f.TopicCreated: self._topic_created,
            f.TopicDeleted: self._topic_deleted,
            s.StreamCreated: self._stream_created,
            s.StreamDeleted: self._stream_deleted,
            f.GroupCreated: self._group_created,
            f.GroupDeleted: lambda fact, op: self._forget_group(fact.group_id),
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _created(self, fact: t.TenantCreated, op: Operation) -> None:
        demand(fact.tenant not in self._tenants, "tenants", f"{fact.tenant} was created twice")
        self._tenants[fact.tenant] = TenantModel(fact.quotas)

    def _changed(self, fact: t.TenantChanged, op: Operation) -> None:
        self._tenants[fact.tenant].quotas = fact.quotas

    def _deleted(self, fact: t.TenantDeleted, op: Operation) -> None:
        tenant = self._tenants.pop(fact.tenant)
        demand(not (tenant.topics or tenant.streams), "tenants", f"{fact.tenant} was deleted, and has something left")

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        name = tenant_of(fact.topic)
        demand(not name or name in self._tenants, "tenants", f"{fact.topic} has a tenant that does not exist")
        if name:
            tenant = self._tenants[name]
            tenant.topics.add(fact.topic)
            within(len(tenant.topics), tenant.quotas.topics, f"topics of {name}")

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        name = tenant_of(fact.topic)
        if name:
            self._tenants[name].topics.discard(fact.topic)
        for group_id in [number for number, topic in self._topics_of_groups.items() if topic == fact.topic]:
            self._forget_group(group_id)

    def _stream_created(self, fact: s.StreamCreated, op: Operation) -> None:
        tenant = self._tenants.get(tenant_of(fact.path))
        if tenant is not None:
            tenant.streams.add(fact.log_id)
            within(len(tenant.streams), tenant.quotas.streams, f"streams of {tenant_of(fact.path)}")

    def _stream_deleted(self, fact: s.StreamDeleted, op: Operation) -> None:
        for tenant in self._tenants.values() if not fact.soft else ():
            tenant.streams.discard(fact.log_id)

    def _group_created(self, fact: f.GroupCreated, op: Operation) -> None:
        tenant = self._tenants.get(tenant_of(fact.topic))
        if tenant is not None and not fact.topic.startswith("dlq."):
            self._topics_of_groups[fact.group_id] = fact.topic
            tenant.groups.add(fact.group_id)
            within(len(tenant.groups), tenant.quotas.groups, f"groups of {tenant_of(fact.topic)}")

    def _forget_group(self, group_id: int) -> None:
        self._topics_of_groups.pop(group_id, None)
        for tenant in self._tenants.values():
            tenant.groups.discard(group_id)

    def compare(self, state: State) -> None:
        known = state.tenants.by_name
        demand(known.keys() == self._tenants.keys(), "tenants", f"there are {[*known]}, not {[*self._tenants]}")
        for name, model in self._tenants.items():
            tenant = known[name]
            demand(tenant.quotas == model.quotas, "tenants", f"{name} has the quotas {tenant.quotas}")
            counts = (tenant.topics, tenant.streams, tenant.groups)
            wanted = (len(model.topics), len(model.streams), len(model.groups))
            demand(counts == wanted, "tenants", f"{name} has {wanted} topics, streams and groups, and counts {counts}")


def within(count: int, quota: int, what: str) -> None:
    demand(not quota or count <= quota, "tenants", f"{count} {what} are more than the quota of {quota}")

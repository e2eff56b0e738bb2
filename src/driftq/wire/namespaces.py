"""Names of tenants: how the namespace of a tenant is a part of a name.

    name of a tenant    name in the broker      what it is
    orders              acme~orders             a topic of the tenant acme
    dlq.orders          dlq.acme~orders         its dead letters
    runs/42             acme~runs/42            a stream
    orders              orders                  a topic of no tenant

A caller with a tenant sees the left column, an operator the right one. Groups, partitions, owners and keys belong to a
topic, so they need no namespace of their own. Pure text; which tenants exist is known elsewhere.
"""

from __future__ import annotations

import re
from typing import Final

SEPARATOR: Final = "~"
DEAD_PREFIX: Final = "dlq."
TENANT_LENGTH_MAX: Final = 40

_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)


def is_tenant_name(text: str) -> bool:
    return _TENANT.fullmatch(text) is not None


def tenant_of(name: str) -> str:
    """The tenant that a name of the broker belongs to; "" if it belongs to none."""
    tenant, separator, _ = name.removeprefix(DEAD_PREFIX).partition(SEPARATOR)
    return tenant if separator and is_tenant_name(tenant) else ""


def own_name(name: str) -> str:
    """A name of the broker as its tenant sees it."""
    tenant = tenant_of(name)
    return Namespace(tenant).own(name) if tenant else name


def beside(place: str, name: str) -> str:
    """The broker's name of what the tenant of `place` calls `name`."""
    tenant = tenant_of(place)
    return Namespace(tenant).topic(name) if tenant and name else name


class Namespace:
    """The names of one tenant."""

    __slots__ = ("_dead_prefix", "prefix", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.prefix = tenant + SEPARATOR if tenant else ""  # without a tenant every name stays as it is
        self._dead_prefix = DEAD_PREFIX + self.prefix

    def topic(self, name: str) -> str:
        """The broker's name of a topic; an empty name stays empty."""
        if name.startswith(DEAD_PREFIX):
            return self._dead_prefix + name[len(DEAD_PREFIX) :]
        return self.prefix + name if name else name

    def name(self, name: str) -> str:
        """The broker's name of a stream, a subscription, a writer or a handle; an empty name stays empty."""
        return self.prefix + name if name else name

    def own(self, name: str) -> str:
        """The tenant's name of something inside. What is outside keeps its name."""
        if name.startswith(self.prefix):
            return name[len(self.prefix) :]
        if name.startswith(self._dead_prefix):
            return DEAD_PREFIX + name[len(self._dead_prefix) :]
        return name

    def holds(self, name: str) -> bool:
        """Whether a name of the broker is inside."""
        return name.startswith((self.prefix, self._dead_prefix))

    def text(self, message: str) -> str:
        """A message of the broker in the tenant's names."""
        return message.replace(self.prefix, "")

"""Turns commands into the broker's names and replies into a tenant's names, from the fields of their types.

A field is known by its name: `topic` is always a topic, `path` always a stream. What a field holds is looked up once
for each type. A text whose field is in no table is an error: a new command says here what its texts are, and
`tests/unit/server/tenants` looks at all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import fields, replace

from driftq.core.model.replies import Rejected
from driftq.core.model.tenant_facts import TenantQuotas
from driftq.server.access.identity import other_tenant
from driftq.wire.audit import AuditRecord

if TYPE_CHECKING:
    from driftq.wire.namespaces import Namespace

S = TypeVar("S", bound=Struct)
Convert = Callable[[Any], Any]

TOPICS = frozenset({"topic", "target_topic"})
NAMES = frozenset(
    {
        "path", "source", "subscription", "paths", "wake_stream", "pattern", "streams", "writer", "handle", "handles",
        "batch_id", "parent_id", "schedule",
    }
)  # fmt: skip
# Names only in some types, and other values in the rest.
_NAMES_OF_TYPE = frozenset({("ListStreams", "after"), ("CommitOutcome", "key")})
_POSITIONS = frozenset({("AckWake", "acks"), ("CommitOffsets", "offsets")})  # tuples that begin with a name
_MESSAGES = frozenset({("Refusal", "message")})
# Texts that are not names: they belong to a topic, a stream or a message.
PLAIN = frozenset(
    {
        "catch_up", "content", "content_type", "created_by", "cron", "description", "error", "expires_text", "fair",
        "grants", "group", "job", "job_id", "keep_unread", "key", "kind", "label", "name", "origin", "owner",
        "producer", "reason", "request_id", "start", "state", "stream_seq", "task", "timezone", "to", "token",
        "token_id", "traceback", "url", "wake_id", "worker",
    }
)  # fmt: skip


class UnknownField(TypeError):
    """A text field of a command or a reply that no table says anything about."""


class TenantNames:
    """The names of one tenant, in commands and replies."""

    def __init__(self, space: Namespace) -> None:
        self.space = space
        self._inward: dict[type, list[tuple[str, Convert]]] = {}
        self._outward: dict[type, list[tuple[str, Convert]]] = {}

    def inward(self, value: S) -> S:
        """A command, or a part of one, with the broker's names. Raises `AccessRefused` for the id of another tenant."""
        plan = self._inward.get(type(value))
        if plan is None:
            plan = self._inward[type(value)] = self._plan(type(value), self.inward, self._in)
        return _changed(value, plan)

    def outward(self, value: S) -> S:
        """A reply with the tenant's names."""
        if isinstance(value, Rejected):
            details = {name: self._detail(detail) for name, detail in value.details.items()}
            return replace(value, message=self.space.text(value.message), details=details)
        plan = self._outward.get(type(value))
        if plan is None:
            plan = self._outward[type(value)] = self._plan(type(value), self.outward, self._out)
        return _changed(value, plan)

    def _plan(
        self, kind: type, nested: Convert, convert: Callable[[str, str], Convert | None]
    ) -> list[tuple[str, Convert]]:
        plan: list[tuple[str, Convert]] = []
        for field in fields(kind):
            change = convert(kind.__name__, field.name)
            if change is None:
                if has_struct(field.type):
                    change = _each(nested)
                elif has_text(field.type) and field.name not in PLAIN:
                    raise UnknownField(f"{kind.__name__}.{field.name}: name or plain text? See server.tenants.names")
            if change is not None:
                plan.append((field.name, change))
        return plan

    def _in(self, kind: str, field: str) -> Convert | None:
        space = self.space
        if field in TOPICS:
            return space.topic
        if field in NAMES or (kind, field) in _NAMES_OF_TYPE:
            return _each_text(space.name)
        if field == "prefix":
            return lambda prefix: space.prefix + prefix
        if (kind, field) in _POSITIONS:
            name = space.topic if kind == "CommitOffsets" else space.name
            return lambda positions: tuple((name(position[0]), *position[1:]) for position in positions)
        if field == "tenant":
            return self._checked_tenant if kind == "RecordSchedule" else self._own_tenant
        return None

    def _out(self, kind: str, field: str) -> Convert | None:
        if field in TOPICS or field in NAMES:
            return _each_text(self.space.own, self.outward)
        return self.space.text if (kind, field) in _MESSAGES else None

    def _own_tenant(self, tenant: str) -> str:
        return self._checked_tenant(tenant) or self.space.tenant

    def _checked_tenant(self, tenant: str) -> str:
        """A record may have no tenant: a packed batch is stored as it came."""
        if tenant and tenant != self.space.tenant:
            raise other_tenant(self.space.tenant)
        return tenant

    def _detail(self, detail: Any) -> Any:
        if isinstance(detail, str):
            return self.space.text(detail)
        if isinstance(detail, list | tuple):
            return [self._detail(part) for part in detail]
        return detail


def _changed(value: S, plan: list[tuple[str, Convert]]) -> S:
    changes: dict[str, Any] = {}
    for field, convert in plan:
        before = getattr(value, field)
        if before or field in ("prefix", "tenant"):
            after = convert(before)
        else:
            continue
        if after is not before:
            changes[field] = after
    return replace(value, **changes) if changes else value


def _each(convert: Convert) -> Convert:
    """Convert a struct, or each of a tuple of them."""

    def each(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(convert(part) if isinstance(part, Struct) else part for part in value)
        return convert(value) if isinstance(value, Struct) else value

    return each


def _each_text(convert: Convert, nested: Convert | None = None) -> Convert:
    """Convert a text or each of a tuple of texts; structs in such a field with `nested`."""

    def each(value: Any) -> Any:
        if isinstance(value, str):
            return convert(value)
        if isinstance(value, tuple):
            return tuple(each(part) for part in value)
        return nested(value) if nested is not None and isinstance(value, Struct) else value

    return each


def has_struct(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return annotation not in (TenantQuotas, AuditRecord)  # without names of the broker
    return any(has_struct(part) for part in get_args(annotation))


def has_text(annotation: Any) -> bool:
    return annotation is str or any(has_text(part) for part in get_args(annotation))

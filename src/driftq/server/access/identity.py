"""Who calls, and whether they may: the one place where rights are decided.

    route table: RouteSpec.right      which verb a route needs, and which part of a request names the target
          │
          ▼
    require_topic, require_stream     called by the app or by a handler, with the verb and the name
          │
          ▼
    decide(identity, verb, name) ──> ALLOWED | DENIED (403)

Names of another tenant never get here: the app of a tenant has only its own (`server/tenants`).

A request has an identity if the server authenticates its callers and the route is not public. Without one everything
is allowed: the listener is then on loopback. A refusal is raised as `AccessRefused` before anything is submitted, so a
request that is refused for one of its parts changes nothing.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from driftq.server.http import BadRequest
from driftq.wire import grants as g
from driftq.wire.audit import AUDIT_TOPIC
from driftq.wire.errors import CODES, Code
from driftq.wire.message import Envelope
from driftq.wire.namespaces import DEAD_PREFIX
from driftq.wire.produce import ProduceItem

if TYPE_CHECKING:
    from driftq.server.access.trail import AuditTrail
    from driftq.server.http import Request

Item = TypeVar("Item", bound=ProduceItem)
VERDICTS_MAX = 256  # that an identity remembers
_TOPIC_VERBS = (g.PRODUCE, g.READ, g.MANAGE)
_STREAM_VERBS = (g.APPEND, g.READ, g.MANAGE)


class Verdict(Enum):
    """What becomes of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"  # the caller has no grant for it


class Proof(Enum):
    """How a caller proved who it is."""

    TOKEN = "token"
    JWT = "jwt"  # of a foreign issuer
    CERTIFICATE = "certificate"


class Unverified(Exception):
    """A credential that is not accepted; the message is for its sender."""


class Identity:
    """A caller that has proved who it is. Several connections and heads may share one.

    It is valid until `until_s`, a time of the machine's clock. When its token is revoked or narrowed, that becomes 0,
    and whatever still refers to it has to authenticate again.
    """

    __slots__ = (
        "__weakref__", "_verdicts", "audit", "derived", "ends_ms", "grants", "name", "parent", "pin", "proof", "tenant",
        "token_id", "until_s", "used_s",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        grants: tuple[g.Grant, ...],
        *,
        token_id: str = "",
        tenant: str = "",
        until_s: float = math.inf,
        parent: Identity | None = None,
        proof: Proof = Proof.TOKEN,
        pin: str = "",
        ends_ms: int = 0,
        derived: bool = False,
    ) -> None:
        self.name = name  # for people: in the audit and in error messages
        self.grants = grants
        self.token_id = token_id  # the access token that it comes from; "" if the identity is foreign
        self.tenant = tenant  # "": an operator, who sees the names of all tenants
        self.until_s = until_s
        self.parent = parent  # the holder that this one was derived from: it must have the same right, now
        self.proof = proof
        self.pin = pin  # which secret of the access token proved it
        self.ends_ms = ends_ms  # when its credential expires, in the broker's time; 0: never
        self.derived = derived  # by a short-lived token
        self.used_s = 0.0  # the last request
        self.audit: AuditTrail | None = None  # where refusals of this caller are recorded
        self._verdicts: dict[str, dict[str, Verdict]] = {verb: {} for verb in g.VERBS}

    def verdict(self, verb: str, name: str) -> Verdict:
        known = self._verdicts[verb]
        verdict = known.get(name)
        if verdict is None:
            if len(known) >= VERDICTS_MAX:
                known.clear()
            verdict = known[name] = self._decide(verb, name)
        return verdict

    def _decide(self, verb: str, name: str) -> Verdict:
        if not g.allows(self.grants, verb, name):
            return Verdict.DENIED
        if is_audit(verb, name) and not g.allows(self.grants, g.OBSERVE, ""):
            return Verdict.DENIED
        return Verdict.ALLOWED if self.parent is None else self.parent.verdict(verb, name)

    @property
    def is_of_connection(self) -> bool:
        """It was proved by a certificate and not by what is in the head of a request."""
        return self.proof is Proof.CERTIFICATE and not self.derived

    def deny(self, request: Request, verb: str, name: str) -> AccessRefused:
        """The refusal of a call that this caller has no grant for, noted for the audit."""
        if is_audit(verb, name) and g.allows(self.grants, verb, name):
            verb, name = g.OBSERVE, ""
        if self.audit is not None:
            self.audit.denied(request, self, f"no grant {g.Grant(verb, g.pattern_of(name))}", g.pattern_of(name))
        return denied(verb, name)

    def revoke(self) -> None:
        """From now on it is not valid."""
        self.until_s = 0.0


def decide(identity: Identity | None, verb: str, name: str) -> Verdict:
    """Whether a caller may do something to a name. The name for `consume` is `topic/group`."""
    return Verdict.ALLOWED if identity is None else identity.verdict(verb, name)


def is_audit(verb: str, name: str) -> bool:
    """Whether a name is that of the audit, or of its dead letters: it takes `observe` besides a grant for the name, so
    that `read:*` does not show who did what."""
    topic = name.partition("/")[0] if verb == g.CONSUME else name
    return topic.removeprefix(DEAD_PREFIX) == AUDIT_TOPIC


class AccessRefused(BadRequest):
    """The caller may not do this."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message, CODES[code].status)
        self.code = code


def require(request: Request, verb: str) -> None:
    """For what has no name: `observe` and `admin`."""
    if request.identity is not None and request.identity.verdict(verb, "") is not Verdict.ALLOWED:
        raise request.identity.deny(request, verb, "")


def require_topic(request: Request, verb: str, topic: str) -> None:
    if request.identity is not None:
        _check(request, request.identity, verb, topic)


def require_target(request: Request, item: ProduceItem) -> None:
    """The topic that a message really goes to, after routing, if it is not the requested one."""
    envelope = item.envelope
    if request.identity is not None and envelope is not None and envelope.target_topic:
        require_topic(request, g.PRODUCE, envelope.target_topic)


def require_group(request: Request, topic: str, group: str) -> None:
    """Consume from a topic as a group."""
    if request.identity is not None:
        _check(request, request.identity, g.CONSUME, f"{topic}/{group}")


def require_stream(request: Request, verb: str, path: str) -> None:
    if request.identity is not None:
        _check(request, request.identity, verb, path)


def require_subscription(request: Request, verb: str, subscription: str, name: str = "") -> None:
    if request.identity is not None:
        _check(request, request.identity, verb, name or subscription)


def require_pattern(request: Request, verb: str, pattern: str) -> None:
    """All streams that fit a pattern, those that do not exist yet included."""
    if request.identity is not None:
        _check(request, request.identity, verb, g.any_name(pattern))


def require_any_topic(request: Request, topic: str) -> None:
    """Its description, which every caller with some right on it may see."""
    if request.identity is not None and not sees_topic(request.identity, topic):
        _check(request, request.identity, g.READ, topic)


def require_any_group(request: Request, topic: str, group: str) -> None:
    if request.identity is not None and not sees_group(request.identity, topic, group):
        _check(request, request.identity, g.CONSUME, f"{topic}/{group}")


def require_any_stream(request: Request, path: str) -> None:
    if request.identity is not None and not sees_stream(request.identity, path):
        _check(request, request.identity, g.READ, path)


def sees_topic(identity: Identity | None, topic: str) -> bool:
    """Whether a topic is in the caller's lists: some grant covers it."""
    if identity is None or any(identity.verdict(verb, topic) is Verdict.ALLOWED for verb in _TOPIC_VERBS):
        return True
    consumed = (grant.pattern.partition("/") for grant in identity.grants if grant.verb == g.CONSUME)
    groups = [group for pattern, _, group in consumed if g.matches(pattern, topic)]
    return any(identity.verdict(g.CONSUME, f"{topic}/{group}") is Verdict.ALLOWED for group in groups)


def sees_group(identity: Identity | None, topic: str, group: str) -> bool:
    """Whether a group is in the caller's lists."""
    if identity is None or identity.verdict(g.CONSUME, f"{topic}/{group}") is Verdict.ALLOWED:
        return True
    return any(identity.verdict(verb, topic) is Verdict.ALLOWED for verb in (g.READ, g.MANAGE))


def sees_stream(identity: Identity | None, path: str) -> bool:
    return identity is None or any(identity.verdict(verb, path) is Verdict.ALLOWED for verb in _STREAM_VERBS)


def stream_prefixes(identity: Identity, prefix: str) -> list[str]:
    """What the streams below a prefix that the caller may see begin with: in order, and none is a part of another."""
    patterns = (grant.pattern for grant in identity.grants if grant.verb in (*_STREAM_VERBS, g.ADMIN))
    prefixes: list[str] = []
    for literal in sorted(set(map(g.literal_prefix, patterns))):
        begin = max(literal, prefix)
        if begin.startswith(min(literal, prefix)) and not (prefixes and begin.startswith(prefixes[-1])):
            prefixes.append(begin)
    return prefixes


def _check(request: Request, identity: Identity, verb: str, name: str) -> None:
    if identity.verdict(verb, name) is not Verdict.ALLOWED:
        raise identity.deny(request, verb, name)


def other_tenant(tenant: str) -> AccessRefused:
    """A message, key or effect that names another tenant than its sender's."""
    return AccessRefused(
        Code.PERMISSION_DENIED, f"tenant_id is set from the credential, which belongs to {tenant}: leave it out"
    )


def owned(item: Item, tenant: str) -> Item:
    """The message with its sender's tenant in its envelope. Raises `AccessRefused` if another one is there."""
    envelope = item.envelope
    if envelope is None:
        return replace(item, envelope=Envelope(tenant_id=tenant))
    if envelope.tenant_id and envelope.tenant_id != tenant:
        raise other_tenant(tenant)
    return item if envelope.tenant_id else replace(item, envelope=replace(envelope, tenant_id=tenant))


def denied(verb: str, name: str) -> AccessRefused:
    """The refusal that names the grant that is missing."""
    grant = g.Grant(verb, g.pattern_of(name))
    return AccessRefused(
        Code.PERMISSION_DENIED,
        f"this credential has no grant {grant}. Use one that has it, or ask an administrator: "
        f"driftq tokens create --grant {grant}",
    )


# --- the rights of routes ---


class Right(NamedTuple):
    """What a route needs. `target` says where the name is that the verb is checked on: the name of a path parameter,
    `BODY` if the handler checks it, or "" if the verb has no name. `operators`: it concerns the whole server, so
    a credential of a tenant cannot do it, whatever its grants."""

    verb: str
    target: str = ""
    operators: bool = False


BODY: Final = "(body)"
PUBLIC: Final = Right("public")  # no credential is looked at
ANY: Final = Right("any")  # every valid credential
OWN: Final = Right("own")  # the handler checks a credential of its own, such as the token of a wake
EVERY_VERB: Final = (*g.VERBS, PUBLIC.verb, ANY.verb, OWN.verb)

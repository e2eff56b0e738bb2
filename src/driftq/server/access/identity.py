"""Who calls, and whether they may: the one place where rights are decided.

    route table: RouteSpec.right      which verb a route needs, and which part of a request names the target
          │
          ▼
    require_topic, require_stream     called by the app or by a handler, with the verb and the name
          │
          ▼
    decide(identity, verb, name) ──> ALLOWED | DENIED (403) | HIDDEN (404)

A request has an identity if the server authenticates its callers and the route is not public. Without one everything
is allowed: the listener is then on loopback. A refusal is raised as `AccessRefused` before anything is submitted, so a
request that is refused for one of its parts changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from driftq.core.transitions.lookups import no_such_stream, no_such_subscription, no_such_topic
from driftq.server.http import BadRequest
from driftq.wire import grants as g
from driftq.wire.errors import CODES, Code

if TYPE_CHECKING:
    from driftq.core.model.replies import Rejected
    from driftq.server.http import Request
    from driftq.wire.produce import ProduceItem

VERDICTS_MAX = 256  # that an identity remembers
_TOPIC_VERBS = (g.PRODUCE, g.READ, g.MANAGE)
_STREAM_VERBS = (g.APPEND, g.READ, g.MANAGE)


class Verdict(Enum):
    """What becomes of a call."""

    ALLOWED = "allowed"
    DENIED = "denied"  # the caller has no grant for it
    HIDDEN = "hidden"  # it belongs to another tenant, whose names this caller cannot learn


class Identity:
    """A caller that has proved who it is. Several connections and heads may share one.

    It is valid until `until_s`, a time of the machine's clock. When its token is revoked or narrowed, that becomes 0,
    and whatever still refers to it has to authenticate again.
    """

    __slots__ = ("__weakref__", "_verdicts", "grants", "name", "parent", "tenant", "token_id", "until_s", "used_s")

    def __init__(
        self,
        name: str,
        grants: tuple[g.Grant, ...],
        *,
        token_id: str = "",
        tenant: str = "",
        until_s: float = math.inf,
        parent: Identity | None = None,
    ) -> None:
        self.name = name  # for people: in the audit and in error messages
        self.grants = grants
        self.token_id = token_id  # the access token that it comes from; "" if the identity is foreign
        self.tenant = tenant  # "": an operator, who sees the names of all tenants
        self.until_s = until_s
        self.parent = parent  # the holder that this one was derived from: it must have the same right, now
        self.used_s = 0.0  # the last request
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
        return Verdict.ALLOWED if self.parent is None else self.parent.verdict(verb, name)

    def revoke(self) -> None:
        """From now on it is not valid."""
        self.until_s = 0.0


def decide(identity: Identity | None, verb: str, name: str) -> Verdict:
    """Whether a caller may do something to a name. The name for `consume` is `topic/group`."""
    return Verdict.ALLOWED if identity is None else identity.verdict(verb, name)


class AccessRefused(BadRequest):
    """The caller may not do this. `code` is PERMISSION_DENIED, or NOT_FOUND for names of other tenants."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message, CODES[code].status)
        self.code = code


def require(request: Request, verb: str) -> None:
    """For what has no name: `observe` and `admin`."""
    if request.identity is not None and request.identity.verdict(verb, "") is not Verdict.ALLOWED:
        raise _denied(verb, "")


def require_topic(request: Request, verb: str, topic: str) -> None:
    if request.identity is not None:
        _check(request.identity, verb, topic, no_such_topic, topic)


def require_target(request: Request, item: ProduceItem) -> None:
    """The topic that a message really goes to, after routing, if it is not the requested one."""
    envelope = item.envelope
    if request.identity is not None and envelope is not None and envelope.target_topic:
        require_topic(request, g.PRODUCE, envelope.target_topic)


def require_group(request: Request, topic: str, group: str) -> None:
    """Consume from a topic as a group."""
    if request.identity is not None:
        _check(request.identity, g.CONSUME, f"{topic}/{group}", no_such_topic, topic)


def require_stream(request: Request, verb: str, path: str) -> None:
    if request.identity is not None:
        _check(request.identity, verb, path, no_such_stream, path)


def require_subscription(request: Request, verb: str, subscription: str, name: str = "") -> None:
    if request.identity is not None:
        _check(request.identity, verb, name or subscription, no_such_subscription, subscription)


def require_pattern(request: Request, verb: str, pattern: str) -> None:
    """All streams that fit a pattern, those that do not exist yet included."""
    if request.identity is not None:
        _check(request.identity, verb, g.any_name(pattern), no_such_stream, pattern)


def require_any_topic(request: Request, topic: str) -> None:
    """Its description, which every caller with some right on it may see."""
    if request.identity is not None and not sees_topic(request.identity, topic):
        _check(request.identity, g.READ, topic, no_such_topic, topic)


def require_any_group(request: Request, topic: str, group: str) -> None:
    if request.identity is not None and not sees_group(request.identity, topic, group):
        _check(request.identity, g.CONSUME, f"{topic}/{group}", no_such_topic, topic)


def require_any_stream(request: Request, path: str) -> None:
    if request.identity is not None and not sees_stream(request.identity, path):
        _check(request.identity, g.READ, path, no_such_stream, path)


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


def _check(identity: Identity, verb: str, name: str, missing: Callable[[str], Rejected], shown: str) -> None:
    verdict = identity.verdict(verb, name)
    if verdict is Verdict.ALLOWED:
        return
    if verdict is Verdict.HIDDEN:
        raise AccessRefused(Code.NOT_FOUND, missing(shown).message)  # the words of a name that does not exist
    raise _denied(verb, name)


def _denied(verb: str, name: str) -> AccessRefused:
    grant = g.Grant(verb, g.pattern_of(name))
    return AccessRefused(
        Code.PERMISSION_DENIED,
        f"this credential has no grant {grant}. Use one that has it, or ask an administrator: "
        f"driftq tokens create --grant {grant}",
    )


# --- the rights of routes ---


class Right(NamedTuple):
    """What a route needs. `target` says where the name is that the verb is checked on: the name of a path parameter,
    `BODY` if the handler checks it, or "" if the verb has no name."""

    verb: str
    target: str = ""


BODY: Final = "(body)"
PUBLIC: Final = Right("public")  # no credential is looked at
ANY: Final = Right("any")  # every valid credential
OWN: Final = Right("own")  # the handler checks a credential of its own, such as the token of a wake
EVERY_VERB: Final = (*g.VERBS, PUBLIC.verb, ANY.verb, OWN.verb)

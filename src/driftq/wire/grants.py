"""Grants: what a credential may do. A grant is a verb and a pattern of names, such as `produce:orders.*`.

    verb      names                   allows
    produce   topics                  send messages and jobs, cancel jobs, stage and publish, schedules
    consume   topic/group             claim, settle, and record effects
    read      topics and streams      read records, messages, states, dead letters, jobs and streams
    append    streams                 create a stream, append to it, close it
    manage    topics and streams      create, change, trim and delete; move, pause and delete groups; subscriptions
    observe                           metrics and the clock
    admin                             everything, also tokens and tenants

`*` stands for any characters, also none. A consume grant without a group covers every group. A name is either allowed
by a grant or refused: nothing is allowed by default. Pure text; who holds which grants is known elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
READ: Final = "read"
APPEND: Final = "append"
MANAGE: Final = "manage"
OBSERVE: Final = "observe"
ADMIN: Final = "admin"

NAMED_VERBS = (PRODUCE, CONSUME, READ, APPEND, MANAGE)
UNNAMED_VERBS = (OBSERVE, ADMIN)
VERBS = (*NAMED_VERBS, *UNNAMED_VERBS)
GRANTS_MAX = 64  # of one token
GRANT_LENGTH_MAX = 512
_WILDCARDS_MAX = 8
_ANY = "\0"  # stands for `*` when a pattern is matched by another; no name contains it


class Grant(NamedTuple):
    """A verb and a pattern. The pattern of a consume grant is `topic/group`."""

    verb: str
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.verb}:{self.pattern}" if self.pattern else self.verb


def parse_grant(text: str) -> Grant:
    """Raises `ValueError` with the reason."""
    verb, colon, pattern = text.partition(":")
    if verb not in VERBS:
        raise ValueError(f"{text!r} is not a grant: it begins with one of {', '.join(VERBS)}")
    if verb not in NAMED_VERBS:
        if colon:
            raise ValueError(f"{text!r} is not a grant: {verb} has no names")
        return Grant(verb)
    if not pattern:
        raise ValueError(f"{text!r} is not a grant: {verb} needs names, like {verb}:orders or {verb}:*")
    if len(text) > GRANT_LENGTH_MAX or pattern.count("*") > _WILDCARDS_MAX:
        raise ValueError(f"a grant has at most {GRANT_LENGTH_MAX} characters and {_WILDCARDS_MAX} wildcards")
    if not pattern.isprintable() or " " in pattern:
        raise ValueError(f"{text!r} is not a grant: a name has no blanks and no control characters")
    if verb == CONSUME and "/" not in pattern:
        pattern += "/*"
    return Grant(verb, pattern)


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Each grant once, in order. Raises `ValueError`."""
    grants = tuple(dict.fromkeys(map(parse_grant, texts)))
    if not 1 <= len(grants) <= GRANTS_MAX:
        raise ValueError(f"a token has 1 to {GRANTS_MAX} grants")
    return grants


def matches(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern. Takes time in proportion to the name, whatever the pattern is."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == name
    *middle, last = rest
    end = len(name) - len(last)
    at = len(first)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        position = name.find(part, at, end)
        if position < 0:
            return False
        at = position + len(part)
    return True


def allows(grants: Iterable[Grant], verb: str, name: str) -> bool:
    """Whether one of the grants covers a verb on a name. The name for `consume` is `topic/group`."""
    return any(grant.verb == ADMIN or (grant.verb == verb and matches(grant.pattern, name)) for grant in grants)


def covers(grants: Iterable[Grant], narrower: Iterable[Grant]) -> bool:
    """Whether everything that `narrower` allows is allowed by `grants`, too. Two grants that only together cover a
    third do not count."""
    wide = tuple(grants)
    return all(allows(wide, grant.verb, any_name(grant.pattern)) for grant in narrower)


def any_name(pattern: str) -> str:
    """A name that stands for all that fit a pattern: a grant that allows it allows each of them."""
    return pattern.replace("*", _ANY)


def pattern_of(name: str) -> str:
    """The pattern that `any_name` was given; other names are their own pattern."""
    return name.replace(_ANY, "*")


def literal_prefix(pattern: str) -> str:
    """What all names that fit a pattern begin with."""
    return pattern.partition("*")[0]

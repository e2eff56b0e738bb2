"""Where to look for messages whose effect is committed, so that a claim need not look at every message.

A message is skipped at dispatch if the effect (tenant, topic, group, idempotency key of its envelope) is COMMITTED.
Its record decides (`rules.skip`); what is here are hints that make the look cheap:

- how many effects of a group are committed: a group without any costs nothing;
- the places of their messages: named at `begin`, or known from the idempotency key under which they were produced.
"""

from __future__ import annotations

from driftq.core.ranges import RangeSet

_SEPARATOR = "\x1f"
_NONE = RangeSet()


class CommittedKeys:
    """Hints, derived from the committed effects; none of them is stored."""

    __slots__ = ("_counts", "_places")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}  # (topic, group): its committed effects
        self._places: dict[tuple[int, int], RangeSet] = {}  # (group, log): offsets of their messages

    def has_any(self, topic: str, group: str) -> bool:
        return (topic, group) in self._counts

    def places(self, group_id: int, log_id: int) -> RangeSet:
        return self._places.get((group_id, log_id), _NONE)

    def add(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        key = _readers(scope)
        self._counts[key] = self._counts.get(key, 0) + 1
        if offset >= 0:
            self._places.setdefault((group_id, log_id), RangeSet()).add(offset, offset + 1)

    def discard(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        key = _readers(scope)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        places = self._places.get((group_id, log_id))
        if places is not None:
            places.discard(offset, offset + 1)
            if not places:
                del self._places[group_id, log_id]


def _readers(scope: str) -> tuple[str, str]:
    _, topic, group, _ = scope.split(_SEPARATOR, 3)
    return topic, group


def produced_as(scope: str) -> str:
    """The scope of a produce in the effect's own topic, for an effect's scope."""
    tenant, topic, _, key = scope.split(_SEPARATOR, 3)
    return _SEPARATOR.join((tenant, topic, key))


def done_as(produced: str, topic: str, group: str) -> str:
    """The scope of a group's effect, for the scope of a produce that ended in a topic."""
    tenant, _, key = produced.split(_SEPARATOR, 2)
    return _SEPARATOR.join((tenant, topic, group, key))

"""Remembers effect keys until they expire; keys of produces are in `core.produced_keys`.

*Effect* keys say that somebody works on, finished or failed an effect: scope (tenant, topic, group, key). Expiry is
lazy: an entry past its time counts as absent, and a few old ones are dropped with every new one, so the cost of a call
does not depend on how many keys there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum

from driftq.core.commands import EffectKey
from driftq.core.committed_keys import CommittedKeys
from driftq.core.facts import KeyBegun, KeyCommitted, KeyFailed
from driftq.core.images import EffectPlaced

DROPPED_AT_ONCE = 2
_SEPARATOR = "\x1f"


def effect_scope(key: EffectKey) -> str:
    return _SEPARATOR.join((key.tenant, key.topic, key.group, key.key))


class Status(IntEnum):
    PENDING = 0
    COMMITTED = 1
    FAILED = 2


class Effect:
    """One effect key. `until_ms` ends the lease while pending, and the memory afterwards."""

    __slots__ = (
        "at_ms", "error", "fence", "group_id", "log_id", "offset", "owner", "result", "status", "token", "until_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = Status.PENDING
        self.fence = 0
        self.owner = ""
        self.token = ""
        self.at_ms = 0
        self.until_ms = 0
        self.group_id = 0
        self.log_id = 0
        self.offset = -1
        self.result = b""
        self.error = ""


class Effects:
    """Effect keys."""

    __slots__ = ("_effects", "_rounds", "committed")

    def __init__(self) -> None:
        self.committed = CommittedKeys()
        self._effects: dict[str, Effect] = {}
        self._rounds: deque[str] = deque()  # each key once; the front is looked at next

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[Effect]:
        return iter(self._effects.values())

    def find(self, scope: str) -> Effect | None:
        return self._effects.get(scope)

    def move(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        """The effect belongs to this message."""
        effect = self._changed(scope)
        effect.group_id, effect.log_id, effect.offset = group_id, log_id, offset
        self._note(scope, effect)

    def begin(self, fact: KeyBegun) -> None:
        effect = self._changed(fact.key)
        effect.status = Status.PENDING
        effect.fence, effect.owner, effect.token = fact.fence, fact.owner, fact.token
        effect.at_ms, effect.until_ms = fact.at_ms, fact.until_ms
        effect.group_id, effect.log_id, effect.offset = fact.group_id, fact.log_id, fact.offset
        effect.result, effect.error = b"", ""

    def commit(self, fact: KeyCommitted) -> None:
        effect = self._changed(fact.key)
        effect.status, effect.fence = Status.COMMITTED, fact.fence
        effect.at_ms, effect.until_ms = fact.at_ms, fact.expires_ms
        effect.result, effect.error = fact.result, ""
        self._note(fact.key, effect)

    def fail(self, fact: KeyFailed) -> None:
        effect = self._changed(fact.key)
        effect.status, effect.fence = Status.FAILED, fact.fence
        effect.at_ms, effect.until_ms = fact.at_ms, fact.expires_ms
        effect.error = fact.error

    def _changed(self, scope: str) -> Effect:
        """The effect, to be changed: whatever it was committed as is not noted any more."""
        effect = self._effects.get(scope)
        if effect is None:
            effect = self._effects[scope] = Effect()
            self._rounds.append(scope)
        elif effect.status is Status.COMMITTED:
            self.committed.discard(scope, effect.group_id, effect.log_id, effect.offset)
        return effect

    def _note(self, scope: str, effect: Effect) -> None:
        if effect.status is Status.COMMITTED:
            self.committed.add(scope, effect.group_id, effect.log_id, effect.offset)

    def forget_some(self, is_over: Callable[[Effect], bool]) -> None:
        """Look at a few keys and drop those that are over; the others come round again."""
        for _ in range(min(DROPPED_AT_ONCE, len(self._rounds))):
            scope = self._rounds.popleft()
            if is_over(self._effects[scope]):
                self._changed(scope)
                del self._effects[scope]
            else:
                self._rounds.append(scope)

    def images(self) -> Iterator[EffectPlaced]:
        """In the order in which they are looked at, and with those that are over: a holder whose lease ran out may
        still commit, and a state folded from a snapshot must forget the same keys at the same time."""
        for scope in self._rounds:
            effect = self._effects[scope]
            yield EffectPlaced(
                scope, effect.status, effect.fence, effect.owner, effect.at_ms, effect.until_ms, effect.group_id,
                effect.log_id, effect.offset, effect.result, effect.error, effect.token,
            )  # fmt: skip

    def place(self, image: EffectPlaced) -> None:
        effect = self._changed(image.key)
        effect.status = Status(image.status)
        effect.fence, effect.owner, effect.token = image.fence, image.owner, image.token
        effect.at_ms, effect.until_ms = image.at_ms, image.until_ms
        effect.group_id, effect.log_id, effect.offset = image.group_id, image.log_id, image.offset
        effect.result, effect.error = image.result, image.error
        self._note(image.key, effect)

"""Effect keys, which make an effect of a consumer happen once. Keys of produces are in `core.state.idempotency_keys`.

    EffectTable       by scope (tenant, topic, group, key): pending under a fence, committed with a result, or failed
    CommittedKeys     which messages have a committed effect, so that a claim need not read every record
    EffectMessages    finds the message of an effect that named none: the one that was produced under the same key

Expiry is lazy: an expired entry counts as absent. Each new entry drops a few old ones, and sweeps drop the rest some
thousands at a time. So the cost of a call does not depend on how many keys there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

from driftq.core.model.ranges import RangeSet
from driftq.core.model.snapshot_facts import EffectState

if TYPE_CHECKING:
    from driftq.core.model.commands import EffectKey
    from driftq.core.model.effect_facts import KeyBegun, KeyCommitted, KeyFailed
    from driftq.core.model.facts import Appended
    from driftq.core.state.groups import Group
    from driftq.core.state.idempotency_keys import ProducedKeyTable
    from driftq.core.state.logs import Log

PENDING_KEPT_MS = 600_000  # a pending key stays this long after its lease, unless newer keys push it out
CHECKED_PER_BEGIN = 2  # old keys that are checked for expiry with each new one
_SEPARATOR = "\x1f"


def effect_scope(key: EffectKey) -> str:
    return _SEPARATOR.join((key.tenant, key.topic, key.group, key.key))


class EffectStatus(IntEnum):
    PENDING = 0
    COMMITTED = 1
    FAILED = 2


class EffectRecord:
    """One effect key. `until_ms` is the end of the lease while it is pending, and of its retention afterwards."""

    __slots__ = (
        "at_ms", "error", "fence", "group_id", "log_id", "offset", "owner", "result", "status", "token", "until_ms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status = EffectStatus.PENDING
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


class EffectTable:
    """Effect keys."""

    __slots__ = ("_effects", "_rounds", "committed")

    def __init__(self) -> None:
        self.committed = CommittedKeys()
        self._effects: dict[str, EffectRecord] = {}
        self._rounds: deque[str] = deque()  # every key once; the front is checked for expiry next

    def __len__(self) -> int:
        return len(self._effects)

    def __iter__(self) -> Iterator[EffectRecord]:
        return iter(self._effects.values())

    def of(self, key: EffectKey) -> EffectRecord | None:
        return self._effects.get(effect_scope(key))

    def find(self, scope: str) -> EffectRecord | None:
        return self._effects.get(scope)

    def move(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        """The effect belongs to this message."""
        effect = self._changed(scope)
        effect.group_id, effect.log_id, effect.offset = group_id, log_id, offset
        self._note(scope, effect)

    def begin(self, fact: KeyBegun) -> None:
        effect = self._changed(fact.key)
        effect.status = EffectStatus.PENDING
        effect.fence, effect.owner, effect.token = fact.fence, fact.owner, fact.token
        effect.at_ms, effect.until_ms = fact.at_ms, fact.until_ms
        effect.group_id, effect.log_id, effect.offset = fact.group_id, fact.log_id, fact.offset
        effect.result, effect.error = b"", ""

    def commit(self, fact: KeyCommitted) -> None:
        effect = self._changed(fact.key)
        effect.status, effect.fence = EffectStatus.COMMITTED, fact.fence
        effect.at_ms, effect.until_ms = fact.at_ms, fact.expires_ms
        effect.result, effect.error = fact.result, ""
        self._note(fact.key, effect)

    def fail(self, fact: KeyFailed) -> None:
        effect = self._changed(fact.key)
        effect.status, effect.fence = EffectStatus.FAILED, fact.fence
        effect.at_ms, effect.until_ms = fact.at_ms, fact.expires_ms
        effect.error = fact.error

    def _changed(self, scope: str) -> EffectRecord:
        """The effect, about to change: it is no longer listed as committed."""
        effect = self._effects.get(scope)
        if effect is None:
            effect = self._effects[scope] = EffectRecord()
            self._rounds.append(scope)
        elif effect.status is EffectStatus.COMMITTED:
            self.committed.discard(scope, effect.group_id, effect.log_id, effect.offset)
        return effect

    def _note(self, scope: str, effect: EffectRecord) -> None:
        if effect.status is EffectStatus.COMMITTED:
            self.committed.add(scope, effect.group_id, effect.log_id, effect.offset)

    def next_checked(self, count: int) -> Iterator[EffectRecord]:
        """The keys that are checked for expiry next."""
        return (self._effects[scope] for scope in islice(self._rounds, count))

    def forget_some(self, count: int, is_over: Callable[[EffectRecord], bool]) -> None:
        """Check a few keys and drop those that are expired; the others go to the end of the queue."""
        for _ in range(min(count, len(self._rounds))):
            scope = self._rounds.popleft()
            if is_over(self._effects[scope]):
                self._changed(scope)
                del self._effects[scope]
            else:
                self._rounds.append(scope)

    def snapshot(self) -> Iterator[EffectState]:
        """In the order of the queue, expired keys included: a holder whose lease ran out may still commit, and a state
        restored from a snapshot must forget the same keys at the same time."""
        for scope in self._rounds:
            effect = self._effects[scope]
            yield EffectState(
                scope, effect.status, effect.fence, effect.owner, effect.at_ms, effect.until_ms, effect.group_id,
                effect.log_id, effect.offset, effect.result, effect.error, effect.token,
            )  # fmt: skip

    def restore(self, fact: EffectState) -> None:
        effect = self._changed(fact.key)
        effect.status = EffectStatus(fact.status)
        effect.fence, effect.owner, effect.token = fact.fence, fact.owner, fact.token
        effect.at_ms, effect.until_ms = fact.at_ms, fact.until_ms
        effect.group_id, effect.log_id, effect.offset = fact.group_id, fact.log_id, fact.offset
        effect.result, effect.error = fact.result, fact.error
        self._note(fact.key, effect)


# --- which messages have a committed effect ---


_NONE = RangeSet()


class CommittedKeys:
    """An index derived from the committed effects. It is not in snapshots."""

    __slots__ = ("_counts", "_places")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}  # (topic, group): its committed effects
        self._places: dict[tuple[int, int], RangeSet] = {}  # (group, log): offsets of their messages

    def has_any(self, topic: str, group: str) -> bool:
        return (topic, group) in self._counts

    def places(self, group_id: int, log_id: int) -> RangeSet:
        return self._places.get((group_id, log_id), _NONE)

    def add(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        key = _topic_and_group(scope)
        self._counts[key] = self._counts.get(key, 0) + 1
        if offset >= 0:
            self._places.setdefault((group_id, log_id), RangeSet()).add(offset, offset + 1)

    def discard(self, scope: str, group_id: int, log_id: int, offset: int) -> None:
        key = _topic_and_group(scope)
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        places = self._places.get((group_id, log_id))
        if places is not None:
            places.discard(offset, offset + 1)
            if not places:
                del self._places[group_id, log_id]


def _topic_and_group(scope: str) -> tuple[str, str]:
    _, topic, group, _ = scope.split(_SEPARATOR, 3)
    return topic, group


def produce_scope_of(scope: str) -> str:
    """The scope of a produce in the effect's own topic, for an effect's scope."""
    tenant, topic, _, key = scope.split(_SEPARATOR, 3)
    return _SEPARATOR.join((tenant, topic, key))


def effect_scope_of(produced: str, topic: str, group: str) -> str:
    """The scope of a group's effect, for the scope of a produce that ended in a topic."""
    tenant, _, key = produced.split(_SEPARATOR, 2)
    return _SEPARATOR.join((tenant, topic, group, key))


# --- the message of an effect that named none ---


class EffectMessages:
    """Connects committed effects with the messages that were produced under their keys."""

    __slots__ = ("_effects", "_groups", "_keys", "_logs")

    def __init__(
        self, effects: EffectTable, keys: ProducedKeyTable, logs: dict[int, Log], groups: dict[int, Group]
    ) -> None:
        self._effects = effects
        self._keys = keys
        self._logs = logs
        self._groups = groups

    def commit(self, fact: KeyCommitted) -> None:
        self._effects.commit(fact)
        effect = self._effects.find(fact.key)
        if effect is None or effect.offset >= 0:
            return
        produced = self._keys.find(produce_scope_of(fact.key), fact.at_ms)
        log = self._logs.get(produced.log_id) if produced is not None else None
        if produced is not None and log is not None:
            for group_id in log.readers:
                if effect_scope_of(produce_scope_of(fact.key), log.topic, self._groups[group_id].name) == fact.key:
                    self._effects.move(fact.key, group_id, log.log_id, produced.offset)

    def produced(self, log: Log, fact: Appended, key: str) -> None:
        """A message was produced under a key whose effect may be committed already. If the effect has no message, or
        its message is settled, it belongs to this one."""
        for group_id in log.readers if len(self._effects) else ():
            group = self._groups[group_id]
            scope = effect_scope_of(key, log.topic, group.name)
            effect = self._effects.find(scope)
            if effect is None or effect.status is not EffectStatus.COMMITTED or effect.until_ms <= fact.at_ms:
                continue
            if effect.group_id == group_id:
                before = group.progress[self._logs[effect.log_id].partition]
                if not before.is_settled(effect.offset):
                    continue
            self._effects.move(scope, group_id, log.log_id, fact.first_offset)

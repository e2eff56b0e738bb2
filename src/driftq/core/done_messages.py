"""Finds the message of a committed effect, if the effect named none: the one that was produced under its key.

An effect that belongs to a message is kept until the message is settled, and a claim finds it by its place. Part of the
fold: whatever is found is kept with the effect, and so in the snapshot.
"""

from __future__ import annotations

from driftq.core.committed_keys import done_as, produced_as
from driftq.core.facts import Appended, KeyCommitted
from driftq.core.groups import Group
from driftq.core.idempotency import Effects, Status
from driftq.core.logs import Log
from driftq.core.produced_keys import ProducedKeys


class DoneMessages:
    """Links committed effects to messages."""

    __slots__ = ("_effects", "_groups", "_keys", "_logs")

    def __init__(self, effects: Effects, keys: ProducedKeys, logs: dict[int, Log], groups: dict[int, Group]) -> None:
        self._effects = effects
        self._keys = keys
        self._logs = logs
        self._groups = groups

    def commit(self, fact: KeyCommitted) -> None:
        self._effects.commit(fact)
        effect = self._effects.find(fact.key)
        if effect is None or effect.offset >= 0:
            return
        produced = self._keys.find(produced_as(fact.key), fact.at_ms)
        log = self._logs.get(produced.log_id) if produced is not None else None
        if produced is not None and log is not None:
            for group_id in log.readers:
                if done_as(produced_as(fact.key), log.topic, self._groups[group_id].name) == fact.key:
                    self._effects.move(fact.key, group_id, log.log_id, produced.offset)

    def produced(self, log: Log, fact: Appended, key: str) -> None:
        """A message was produced under a key. Its effect may be committed already, and have been that of a message
        that is settled by now, or of none."""
        for group_id in log.readers if len(self._effects) else ():
            group = self._groups[group_id]
            scope = done_as(key, log.topic, group.name)
            effect = self._effects.find(scope)
            if effect is None or effect.status is not Status.COMMITTED or effect.until_ms <= fact.at_ms:
                continue
            if effect.group_id == group_id:
                before = group.progress[self._logs[effect.log_id].partition]
                if not before.is_settled(effect.offset):
                    continue
            self._effects.move(scope, group_id, log.log_id, fact.first_offset)

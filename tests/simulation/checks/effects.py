"""Effects happen once: fences only rise, only the newest fence commits or fails, a committed key stays committed for
its TTL, and every later caller gets the committed result. Keys of produces are separate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model.effect_facts import EffectsChecked, KeyBegun, KeyCommitted, KeyFailed
from driftq.core.model.facts import ClockSet
from driftq.core.model.replies import AlreadyDone, EffectBegun, OutcomeReply, Rejected
from driftq.core.state.effects import effect_scope
from driftq.wire.errors import Code
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation

PENDING, COMMITTED, FAILED = "pending", "committed", "failed"


class EffectModel:
    """One effect key, from its facts."""

    __slots__ = ("fence", "message", "owner", "result", "status", "token", "until_ms")

    def __init__(self, fact: KeyBegun) -> None:
        self.status = PENDING
        self.fence = fact.fence
        self.owner = fact.owner
        self.token = fact.token
        self.until_ms = fact.until_ms
        self.message = (fact.group_id, fact.log_id, fact.offset)
        self.result = b""


def _is_proven(fact: KeyBegun, command: Any, known: EffectModel) -> bool:
    """Whether a caller that begins a live effect again has proved that it began it."""
    same = (command.token, fact.group_id, fact.log_id, fact.offset) == (known.token, *known.message)
    return command.fence == known.fence or (bool(command.token) and same)


class EffectsCheck:
    """All effect keys ever begun."""

    def __init__(self, queues: QueuesCheck) -> None:
        self._queues = queues
        self._known: dict[str, EffectModel] = {}
        self._top_fence = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            KeyBegun: self._begun,
            KeyCommitted: self._committed,
            KeyFailed: self._failed,
            ClockSet: self._clock_set,
            EffectsChecked: lambda fact, op: None,  # what is forgotten too early is begun again
        }

    def _clock_set(self, fact: ClockSet, op: Operation) -> None:
        for known in self._known.values():
            if known.status == PENDING and known.until_ms > fact.from_ms:
                known.until_ms += fact.at_ms - fact.from_ms

    def _is_over(self, known: EffectModel, now_ms: int) -> bool:
        """Past its TTL, and its message is settled (or was settled before a seek)."""
        if known.until_ms > now_ms:
            return False
        group_id, log_id, offset = known.message
        group = self._queues.groups.get(group_id)
        places = group.places.get(log_id) if group is not None else None
        return places is None or places.seeks > 0 or places.is_settled(offset)

    def _begun(self, fact: KeyBegun, op: Operation) -> None:
        demand(fact.fence > self._top_fence, "effects", f"{op}: fence {fact.fence} behind {self._top_fence}")
        self._top_fence = fact.fence
        known = self._known.get(fact.key)
        if known is not None:
            if known.status == COMMITTED and not self._is_over(known, op.at_ms):
                raise Violation("effects", f"{op}: a committed effect was begun again")
            if known.status == PENDING and known.until_ms > op.at_ms and not _is_proven(fact, op.command, known):
                raise Violation("effects", f"{op}: {known.owner} still works on the effect that {fact.owner} began")
        self._known[fact.key] = EffectModel(fact)

    def _committed(self, fact: KeyCommitted, op: Operation) -> None:
        known = self._known[fact.key]
        demand(known.fence == fact.fence, "effects", f"{op}: fence {fact.fence} committed; {known.fence} is the newest")
        demand(known.status != COMMITTED, "effects", f"{op}: an effect was committed twice")
        known.status, known.until_ms, known.result = COMMITTED, fact.expires_ms, fact.result

    def _failed(self, fact: KeyFailed, op: Operation) -> None:
        known = self._known[fact.key]
        demand(known.fence == fact.fence, "effects", f"{op}: fence {fact.fence} failed; {known.fence} is the newest")
        demand(known.status == PENDING, "effects", f"{op}: a {known.status} effect failed")
        known.status, known.until_ms = FAILED, fact.expires_ms

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {
            EffectBegun: self._begun_reply,
            AlreadyDone: self._done_reply,
            Rejected: self._refusal,
            OutcomeReply: self._concluded,
        }

    def _concluded(self, op: Operation, reply: OutcomeReply) -> None:
        for commit in op.command.commits:  # type: ignore[attr-defined]
            known = self._known[effect_scope(commit.key)]
            right = (known.status, known.fence) == (COMMITTED, commit.fence)
            demand(right, "all or nothing", f"{op}: its effect is {known.status} under fence {known.fence}")

    def _begun_reply(self, op: Operation, reply: EffectBegun) -> None:
        known = self._known[effect_scope(op.command.key)]  # type: ignore[attr-defined]
        demand((known.fence, known.status) == (reply.fence, PENDING), "effects", f"{op}: told fence {reply.fence}")

    def _done_reply(self, op: Operation, reply: AlreadyDone) -> None:
        known = self._known.get(effect_scope(op.command.key))  # type: ignore[attr-defined]
        right = known is not None and known.status == COMMITTED and known.result == reply.result
        demand(right, "effects", f"{op}: told that it was done with {reply.result!r}")

    def _refusal(self, op: Operation, reply: Rejected) -> None:
        if isinstance(op.command, c.CommitEffect) and reply.code is Code.NOT_OWNER:
            known = self._known[effect_scope(op.command.key)]
            demand(known.fence != op.command.fence, "effects", f"{op}: the newest fence was called stale")

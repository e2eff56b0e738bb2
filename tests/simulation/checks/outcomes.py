"""Outcomes are fenced and happen once: the caller holds every message that it acks; a repeat gets the first result
within the TTL and is never carried out again; another outcome with the same tokens is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import OutcomeRecorded, OutcomesForgotten
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import OutcomeReply, Produced, Rejected, StreamAppended
from driftq.core.state.effects import effect_scope
from driftq.wire.errors import Code
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation

Name = tuple[frozenset[tuple[str, str, int, int, str]], frozenset[tuple[str, int]]]


class RecordedOutcome(NamedTuple):
    """An outcome as it was carried out, with the places its frame wrote to: (log, first offset)."""

    digest: bytes
    expires_ms: int
    places: frozenset[tuple[int, int]]


class OutcomesCheck:
    """Every outcome ever carried out, by its tokens and fences."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._limits = limits
        self._carried: dict[Name, RecordedOutcome] = {}
        self._written: set[tuple[int, int]] = set()  # of the current frame
        self.repeats = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.Appended: lambda fact, op: self._written.add((fact.log_id, fact.first_offset)),
            OutcomeRecorded: self._done,
            OutcomesForgotten: lambda fact, op: None,
        }

    def begin(self, op: Operation) -> None:
        """A new frame; the positions are those at its decision."""
        self._written.clear()
        if isinstance(op.command, c.CommitOutcome):
            for ack in op.command.acks:
                for held in ack.held:
                    for offset in range(held.first, held.end):
                        self._is_held(op, ack, held, offset)

    def _is_held(self, op: Operation, ack: c.Ack, held: c.Held, offset: int) -> None:
        """By the caller, or lost by it and not delivered again."""
        group = self._queues.group(ack.topic, ack.group)
        at = f"offset {offset} of {ack.topic}"
        demand(group is not None, "outcome", f"{op} did something for a group that is not there")
        assert group is not None
        places = group.places[self._ledger.topics[ack.topic][held.partition]]
        holding = places.held.get(offset) or (places.last.get(offset) if offset in places.lost else None)
        demand(holding is not None, "outcome", f"{op} was carried out, but {at} is not held")
        assert holding is not None
        fits = held.token == holding.token if held.token else ack.owner == holding.owner
        demand(fits, "outcome", f"{op} did something under {held.token or ack.owner!r}, but {holding} holds {at}")

    def _done(self, fact: OutcomeRecorded, op: Operation) -> None:
        command = op.command
        assert isinstance(command, c.CommitOutcome)
        name = _name(command)
        demand(name is not None and name not in self._carried, "outcome", f"{op} was carried out twice")
        assert name is not None
        due_ms = op.at_ms + self._limits.key_ttl_ms
        demand(fact.expires_ms == due_ms, "outcome", f"{op} is kept until {fact.expires_ms}, not {due_ms}")
        self._carried[name] = RecordedOutcome(command.digest, due_ms, frozenset(self._written))

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Rejected: self._refused, OutcomeReply: self._first}

    def _first(self, op: Operation, reply: OutcomeReply) -> None:
        """Not a repeat: its frame is there."""
        name = _name(op.command)
        demand(name is None or name in self._carried, "outcome", f"{op} was carried out and is not remembered")

    def repeated(self, op: Operation, reply: OutcomeReply) -> None:
        self.repeats += 1
        command = op.command
        assert isinstance(command, c.CommitOutcome)
        name = _name(command)
        carried = self._carried.get(name) if name is not None else None
        demand(not op.own, "outcome", f"{op} was called a repeat and did something")
        demand(carried is not None, "outcome", f"{op} was called a repeat; it never happened")
        assert carried is not None
        demand(carried.digest == command.digest, "outcome", f"{op} asks for something else and was called a repeat")
        demand(carried.expires_ms > op.at_ms, "outcome", f"{op} was called a repeat after its time")
        for part in (*reply.produced, *reply.appended):
            assert isinstance(part, Produced | StreamAppended)
            known = {first for _, first in carried.places}
            right = part.duplicate or part.first_offset in known
            demand(right, "outcome", f"{op} got {part.first_offset}; it wrote to {sorted(carried.places)}")

    def _refused(self, op: Operation, reply: Rejected) -> None:
        command = op.command
        if not isinstance(command, c.CommitOutcome) or reply.code in (Code.DISK_FULL, Code.INVALID_ARGUMENT):
            return
        name = _name(command)
        carried = self._carried.get(name) if name is not None else None
        if carried is not None and carried.digest == command.digest:
            demand(carried.expires_ms <= op.at_ms, "outcome", f"{op} is a repeat and was refused: {reply.message}")


def _name(command: Any) -> Name | None:
    """One entry for each message, independent of runs; None if nothing in it is unique."""
    acks = frozenset(
        (ack.topic, ack.group, held.partition, offset, held.token or f"owner {ack.owner}")
        for ack in command.acks
        for held in ack.held
        for offset in range(held.first, held.end)
    )
    commits = frozenset((effect_scope(commit.key), commit.fence) for commit in command.commits)
    proven = commits or any(held.token for ack in command.acks for held in ack.held)
    return (acks, commits) if proven else None

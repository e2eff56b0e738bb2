"""Idempotent producers: decides whether (producer, epoch, seq) is new, a duplicate, stale or out of order.

A sequence number counts batches and starts at 0 in every epoch. For each producer a log keeps its epoch, its last seq,
and the last `WINDOW` batches with digest and offsets:

    last accepted: epoch 3, seq 41, window 34..41

    epoch 2, any seq          STALE_EPOCH         a newer session of the same producer exists
    epoch 3, seq 42           ACCEPT              the next one
    epoch 3, seq 43           GAP                 42 is missing (accepted if the stream allows gaps)
    epoch 3, seq 40           DUPLICATE           same digest: answered with the original offsets
                              MISMATCH            other bytes under the same seq
    epoch 3, seq 12           DUPLICATE           too old to compare; its offsets are not remembered
    epoch 4, seq 0            ACCEPT              a new session
    epoch 4, seq 5            EPOCH_NOT_AT_ZERO

A client that sends no epoch (`SERVER_EPOCH`) leaves epochs to the broker: seq 0 with other bytes than the first batch
of the current session starts a new one. Topics and streams share this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model.snapshot_facts import ProducerEntryState

if TYPE_CHECKING:
    from driftq.core.model.facts import ProducerSequence

WINDOW = 8  # batches; clients keep at most five in flight
SERVER_EPOCH = -1  # the client leaves epochs to the server
PRODUCERS_MAX = 10_000  # per log; past it the least recently used one is forgotten


class SequenceVerdict(Enum):
    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    STALE_EPOCH = "stale epoch"
    GAP = "gap"
    EPOCH_NOT_AT_ZERO = "a new epoch starts at seq 0"
    MISMATCH = "same seq, other bytes"


class SequenceJudgement(NamedTuple):
    """The verdict, and the last accepted epoch and seq. Offsets are -1 if the original batch is not remembered."""

    verdict: SequenceVerdict
    epoch: int
    seq: int  # the highest accepted one
    first_offset: int = -1
    end_offset: int = -1


class Seen(NamedTuple):
    """A batch that was accepted."""

    seq: int
    digest: int
    first_offset: int
    end_offset: int


class ProducerState:
    """What a log remembers of one producer."""

    __slots__ = ("at_ms", "epoch", "first_digest", "seq", "window")

    def __init__(self, epoch: int, seq: int, at_ms: int, first_digest: int) -> None:
        self.epoch = epoch
        self.seq = seq  # the last accepted one
        self.at_ms = at_ms  # when it was accepted
        self.first_digest = (
            first_digest  # of the first batch of this epoch: distinguishes a repeat of seq 0 from a restart
        )
        self.window: list[Seen] = []  # the last batches, oldest first


class ProducerTable:
    """The producers of one log, the most recently used last."""

    __slots__ = ("states",)

    def __init__(self) -> None:
        self.states: dict[str, ProducerState] = {}

    def judge(self, by: ProducerSequence, *, gaps_allowed: bool = False) -> SequenceJudgement:
        state = self.states.get(by.producer)
        if state is None:
            epoch = 1 if by.epoch == SERVER_EPOCH else by.epoch
            if by.seq == 0 or gaps_allowed:
                return SequenceJudgement(SequenceVerdict.ACCEPT, epoch, by.seq)
            return SequenceJudgement(SequenceVerdict.GAP, epoch, -1)
        if by.epoch == SERVER_EPOCH:
            return self._judge_unnamed(state, by, gaps_allowed)
        if by.epoch < state.epoch:
            return SequenceJudgement(SequenceVerdict.STALE_EPOCH, state.epoch, state.seq)
        if by.epoch > state.epoch:
            if by.seq == 0 or gaps_allowed:
                return SequenceJudgement(SequenceVerdict.ACCEPT, by.epoch, by.seq)
            return SequenceJudgement(SequenceVerdict.EPOCH_NOT_AT_ZERO, state.epoch, state.seq)
        return self._judge_seq(state, by, gaps_allowed)

    def _judge_unnamed(self, state: ProducerState, by: ProducerSequence, gaps_allowed: bool) -> SequenceJudgement:
        """Without an epoch, seq 0 is a restart unless it repeats the first batch of the current session."""
        if by.seq == 0 and by.digest != state.first_digest:
            return SequenceJudgement(SequenceVerdict.ACCEPT, state.epoch + 1, 0)
        return self._judge_seq(state, by, gaps_allowed)

    def _judge_seq(self, state: ProducerState, by: ProducerSequence, gaps_allowed: bool) -> SequenceJudgement:
        if by.seq == state.seq + 1 or (gaps_allowed and by.seq > state.seq):
            return SequenceJudgement(SequenceVerdict.ACCEPT, state.epoch, by.seq)
        if by.seq > state.seq:
            return SequenceJudgement(SequenceVerdict.GAP, state.epoch, state.seq)
        for seen in state.window:
            if seen.seq == by.seq:
                verdict = SequenceVerdict.DUPLICATE if seen.digest == by.digest else SequenceVerdict.MISMATCH
                return SequenceJudgement(verdict, state.epoch, state.seq, seen.first_offset, seen.end_offset)
        return SequenceJudgement(SequenceVerdict.DUPLICATE, state.epoch, state.seq)

    def remember(self, by: ProducerSequence, first_offset: int, end_offset: int, at_ms: int) -> None:
        """An append was accepted. `by.epoch` is the epoch it was accepted under."""
        state = self.states.pop(by.producer, None)
        if state is None or state.epoch != by.epoch:
            state = ProducerState(by.epoch, by.seq, at_ms, by.digest)
        state.seq = by.seq
        state.at_ms = at_ms
        state.window.append(Seen(by.seq, by.digest, first_offset, end_offset))
        if len(state.window) > WINDOW:
            del state.window[0]
        self.states[by.producer] = state
        if len(self.states) > PRODUCERS_MAX:
            del self.states[next(iter(self.states))]

    def snapshot(self, log_id: int) -> Iterator[ProducerEntryState]:
        for producer, state in self.states.items():
            yield ProducerEntryState(
                log_id, producer, state.epoch, state.seq, state.at_ms, state.first_digest,
                tuple((seen.seq, seen.digest, seen.first_offset, seen.end_offset) for seen in state.window),
            )  # fmt: skip

    def restore(self, fact: ProducerEntryState) -> None:
        state = ProducerState(fact.epoch, fact.seq, fact.at_ms, fact.first_digest)
        state.window = [Seen(*seen) for seen in fact.window]
        self.states[fact.producer] = state

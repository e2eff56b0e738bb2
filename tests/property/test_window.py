"""A producer's window against a broker that restarts, refuses and replies out of order: each batch once, in order.

The broker decides with the real rules (`core.state.producers`); the test simulates a faulty network between the two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from driftq.client.errors import (
    InvalidCall,
    NotConnected,
    OutcomeUnknown,
    Overloaded,
    SequenceGap,
    SequenceMismatch,
    ServerFailed,
    StaleEpoch,
)
from driftq.client.producer.window import IN_FLIGHT_MAX, Window, WindowEntry
from driftq.core.model.facts import ProducerSequence
from driftq.core.state.producers import ProducerTable, SequenceVerdict


@dataclass
class Broker:
    """One log and its producers."""

    log: list[int] = field(default_factory=list)
    table: ProducerTable = field(default_factory=ProducerTable)

    def append(self, batch: int, epoch: int, seq: int) -> object:
        """None for a stored batch, or the refusal."""
        if batch < 0:
            return InvalidCall("a bad batch")
        by = ProducerSequence("p", epoch, seq, batch)
        judgement = self.table.judge(by)
        details = {"epoch": judgement.epoch, "expected_seq": judgement.seq + 1}
        match judgement.verdict:
            case SequenceVerdict.ACCEPT:
                self.log.append(batch)
                self.table.remember(by, len(self.log) - 1, len(self.log), 0)
                return None
            case SequenceVerdict.DUPLICATE:
                return None
            case SequenceVerdict.STALE_EPOCH:
                return StaleEpoch("stale", details=details)
            case SequenceVerdict.GAP:
                return SequenceGap("gap", details=details)
            case SequenceVerdict.EPOCH_NOT_AT_ZERO:
                return InvalidCall("an epoch starts at 0", details=details)
            case _:
                return SequenceMismatch("other bytes", details=details)


class World:
    """A producer, a broker and a faulty network between them, all from one seed. `wire` is what the broker has not seen
    yet, `answers` what the producer has not, `ghosts` are copies still on their way after their connection broke."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.hurries = seed % 3 == 0  # whether some batches have short deadlines
        self.broker = Broker()
        # The epoch of an earlier session is far below or far above: epochs come from the clock and a random number, and
        # the broker cannot distinguish two sessions with the same epoch.
        stored_epoch = self.chance.choice([None, None, 3, 9_000_000])
        if stored_epoch is not None:
            self.broker.table.remember(ProducerSequence("p", stored_epoch, 40, 999), 0, 1, 0)
        self.window: Window[int] = Window(7, backoff_s=lambda failures: 0.5)
        self.now_s = 0.0
        self.given: list[int] = []
        self.hurried: set[int] = set()
        self.wire: list[tuple[WindowEntry[int], int, int, int]] = []
        self.answers: list[tuple[WindowEntry[int], object]] = []
        self.ghosts: list[tuple[int, int, int]] = []
        self.ended: dict[int, object] = {}

    def step(self) -> None:
        actions = {
            self.give: 6, self.write: 6, self.serve: 12, self.answer: 12, self.wait: 3, self.refuse_for_now: 2,
            self.fail_with_500: 1, self.cut: 1, self.refuse_connection: 1, self.serve_late: 2,
        }  # fmt: skip
        self.chance.choices(list(actions), list(actions.values()))[0]()
        self.check()

    def take(self, some: list, *, in_order: bool = False):
        ordered = in_order or self.chance.random() < 0.7
        return some.pop(0 if ordered else self.chance.randrange(len(some)))

    # --- actions ---

    def give(self) -> None:
        batch = len(self.given) + 1
        batch = -batch if self.chance.random() < 0.08 else batch
        hurried = self.hurries and self.chance.random() < 0.1
        if hurried:
            self.hurried.add(batch)
        self.given.append(batch)
        self.window.add(batch, self.now_s + (1.5 if hurried else 1_000.0))

    def write(self) -> None:
        for entry in self.window.due(self.now_s):
            self.wire.append((entry, entry.batch, entry.epoch, entry.seq))

    def serve(self) -> None:
        if self.wire:
            entry, batch, epoch, seq = self.take(self.wire)
            self.answers.append((entry, self.broker.append(batch, epoch, seq)))

    def serve_late(self) -> None:
        if self.ghosts:
            self.broker.append(*self.take(self.ghosts))

    def refuse_for_now(self) -> None:
        if self.wire:
            after_ms = self.chance.choice([None, 2_000])
            self.answers.append((self.take(self.wire)[0], Overloaded("full", retry_after_ms=after_ms)))

    def fail_with_500(self) -> None:
        if self.wire:
            entry, batch, epoch, seq = self.take(self.wire)
            if self.chance.random() < 0.5:
                self.broker.append(batch, epoch, seq)
            self.answers.append((entry, ServerFailed("a bug")))

    def refuse_connection(self) -> None:
        if self.wire:
            self.window.refused(self.wire.pop()[0], NotConnected("no server"), self.now_s)

    def cut(self) -> None:
        """The broker saw some of what was on the wire, may see the rest late, and its answers are gone."""
        served = self.chance.randint(0, len(self.wire))
        for entry, batch, epoch, seq in self.wire[:served]:
            self.answers.append((entry, self.broker.append(batch, epoch, seq)))
        self.ghosts += [(batch, epoch, seq) for _, batch, epoch, seq in self.wire[served:]]
        lost = [entry for entry, *_ in self.wire[served:]] + [entry for entry, _ in self.answers]
        self.wire, self.answers = [], []
        for entry in lost:
            self.window.unknown(entry, OutcomeUnknown("reset"), self.now_s)

    def answer(self) -> None:
        if self.answers:
            entry, error = self.take(self.answers)
            if error is None:
                self.window.stored(entry, "stored")
            else:
                self.window.refused(entry, error, self.now_s)

    def wait(self) -> None:
        self.now_s += self.chance.choice([0.1, 1.0, 3.0])

    # --- invariants ---

    def check(self) -> None:
        log = self.broker.log
        assert log == sorted(set(log)), "duplicated or out of order"
        assert 0 <= self.window.in_flight <= IN_FLIGHT_MAX
        for batch, _, error in self.window.settled:
            assert batch not in self.ended, "completed twice"
            self.ended[batch] = error
            if error is None:
                assert batch in log, "reported as written, and is not"
        self.window.settled = []
        for batch, error in self.ended.items():
            if error is not None and not isinstance(error, OutcomeUnknown):
                assert batch not in log, f"reported as failed, and is written: {error}"

    def finish_without_faults(self) -> None:
        """Every batch completes, and valid batches with time left are in the log."""
        for _ in range(20 * len(self.given) + 60):
            self.now_s += 1.0
            self.write()
            while self.wire:
                entry, batch, epoch, seq = self.wire.pop(0)
                self.answers.append((entry, self.broker.append(batch, epoch, seq)))
            while self.answers:
                self.answer()
            self.check()
            if not len(self.window):
                break
        assert len(self.window) == 0, "a batch never completes"
        assert set(self.ended) == set(self.given)
        for batch, error in self.ended.items():
            if batch < 0:
                assert error is not None
            elif not self.hurried:
                assert error is None, f"{batch} failed although there was time: {error}"
            else:
                assert error is None or batch in self.hurried or isinstance(error, OutcomeUnknown)


def test_every_batch_is_written_once_and_in_order_despite_faults(profile, seed):
    for number in range(seed, seed + {"quick": 60, "dev": 300, "ci": 2_000, "release": 50_000}[profile]):
        world = World(number)
        try:
            for _ in range(150):
                world.step()
            world.finish_without_faults()
        except AssertionError as error:
            raise AssertionError(f"seed {number}: {error}") from error


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.booleans())
def test_only_batches_that_may_be_stored_time_out_as_unknown(stored, fixed):
    """A batch that was sent and got no reply is unknown after its deadline. Other batches are not affected."""
    broker = Broker()
    window: Window[int] = Window(0, epoch_is_fixed=fixed)
    window.add(0, 5.0)
    (first,) = window.due(0.0)
    window.stored(first, broker.append(0, first.epoch, first.seq))
    for batch in range(1, len(stored) + 1):
        window.add(batch, 5.0 if batch <= IN_FLIGHT_MAX else 100.0)
    sent = window.due(1.0)
    for entry, is_stored in zip(sent, stored):
        if is_stored:
            broker.append(entry.batch, entry.epoch, entry.seq)
    for entry in sent:
        window.unknown(entry, OutcomeUnknown("no answer"), 1.0)
    for _ in range(30):
        for entry in window.due(6.0):
            error = broker.append(entry.batch, entry.epoch, entry.seq)
            window.stored(entry, None) if error is None else window.refused(entry, error, 6.0)
    ended = {done.batch: done.error for done in window.settled}
    assert set(ended) == set(range(len(stored) + 1))
    for batch, error in ended.items():
        if 1 <= batch <= len(sent):
            assert isinstance(error, OutcomeUnknown)
        elif not fixed:
            assert error is None
            assert batch in broker.log
    assert broker.log == sorted(set(broker.log))

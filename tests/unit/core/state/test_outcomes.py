"""The memory of outcomes: what they are recognised by, how they are dropped, how much they may take."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import KeyBegun, OutcomeRecorded, OutcomesForgotten
from driftq.core.model.frames import decode, encode
from driftq.core.state import outcomes as o
from driftq.core.state.deadlines import Deadlines
from driftq.core.state.leases import DEAD_MAX, DeadOffsets


def outcome(*runs: tuple[int, int, int], token: str = "t", **more: object) -> c.CommitOutcome:
    held = tuple(c.Held(*run, token) for run in runs)
    return c.CommitOutcome(acks=(c.Ack("in", "g", "w", held),), **more)  # type: ignore[arg-type]


def recorded(number: int, expires_ms: int = 1_000, result: bytes = b"") -> OutcomeRecorded:
    return OutcomeRecorded(b"%d" % number, b"", expires_ms, 0, result)


def test_an_outcome_is_the_same_however_its_messages_are_named():
    whole = o.identity(outcome((0, 3, 6)))
    assert o.identity(outcome((0, 3, 4), (0, 4, 6))) == whole
    assert o.identity(outcome((0, 5, 6), (0, 3, 5))) == whole
    others = [outcome((0, 3, 5)), outcome((1, 3, 6)), outcome((0, 3, 6), token="u"), outcome((0, 3, 4), (0, 5, 6))]
    assert len({whole, *map(o.identity, others)}) == 5


def test_an_owner_alone_identifies_nothing_and_a_key_identifies_alone():
    assert o.identity(outcome((0, 3, 6), token="")) == b""
    assert o.identity(c.CommitOutcome()) == b""
    by_key = o.identity(outcome((0, 3, 6), key="k"))
    assert o.identity(outcome((0, 1, 2), key="k")) == by_key
    assert o.digest(outcome((0, 3, 6), key="k")) != o.digest(outcome((0, 1, 2), key="k")), "acks are a part of the body"


def test_the_oldest_are_dropped_in_time_and_when_there_is_no_room(monkeypatch):
    monkeypatch.setattr(o, "BYTES_MAX", 4 * o.ENTRY_BYTES)
    known = o.Outcomes(Deadlines())
    for number in range(6):
        known.folds[OutcomeRecorded](recorded(number, 1_000 + number))
    assert [fact.outcome for fact in known.snapshot()] == [b"2", b"3", b"4", b"5"]
    assert known.find(b"2", 1_001) is not None
    assert known.find(b"2", 1_002) is None, "a late sweep changes no answer"
    assert known.expired(1_003, 10) == 2
    assert known.expired(1_003, 1) == 1
    known.folds[OutcomesForgotten](OutcomesForgotten(2))
    assert (len(known), known.size_bytes) == (2, 2 * o.ENTRY_BYTES)
    known.folds[OutcomeRecorded](recorded(6, result=bytes(10 * o.ENTRY_BYTES)))
    assert [fact.outcome for fact in known.snapshot()] == [b"6"], "one may be larger than the rest"
    known.folds[OutcomesForgotten](OutcomesForgotten(1))
    assert (len(known), known.size_bytes, known.next_ms()) == (0, 0, None)


def test_expired_outcomes_have_a_time_to_be_swept():
    deadlines = Deadlines()
    known = o.Outcomes(deadlines)
    known.folds[OutcomeRecorded](recorded(1, 25_000))
    assert deadlines.next_ms() == 30_000 == known.next_ms()


def test_the_last_dead_letters_are_known_with_their_holder():
    dead = DeadOffsets()
    for offset in range(DEAD_MAX + 2):
        dead.add(offset, "ann", "t1")
    assert 1 not in dead
    assert 2 in dead
    assert dead.was_held(2, "t1", "")
    assert dead.was_held(2, "", "ann")
    assert not dead.was_held(2, "t2", "ann"), "with a token, the token decides"
    dead.trim(DEAD_MAX)
    assert [offset for offset, _, _ in dead] == [DEAD_MAX, DEAD_MAX + 1]
    dead.add(7, "", "")
    assert not dead.was_held(7, "", ""), "it died before its first delivery"


OLD_FRAMES = {
    KeyBegun: b"\x91\x96\x28\xa1k\x01\xa3ann\x0a\x14",
    f.Settled: b"\x91\x95\x26\x01\x02\x91\x92\x03\x04\x00",
}


@pytest.mark.parametrize("kind", OLD_FRAMES)
def test_frames_of_older_versions_are_read(kind):
    [fact] = decode(OLD_FRAMES[kind])
    assert type(fact) is kind
    assert decode(encode([fact])) == [fact]

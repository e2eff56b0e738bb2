"""Judging (producer, epoch, seq) in both dialects: with the client's epoch, and with the server's."""

from __future__ import annotations

import pytest

from driftq.core.model.facts import ProducerSequence
from driftq.core.state.producers import PRODUCERS_MAX, SERVER_EPOCH, WINDOW, ProducerTable, SequenceVerdict


def table(*accepted: tuple[int, int, int]) -> ProducerTable:
    """A table that accepted (epoch, seq, digest) from producer p, each as one record."""
    producers = ProducerTable()
    for number, (epoch, seq, digest) in enumerate(accepted):
        producers.remember(ProducerSequence("p", epoch, seq, digest), number, number + 1, 1_000 + number)
    return producers


def verdict(
    producers: ProducerTable, epoch: int, seq: int, digest: int = 0, **more: bool
) -> tuple[SequenceVerdict, int, int]:
    judgement = producers.judge(ProducerSequence("p", epoch, seq, digest), **more)
    return judgement.verdict, judgement.epoch, judgement.seq


ACCEPT, DUPLICATE, GAP, STALE = (
    SequenceVerdict.ACCEPT,
    SequenceVerdict.DUPLICATE,
    SequenceVerdict.GAP,
    SequenceVerdict.STALE_EPOCH,
)


@pytest.mark.parametrize(
    ("epoch", "seq", "expected"),
    [(0, 0, (ACCEPT, 0, 0)), (9, 0, (ACCEPT, 9, 0)), (0, 1, (GAP, 0, -1)), (SERVER_EPOCH, 0, (ACCEPT, 1, 0)),
     (SERVER_EPOCH, 1, (GAP, 1, -1))],
)  # fmt: skip
def test_the_first_contact_starts_at_zero_in_any_epoch(epoch, seq, expected):
    assert verdict(table(), epoch, seq) == expected


@pytest.mark.parametrize(
    ("epoch", "seq", "digest", "expected"),
    [
        (2, 2, 0, (ACCEPT, 2, 2)),
        (2, 3, 0, (GAP, 2, 1)),
        (2, 1, 11, (DUPLICATE, 2, 1)),
        (2, 0, 10, (DUPLICATE, 2, 1)),
        (2, 1, 99, (SequenceVerdict.MISMATCH, 2, 1)),
        (1, 2, 0, (STALE, 2, 1)),
        (3, 0, 0, (ACCEPT, 3, 0)),
        (3, 1, 0, (SequenceVerdict.EPOCH_NOT_AT_ZERO, 2, 1)),
    ],
)
def test_a_client_that_states_its_epoch(epoch, seq, digest, expected):
    assert verdict(table((2, 0, 10), (2, 1, 11)), epoch, seq, digest) == expected


@pytest.mark.parametrize(
    ("seq", "digest", "expected"),
    [
        (2, 0, (ACCEPT, 1, 2)),
        (1, 11, (DUPLICATE, 1, 1)),
        (1, 99, (SequenceVerdict.MISMATCH, 1, 1)),
        (3, 0, (GAP, 1, 1)),
        (0, 10, (DUPLICATE, 1, 1)),  # the repeat of the first batch
        (0, 77, (ACCEPT, 2, 0)),  # another first batch: a restart
    ],
)
def test_a_client_that_leaves_epochs_to_the_server(seq, digest, expected):
    assert verdict(table((1, 0, 10), (1, 1, 11)), SERVER_EPOCH, seq, digest) == expected


def test_the_repeat_of_the_first_batch_is_known_long_after_it_left_the_window():
    producers = table(*((1, seq, seq) for seq in range(3 * WINDOW)))
    assert verdict(producers, SERVER_EPOCH, 0, 0)[0] is DUPLICATE
    assert verdict(producers, SERVER_EPOCH, 0, 5)[0] is ACCEPT


def test_a_repeat_gets_the_first_offset_while_it_is_in_the_window():
    producers = table(*((0, seq, seq) for seq in range(WINDOW + 2)))
    inside = producers.judge(ProducerSequence("p", 0, 2, 2))
    assert (inside.verdict, inside.first_offset, inside.end_offset) == (DUPLICATE, 2, 3)
    outside = producers.judge(ProducerSequence("p", 0, 1, 1))
    assert (outside.verdict, outside.first_offset, outside.end_offset) == (DUPLICATE, -1, -1)


def test_a_new_epoch_forgets_the_old_window():
    producers = table((0, 0, 10), (1, 0, 20))
    assert producers.judge(ProducerSequence("p", 1, 0, 20)).first_offset == 1
    assert verdict(producers, 1, 0, 10)[0] is SequenceVerdict.MISMATCH


def test_gaps_are_accepted_where_they_are_allowed():
    producers = table((0, 0, 10))
    assert verdict(producers, 0, 7, gaps_allowed=True) == (ACCEPT, 0, 7)
    assert verdict(producers, 0, 0, 10, gaps_allowed=True)[0] is DUPLICATE
    assert verdict(table(), 0, 7, gaps_allowed=True) == (ACCEPT, 0, 7)
    assert verdict(producers, 1, 7, gaps_allowed=True) == (ACCEPT, 1, 7)


def test_past_the_bound_the_producer_that_is_idle_for_longest_is_forgotten():
    producers = ProducerTable()
    for number in range(PRODUCERS_MAX):
        producers.remember(ProducerSequence(f"p{number}", 0, 0, 0), number, number + 1, number)
    producers.remember(ProducerSequence("p0", 0, 1, 0), 0, 1, 0)
    producers.remember(ProducerSequence("new", 0, 0, 0), 0, 1, 0)
    assert "p0" in producers.states
    assert "p1" not in producers.states
    assert len(producers.states) == PRODUCERS_MAX


def test_images_rebuild_the_table():
    producers = table(*((3, seq, seq * 7) for seq in range(WINDOW + 3)))
    again = ProducerTable()
    for fact in producers.snapshot(1):
        again.restore(fact)
    assert list(again.snapshot(1)) == list(producers.snapshot(1))
    assert again.judge(ProducerSequence("p", 3, WINDOW, WINDOW * 7)) == producers.judge(
        ProducerSequence("p", 3, WINDOW, WINDOW * 7)
    )

"""The checker itself: histories whose verdict is known, by hand and by trying every order."""

from __future__ import annotations

from itertools import permutations
from random import Random

from tests.support.linearizability import Call, is_linearizable
from tests.support.stream_model import StreamRequest, StreamResponse, StreamTail

EMPTY = StreamTail(0)


def append(invoked, returned, offset, *, count=1, if_match=None, close=False, moved=False):
    return Call(invoked, returned, StreamRequest("append", count, if_match, close), StreamResponse(offset, moved))


def tail(invoked, returned, offset):
    return Call(invoked, returned, StreamRequest("tail", 0, None, False), StreamResponse(offset, False))


def test_nothing_and_one_call_are_linearizable():
    assert is_linearizable([], EMPTY)
    assert is_linearizable([append(1, 2, 0)], EMPTY)
    assert not is_linearizable([append(1, 2, 1)], EMPTY)


def test_calls_under_way_together_may_take_effect_in_any_order():
    assert is_linearizable([append(1, 9, 1), append(2, 8, 0), tail(3, 7, 1)], EMPTY)


def test_a_call_that_returned_comes_before_one_made_later():
    assert not is_linearizable([append(1, 2, 1), append(3, 4, 0)], EMPTY)
    assert not is_linearizable([append(1, 2, 0), tail(3, 4, 0)], EMPTY)


def test_one_expected_tail_lets_one_append_through():
    both = [append(1, 9, 0, if_match=0), append(2, 8, 1, if_match=0)]
    assert not is_linearizable(both, EMPTY)
    assert is_linearizable([both[0], append(2, 8, 1, if_match=0, moved=True)], EMPTY)


def test_a_refusal_needs_a_moment_at_which_the_tail_was_another():
    assert not is_linearizable([append(1, 2, 0), append(3, 4, 1, if_match=1, moved=True)], EMPTY)
    assert is_linearizable([append(1, 5, 0), append(3, 4, 0, if_match=1, moved=True)], EMPTY)


def test_nothing_is_appended_behind_the_last():
    assert not is_linearizable([append(1, 2, 0, close=True), append(3, 4, 1)], EMPTY)


def by_trying_every_order(calls) -> bool:
    for order in permutations(calls):
        late = any(order[j].returned < order[i].invoked for i in range(len(order)) for j in range(i + 1, len(order)))
        if late:
            continue
        state: StreamTail | None = EMPTY
        for call in order:
            state = state.after(call.request, call.response) if state is not None else None
        if state is not None:
            return True
    return False


def test_the_checker_agrees_with_trying_every_order():
    chance = Random(7)
    verdicts = {True: 0, False: 0}
    for _ in range(3_000):
        calls = []
        for _ in range(chance.randrange(1, 6)):
            invoked = chance.randrange(8)
            returned = invoked + chance.randrange(6)
            if chance.random() < 0.3:
                calls.append(tail(invoked, returned, chance.randrange(4)))
            else:
                expected = chance.choice((None, chance.randrange(4)))
                moved = expected is not None and chance.random() < 0.4
                calls.append(append(invoked, returned, chance.randrange(4), if_match=expected, moved=moved))
        verdict = by_trying_every_order(calls)
        verdicts[verdict] += 1
        assert is_linearizable(calls, EMPTY) == verdict, calls
    assert min(verdicts.values()) > 100


def test_a_long_history_of_eight_clients_is_judged_at_once():
    chance = Random(3)
    moment, end = 0, 0
    calls = []
    while len(calls) < 1_000:
        together = []
        for _ in range(8):
            together.append((moment + chance.randrange(5), end))
            end += 1
        calls += [append(invoked, moment + 10, offset) for invoked, offset in together]
        moment += 11
    assert is_linearizable(calls, EMPTY)
    calls[500] = calls[500]._replace(response=StreamResponse(3, False))
    assert not is_linearizable(calls, EMPTY)

"""Refused calls get their answers late and spread over turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import uvloop

from driftq.server.tenants.quotas import REFUSAL_DELAY_S, REFUSALS_LONG, RefusalQueue


class TurnCounter:
    """Counts the turns of the loop while something waits in the queue."""

    def __init__(self) -> None:
        self.turn = 0
        self.is_running = True
        self._loop = asyncio.get_running_loop()
        self._next()

    def _next(self) -> None:
        self.turn += 1
        if self.is_running:
            self._loop.call_soon(self._next)


async def turns_of_answers(count: int) -> list[int]:
    """The turn of the loop in which each of `count` answers left, all refused in one turn."""
    turns, queue, answered = TurnCounter(), RefusalQueue(), asyncio.Event()
    seen: list[int] = []

    def answer() -> None:
        seen.append(turns.turn)
        if len(seen) == count:
            answered.set()

    began_s = time.monotonic()
    for _ in range(count):
        queue.add(answer)
    await answered.wait()
    turns.is_running = False
    assert time.monotonic() - began_s >= REFUSAL_DELAY_S * 0.9
    return seen


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_answers_that_are_due_at_once_leave_one_in_each_turn(run: Callable[[Awaitable[list[int]]], list[int]]):
    turns = run(turns_of_answers(100))
    assert len(turns) == 100
    assert len(set(turns)) == 100, "two answers in one turn of the loop"


def test_of_a_long_queue_a_part_leaves_at_a_time_in_order():
    async def scenario() -> list[int]:
        queue, answered = RefusalQueue(), asyncio.Event()
        seen: list[int] = []
        ticks: list[int] = []

        def tick_ended() -> None:
            ticks.append(len(seen))
            answered.set()

        def answer(number: int) -> None:
            if not ticks and not seen:
                asyncio.get_running_loop().call_soon(tick_ended)
            seen.append(number)

        for number in range(20 * REFUSALS_LONG):
            queue.add(partial(answer, number))
        await answered.wait()
        assert seen[: ticks[0]] == list(range(ticks[0]))
        return ticks

    assert asyncio.run(scenario()) == [20]


def test_an_answer_that_refuses_the_next_call_does_not_stop_the_queue():
    async def scenario() -> int:
        queue, answered = RefusalQueue(), asyncio.Event()
        left = 5

        def again() -> None:
            nonlocal left
            left -= 1
            if left:
                queue.add(again)
            else:
                answered.set()

        queue.add(again)
        await asyncio.wait_for(answered.wait(), 30)
        return left

    assert asyncio.run(scenario()) == 0

"""The accounting of the event loop: turns, sections, causes, log lines."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from driftq.engine.loop_monitor import LoopMonitor


class Stopwatch:
    """A clock that the test moves, and the stalls that were reported."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.stalls: list[tuple[str, float]] = []
        self.monitor = LoopMonitor(lambda: self.now_s)
        self.monitor.on_stall = lambda cause, took_s: self.stalls.append((cause, round(took_s, 3)))

    def work(self, cause: str, seconds: float) -> None:
        started_s = self.monitor.begin()
        self.now_s += seconds
        self.monitor.end(cause, started_s)


def test_only_turns_of_20_ms_and_longer_are_reported():
    watch = Stopwatch()
    watch.work("short", 0.0199)
    watch.work("long", 0.0201)
    assert watch.stalls == [("long", 0.02)]


@pytest.mark.parametrize(
    ("sections", "cause"),
    [
        ([("projection", 0.06)], "projection"),
        ([("projection", 0.03), ("replies", 0.07)], "replies"),
        ([("replies", 0.07), ("projection", 0.03)], "replies"),
        ([("projection", 0.03)], "commit"),  # most of the turn was outside of it
        ([("projection", 0.01)] * 6, "commit"),  # no section is long by itself
    ],
)
def test_a_turn_has_the_cause_of_the_section_that_took_half_of_it(sections, cause):
    watch = Stopwatch()
    started_s = watch.monitor.begin()
    for name, seconds in sections:
        watch.work(name, seconds)
    watch.now_s = started_s + 0.1
    watch.monitor.end("commit", started_s)
    watch.work("later", 0.05)
    assert watch.stalls == [(cause, 0.1), ("later", 0.05)]


def test_the_steps_of_a_task_are_turns_and_the_time_between_them_is_not():
    watch = Stopwatch()

    async def job() -> str:
        watch.now_s += 0.03
        await asyncio.sleep(0)
        watch.now_s += 0.04
        return "done"

    async def main() -> str:
        task = asyncio.ensure_future(watch.monitor.steps("job", job()))
        asyncio.get_running_loop().call_soon(lambda: setattr(watch, "now_s", watch.now_s + 5))
        return await task

    assert asyncio.run(main()) == "done"
    assert watch.stalls == [("job", 0.03), ("job", 0.04)]


def test_a_step_that_raises_or_is_cancelled_ends_its_turn():
    watch = Stopwatch()
    waiting = asyncio.Event()

    async def job() -> None:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            watch.now_s += 0.03

    async def main() -> None:
        task = asyncio.ensure_future(watch.monitor.steps("job", job()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    watch.work("next", 0.05)
    assert watch.stalls == [("job", 0.03), ("next", 0.05)]


def test_a_callback_that_raises_ends_its_turn():
    watch = Stopwatch()

    def fail() -> None:
        watch.now_s += 0.03
        raise ValueError

    with pytest.raises(ValueError):
        watch.monitor.timed("callback", fail)()
    watch.work("next", 0.05)
    assert watch.stalls == [("callback", 0.03), ("next", 0.05)]


def test_a_garbage_collection_is_a_cause():
    watch = Stopwatch()
    watch.monitor.watch_garbage_collection()
    gc.callbacks.insert(gc.callbacks.index(watch.monitor._on_garbage_collection) + 1, watch_phase := _Advance(watch))
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(watch_phase)
        watch.monitor.close()
    assert watch.stalls == [("garbage collection", 0.04)]
    gc.collect()
    assert len(watch.stalls) == 1


class _Advance:
    """Lets 40 ms pass during a collection."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._watch.now_s += 0.04


def test_a_turn_of_200_ms_is_logged_with_its_cause(caplog):
    watch = Stopwatch()
    with caplog.at_level(logging.WARNING, "driftq.loop"):
        watch.work("short", 0.199)
        watch.work("POST /v1/claim", 0.25)
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was held for 250 ms by: POST /v1/claim"
    ]


def take_input(watch: Stopwatch, cause: str, seconds: float) -> None:
    """As `Connection.buffer_updated` does it."""
    monitor = watch.monitor
    started_s = monitor.input_ended_s or monitor.begin_input()
    watch.now_s += seconds
    monitor.input_ended_s = watch.now_s
    if watch.now_s - started_s >= monitor.stall_s:
        monitor.end_long_input(cause, started_s, watch.now_s - started_s)


def test_input_is_timed_from_the_end_of_the_input_before_it_unless_the_loop_waited():
    watch = Stopwatch()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        take_input(watch, "short", 0.01)
        take_input(watch, "long", 0.03)
        after_wait = loop.create_future()
        loop.call_soon(after_wait.set_result, None)
        await after_wait
        watch.now_s += 5
        take_input(watch, "short", 0.01)

    asyncio.run(main())
    assert watch.stalls == [("long", 0.03)]


def test_a_long_section_of_input_that_reported_itself_is_not_counted_again():
    watch = Stopwatch()

    async def main() -> None:
        watch.monitor.begin_input()
        started_s = watch.now_s
        watch.work("garbage collection", 0.04)
        watch.now_s += 0.01
        watch.monitor.end_long_input("POST /v1/produce", started_s, watch.now_s - started_s)
        watch.now_s += 0.03
        watch.monitor.end_long_input("POST /v1/claim", watch.now_s - 0.03, 0.03)

    asyncio.run(main())
    assert watch.stalls == [("garbage collection", 0.04), ("POST /v1/claim", 0.03)]

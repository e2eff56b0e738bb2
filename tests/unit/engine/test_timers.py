"""The timer of an engine: what is due is swept in slices, with a pause after each that left something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from driftq.core.model.commands import Sweep
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.schedules import FireSchedules
from driftq.engine.loop_monitor import LoopMonitor
from driftq.engine.timers import FIRING_PAUSE_S, LATE_PAUSE_S, PAUSE_S, DeadlineTimer, pause_s
from tests.support.broker_fixture import BrokerFixture

LEASE_MS = 30_000


def fired(expired: int, check: Callable[[BrokerFixture, float], None]) -> None:
    """Three messages are held and some of their leases run out; a sweep ends two. `check` gets the delay after which
    the timer fires again."""

    async def run() -> None:
        fixture = BrokerFixture(BrokerLimits(sweep_max=2))
        fixture.topic()
        fixture.produce("a", "b", "c")
        for number in range(3):
            fixture.claim(1, lease_ms=LEASE_MS if number < expired else 10 * LEASE_MS)
        timer = DeadlineTimer(fixture.broker, fixture.clock, fixture.do, LoopMonitor())
        fixture.clock.move(LEASE_MS)
        before_s = asyncio.get_running_loop().time()
        timer._fire()
        assert timer._handle is not None
        check(fixture, timer._handle.when() - before_s)
        timer.stop()

    asyncio.run(run())


def in_flight(fixture: BrokerFixture) -> int:
    return fixture.broker.state.topics["t"].groups["g"].progress[0].in_flight


def test_there_is_a_pause_after_a_sweep_that_left_something() -> None:
    def check(fixture: BrokerFixture, delay_s: float) -> None:
        assert in_flight(fixture) == 1
        assert fixture.broker.next_deadline_ms() <= fixture.now_ms  # type: ignore[operator]
        assert delay_s >= PAUSE_S

    fired(3, check)


def test_a_sweep_that_left_nothing_delays_no_deadline() -> None:
    def check(fixture: BrokerFixture, delay_s: float) -> None:
        assert in_flight(fixture) == 2
        next_ms = fixture.broker.next_deadline_ms()
        assert next_ms is not None
        assert next_ms > fixture.now_ms
        left_s = (next_ms - fixture.now_ms) / 1_000
        assert left_s <= delay_s < left_s + 1

    fired(1, check)


def test_firings_that_are_late_wait_for_twice_as_long_as_the_last_ones_took() -> None:
    firings = FireSchedules()
    assert [pause_s(firings, took_s, late_s=1.0) for took_s in (0.0, 0.003, 0.5)] == [LATE_PAUSE_S, 0.006, PAUSE_S]
    assert pause_s(firings, 0.003, late_s=0.001) == FIRING_PAUSE_S, "they are on time: some gather"
    assert pause_s(Sweep(), 0.0, late_s=1.0) == PAUSE_S

"""Many schedules fire without holding the event loop: a tenth of what `bench.schedules` measures, by CPU time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.schedules import fire

SCHEDULES = 10_000
TURN_S = 0.02


@pytest.mark.parametrize("at_once", [False, True], ids=["spread", "at once"])
def test_no_firing_of_many_schedules_holds_the_loop(tmp_path: Path, at_once: bool):
    count = SCHEDULES if not at_once else SCHEDULES // 4
    figures = asyncio.run(fire(str(tmp_path / "data"), count, 10_000, 2.0 if not at_once else 120.0, at_once=at_once))
    assert len(figures.late_ms) >= (count if at_once else count // 10)
    assert min(figures.late_ms) >= 0
    assert figures.turn_s < TURN_S, figures.cause

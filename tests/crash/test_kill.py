"""A real process on real files is killed at random moments under load, over and over on the same folder. Nothing that
was acknowledged is lost, nothing is there twice, order is kept, and what was acked never comes again."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.kill_loop import Run, run_and_settle, run_until_caught

CYCLES = {"dev": 12, "ci": 50, "release": 1_000}


def test_killed_at_any_moment_it_keeps_every_promise(tmp_path, profile, seed):
    lives = Run(str(tmp_path / "data"), seed)
    asyncio.run(run_and_settle(lives, CYCLES[profile]))
    assert len(lives.snapshots) > 2, "no checkpoint was ever started from"
    assert lives.ledger.closed, "no stream was ever closed"
    figures = f"{CYCLES[profile]} kills, {lives.answers} answers, {len(lives.ledger.stored)} stored,"
    print(f"{figures} {len(lives.ledger.acked)} acked, {len(lives.snapshots)} snapshots, {lives.torn} torn tails")


@pytest.mark.parametrize("mutation", ["reply_first", "forget_acks", "forget_producers"])
def test_a_broken_engine_is_caught(tmp_path, seed, mutation):
    lives = Run(str(tmp_path / "data"), seed, "--mutate", mutation)
    assert asyncio.run(run_until_caught(lives, 30))

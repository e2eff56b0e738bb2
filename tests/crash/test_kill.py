"""A real process on real files is killed at random moments under load, many times on the same folder. Nothing that was
acknowledged is lost or duplicated, order is kept, and an acked message is never delivered again."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.kill_loop import KillLoop, run_and_settle, run_until_caught

CYCLES = {"dev": 12, "ci": 50, "release": 1_000}


def test_a_broker_that_is_killed_at_random_moments_keeps_every_promise(tmp_path, profile, seed):
    loop = KillLoop(str(tmp_path / "data"), seed)
    asyncio.run(run_and_settle(loop, CYCLES[profile]))
    assert len(loop.snapshots) > 2, "no start read a checkpoint"
    assert loop.ledger.closed, "no stream was ever closed"
    figures = f"{CYCLES[profile]} kills, {loop.replies} replies, {len(loop.ledger.stored)} stored,"
    print(f"{figures} {len(loop.ledger.acked)} acked, {len(loop.snapshots)} snapshots, {loop.torn} torn tails")


@pytest.mark.parametrize("mutation", ["reply_first", "forget_acks", "forget_producers"])
def test_the_audit_notices_an_engine_that_is_broken_on_purpose(tmp_path, seed, mutation):
    loop = KillLoop(str(tmp_path / "data"), seed, "--mutate", mutation)
    assert asyncio.run(run_until_caught(loop, 30))

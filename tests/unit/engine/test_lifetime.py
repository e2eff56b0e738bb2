"""The life of an engine: it ends once, and a failure ends every call that is still open."""

from __future__ import annotations

import asyncio

import pytest

from driftq.core.model.replies import Swept
from driftq.engine.lifetime import EngineStopped, Lifetime


def test_a_failure_ends_open_calls_and_leaves_answered_ones_alone():
    async def run() -> None:
        life = Lifetime()
        answered, cancelled, waiting = life.new_call(), life.new_call(), life.new_call()
        for call in (answered, cancelled, waiting):
            life.watch(call)
        answered.set_result(Swept(()))
        cancelled.cancel()
        life.fail(OSError("the disk is gone"))
        assert answered.result() == Swept(())
        assert cancelled.cancelled()
        with pytest.raises(EngineStopped, match="the disk is gone"):
            await waiting
        with pytest.raises(EngineStopped, match="the disk is gone") as stopped:
            await life.stopped
        assert isinstance(stopped.value.__cause__, OSError)

    asyncio.run(run())


def test_a_closed_engine_takes_no_calls_and_did_not_fail():
    async def run() -> None:
        life = Lifetime()
        assert not life.is_over
        assert life.close()
        assert life.is_over
        assert await life.stopped is None
        with pytest.raises(EngineStopped):
            life.raise_stopped()

    asyncio.run(run())


def test_closing_a_failed_engine_keeps_the_failure():
    async def run() -> None:
        life = Lifetime()
        life.fail(OSError("the disk is gone"))
        assert not life.close()
        with pytest.raises(EngineStopped, match="has stopped") as stopped:
            life.raise_stopped()
        assert str(stopped.value.__cause__) == "the disk is gone"

    asyncio.run(run())

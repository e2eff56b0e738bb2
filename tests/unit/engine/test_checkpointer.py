"""Checkpoints by the number of frames, and a stop that does not take long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from driftq.core.model import commands as c
from driftq.core.model.replies import Rejected
from driftq.core.state.logs import Log
from driftq.core.state.state import State
from driftq.engine import checkpointer
from driftq.engine.checkpointer import Checkpointer
from driftq.engine.engine import Engine
from driftq.engine.snapshot_store import NoSnapshots
from driftq.storage.disk import OsDisk
from driftq.storage.journal import MemoryJournal
from driftq.storage.log_store import MemoryLogStore
from driftq.storage.snapshots import snapshot_lsns
from tests.support.wait import until

STREAMS = 60


async def filled(folder: Path) -> Engine:
    engine = await Engine.open(str(folder))
    replies = await asyncio.gather(*(engine.submit(c.CreateStream(f"s/{number}")) for number in range(STREAMS)))
    assert not any(isinstance(reply, Rejected) for reply in replies)
    return engine


def snapshots_in(folder: Path) -> list[int]:
    return snapshot_lsns(OsDisk(), f"{folder}/snapshots")


def test_a_checkpoint_does_not_wait_for_a_full_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "FRAMES_MAX", STREAMS)

    async def scenario() -> None:
        engine = await filled(tmp_path / "data")

        async def has_snapshot() -> bool:
            return bool(snapshots_in(tmp_path / "data"))

        await until(has_snapshot, 30)
        await engine.submit(c.CreateStream("after"))
        await engine.close()
        again = await Engine.open(str(tmp_path / "data"))
        assert again.report is not None
        assert again.report.snapshot_lsn == STREAMS
        assert again.report.replayed == 1
        assert len(again.latest_state.streams.by_path) == STREAMS + 1
        await again.close()

    asyncio.run(scenario())


def test_a_large_state_waits_for_more_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "FRAMES_MAX", 1)
    state = State()
    journal = MemoryJournal()
    due = Checkpointer(journal, MemoryLogStore(), NoSnapshots(), state, journal.tail_lsn)
    for log_id in range(100):
        state.logs[log_id] = Log(log_id)
    journal.append(0, [b"frame"] * 49)
    assert not due.has_many_frames()
    journal.append(49, [b"frame"])
    assert due.has_many_frames()


def test_no_checkpoint_covers_frames_that_the_log_store_does_not_have_yet() -> None:
    class ClosedJournal(MemoryJournal):
        def closed_lsn(self) -> int:
            return self.tail_lsn()

    async def scenario() -> None:
        journal = ClosedJournal()
        journal.append(0, [b"frame"] * 3)
        stored_lsn = 2
        due = Checkpointer(journal, MemoryLogStore(), NoSnapshots(), State(), lambda: stored_lsn)
        assert not due.is_due()
        stored_lsn = 3
        assert due.is_due()

    asyncio.run(scenario())


@pytest.mark.parametrize("items_max", [STREAMS // 2, STREAMS * 2])
def test_a_stop_leaves_a_snapshot_only_if_that_is_quick(
    items_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "FINISH_FRAMES_MIN", STREAMS // 2)
    monkeypatch.setattr(checkpointer, "FINISH_ITEMS_MAX", items_max)

    async def scenario() -> None:
        await (await filled(tmp_path / "data")).close()

    asyncio.run(scenario())
    assert snapshots_in(tmp_path / "data") == ([STREAMS] if items_max > STREAMS else [])

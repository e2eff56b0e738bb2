"""A copy of a broker's data that is made under load, with the broker killed on the way, holds what was acknowledged."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

from driftq.repair.verify import verify
from driftq.storage.backup import HOLD, FolderCopy, FrozenFolder, freeze
from driftq.storage.disk import OsDisk
from driftq.storage.snapshots import snapshot_lsns
from tests.crash.broker_run import BrokerProcess
from tests.crash.load import PARTITIONS, TOPIC, Ledger, clients
from tests.support.wait import until

COPIES = 4


def newest_snapshot(data: Path) -> int:
    """The lsn of the newest snapshot; 0 before the first."""
    return max(snapshot_lsns(OsDisk(), str(data / "snapshots")), default=0)


async def loaded(ledger: Ledger, data: Path, count: int, snapshot: int) -> None:
    """Wait until the load has stored `count` more messages, and a snapshot of at least this lsn is on disk."""
    enough = len(ledger.stored) + count

    async def is_loaded() -> bool:
        return len(ledger.stored) >= enough and newest_snapshot(data) >= snapshot

    await until(is_loaded, 60)


def written(frozen: FrozenFolder, target: Path) -> None:
    """What `driftq backup` does with the files it has noted."""
    folder = FolderCopy(str(target))
    try:
        for entry in frozen.entries():
            folder.add(entry.name, entry.pieces())
    finally:
        frozen.close()
    folder.finish()


async def audited(target: Path, acknowledged: Ledger) -> None:
    """The copy opens, twice, the second time after a kill, and holds what the ledger says."""
    for _ in range(2):
        broker = await BrokerProcess.start(str(target))
        await acknowledged.audit(broker, from_the_start=True)
        await broker.kill()
    assert not acknowledged.violations, acknowledged.violations[:5]


def test_a_copy_under_load_is_sound_and_holds_what_was_acknowledged_before(tmp_path, seed):
    async def scenario() -> None:
        data = tmp_path / "data"
        ledger = Ledger()
        load = clients(ledger, seed)
        for number in range(COPIES):
            broker = await BrokerProcess.start(str(data))
            if not number:
                await broker.ask("topic", topic=TOPIC, partitions=PARTITIONS)
            working = [asyncio.ensure_future(client.work(broker)) for client in load]
            await loaded(ledger, data, 300, min(number, 1))  # all copies but the first begin at a snapshot
            before = copy.deepcopy(ledger)  # acknowledged before the backup begins
            frozen = await asyncio.to_thread(freeze, str(data))
            if number % 2:
                copying = asyncio.create_task(asyncio.to_thread(written, frozen, tmp_path / f"copy-{number}"))
                await broker.kill()  # in the middle of the copy
                await copying
            else:
                # Checkpoints remove files that the copy needs.
                await loaded(ledger, data, 600, newest_snapshot(data) + 1)
                await asyncio.to_thread(written, frozen, tmp_path / f"copy-{number}")
                await broker.kill()
            await asyncio.gather(*working)
            report = verify(OsDisk(), str(tmp_path / f"copy-{number}"))
            assert not report.findings, report.findings
            assert report.last_lsn == frozen.lsn
            assert report.snapshots or not number
            before.sent = ledger.sent  # what was under way may be in the copy
            await audited(tmp_path / f"copy-{number}", before)
            assert not list(data.glob(f"{HOLD}*"))

    asyncio.run(scenario())

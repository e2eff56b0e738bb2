"""A copy of a broker's data that is made under load, with the broker killed on the way, holds what was acknowledged."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

from driftq.repair.verify import verify
from driftq.storage.backup import HOLD, FolderCopy, FrozenFolder, freeze
from driftq.storage.disk import OsDisk
from tests.crash.broker_run import BrokerProcess
from tests.crash.load import PARTITIONS, TOPIC, Ledger, clients
from tests.support.wait import until

COPIES = 4


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
        checkpoints = 0
        for number in range(COPIES):
            broker = await BrokerProcess.start(str(data))
            if not number:
                await broker.ask("topic", topic=TOPIC, partitions=PARTITIONS)
            working = [asyncio.ensure_future(client.work(broker)) for client in load]
            enough = len(ledger.stored) + 300

            async def has_more(enough: int = enough) -> bool:
                return len(ledger.stored) >= enough

            await until(has_more, 60)
            before = copy.deepcopy(ledger)  # acknowledged before the backup begins
            frozen = await asyncio.to_thread(freeze, str(data))
            if number % 2:
                copying = asyncio.create_task(asyncio.to_thread(written, frozen, tmp_path / f"copy-{number}"))
                await broker.kill()  # in the middle of the copy
                await copying
            else:
                later = len(ledger.stored) + 600

                async def has_grown(later: int = later) -> bool:
                    return len(ledger.stored) >= later

                await until(has_grown, 60)  # checkpoints remove files that the copy needs
                await asyncio.to_thread(written, frozen, tmp_path / f"copy-{number}")
                await broker.kill()
            await asyncio.gather(*working)
            report = verify(OsDisk(), str(tmp_path / f"copy-{number}"))
            assert not report.findings, report.findings
            assert report.last_lsn == frozen.lsn
            checkpoints += bool(report.snapshots)
            before.sent = ledger.sent  # what was under way may be in the copy
            await audited(tmp_path / f"copy-{number}", before)
            assert not list(data.glob(f"{HOLD}*"))
        assert checkpoints >= COPIES - 1, "most copies begin at a snapshot"

    asyncio.run(scenario())

"""A folder that is copied while its broker runs, in the order of the guide, opens again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from driftq.repair.verify import verify
from driftq.storage.disk import OsDisk
from tests.crash.broker_run import BrokerProcess
from tests.crash.load import PARTITIONS, TOPIC, Ledger, clients
from tests.support.wait import until

COPIES = 4


def copied(folder: Path, target: Path) -> Path:
    """The steps of docs/guides/operating.md."""
    shutil.rmtree(target, ignore_errors=True)
    (target / "journal").mkdir(parents=True)
    shutil.copy(folder / "FORMAT", target)
    (target / "snapshots").mkdir()
    for path in (folder / "snapshots").glob("*.snapshot"):
        shutil.copy(path, target / "snapshots")
    shutil.copy(folder / "journal" / "watermark", target / "journal")
    for path in sorted((folder / "journal").glob("*.journal")):
        shutil.copy(path, target / "journal")
    shutil.copytree(folder / "logs", target / "logs")
    return target


def test_a_copy_of_a_running_broker_is_sound_and_holds_what_was_acknowledged_before(tmp_path, seed):
    async def scenario() -> None:
        ledger = Ledger()
        broker = await BrokerProcess.start(str(tmp_path / "data"))
        await broker.ask("topic", topic=TOPIC, partitions=PARTITIONS)
        load = [asyncio.ensure_future(client.work(broker)) for client in clients(ledger, seed)]
        for _ in range(COPIES):
            more = len(ledger.stored) + 100

            async def has_more(more: int = more) -> bool:
                return len(ledger.stored) >= more

            await until(has_more, 30)
            stored = dict(ledger.stored)

            async def is_copied(stored: dict[str, tuple[str, int]] = stored) -> bool:
                try:
                    copy = await asyncio.to_thread(copied, tmp_path / "data", tmp_path / "copy")
                except (FileNotFoundError, shutil.Error):
                    return False  # a checkpoint removed a file: copy again
                verdict = verify(OsDisk(), str(copy))
                if verdict.findings:
                    assert all(finding.reason.startswith("the journal begins at") for finding in verdict.findings), (
                        verdict
                    )
                    return False  # two checkpoints happened: copy again
                return await holds(copy, stored)

            await until(is_copied, 60)
        await broker.kill()
        await asyncio.gather(*load)

    async def holds(copy: Path, stored: dict[str, tuple[str, int]]) -> bool:
        broker = await BrokerProcess.start(str(copy))
        for partition in range(PARTITIONS):
            records = (await broker.ask("read", topic=TOPIC, partition=partition, offset=0))["records"]
            values = dict(map(tuple, records))
            for value, (log, offset) in stored.items():
                assert log != f"{TOPIC}/{partition}" or values.get(offset) == value
        assert await broker.stop() == 0
        return True

    asyncio.run(scenario())

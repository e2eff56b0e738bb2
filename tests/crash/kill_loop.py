"""The lives of one folder: a process is started on it, audited, loaded and ended, over and over."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from tests.crash.broker_run import BrokerProcess, Ended, Gone
from tests.crash.forkserver import Nursery
from tests.crash.load import PARTITIONS, TOPIC, Ledger, Worker, clients
from tests.support.wait import until

LONGEST_S = 0.3
SNAPSHOT_S = 10.0


class Run:
    """The lives of one folder."""

    def __init__(self, folder: str, seed: int, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.ledger = Ledger()
        self.clients = clients(self.ledger, seed)
        self.random = random.Random(seed)
        self.snapshots: set[int] = set()
        self.answers = 0
        self.torn = 0
        self.count = 0
        self.now: BrokerProcess | None = None
        self.next: asyncio.Task[BrokerProcess] | None = None
        self.nursery: Nursery | None = None

    async def life(self) -> None:
        """Start, audit, load, kill."""
        broker = await self.start()
        await self.ledger.audit(broker)
        load = [asyncio.ensure_future(client.work(broker)) for client in self.clients]
        await self.moment(broker)
        await self.strike(broker)
        await asyncio.gather(*load)
        self.answers += broker.heard

    async def moment(self, broker: BrokerProcess) -> None:
        """Let it work for a while; every sixth life until it has made a snapshot."""
        self.count += 1
        ending = asyncio.ensure_future(broker.process.wait())
        if self.count % 6 == 3:
            before = self.snapshot_names()
            with contextlib.suppress(AssertionError):  # a slow machine may not come to it
                await until(lambda: _is(self.snapshot_names() != before or ending.done()), SNAPSHOT_S)
        # Waiting for an end that does not come is how the moment passes; one that does come is a failure.
        done, _ = await asyncio.wait([ending], timeout=self.random.uniform(0.01, LONGEST_S))
        if done:
            self.ledger.wrong(f"the process ended by itself with {ending.result()}: {await broker.errors()}")
        ending.cancel()

    def snapshot_names(self) -> list[str]:
        folder = Path(self.folder) / "snapshots"
        return sorted(path.name for path in folder.glob("*.snapshot"))

    async def prepare(self) -> BrokerProcess:
        if self.nursery is None:
            self.nursery = await Nursery.open()
        return BrokerProcess(await self.nursery.fork(self.folder, *self.options))

    async def strike(self, broker: BrokerProcess) -> None:
        """How a life ends."""
        await broker.kill()

    async def start(self) -> BrokerProcess:
        prepared = self.next or asyncio.ensure_future(self.prepare())
        broker = await (await prepared).begin()
        self.now = broker
        self.next = asyncio.ensure_future(self.prepare())
        self.snapshots.add(broker.ready["snapshot_lsn"])
        self.torn += bool(broker.ready["torn_bytes"])
        await broker.ask("topic", topic=TOPIC, partitions=PARTITIONS)
        return broker

    async def end(self) -> None:
        """Whatever runs, and the life that was prepared and is not needed."""
        if self.now is not None:
            await self.now.kill()
        if self.next is not None:
            await (await self.next).kill()
        if self.nursery is not None:
            await self.nursery.close()

    async def settle_everything(self) -> None:
        """The last life: whatever was produced is delivered, and acked, in the end."""
        broker = await self.start()
        await self.ledger.audit(broker, from_the_start=True)
        everything = {
            (partition, offset)
            for partition in range(PARTITIONS)
            for offset in range(self.ledger.checked[f"t/{partition}"])
        }
        workers = [client for client in self.clients if isinstance(client, Worker)]

        for worker in workers:
            worker.nacks = 0.0

        async def is_drained() -> bool:
            """Nothing is fresh, held or waiting. (An ack whose answer was lost is settled without anybody knowing.)"""
            found = await asyncio.gather(*(worker.claim(broker) for worker in workers))
            return all(not said["messages"] and said["next_ms"] is None for said in found)

        await until(is_drained, 60)
        unknown = everything - self.ledger.acked - self.ledger.delivered
        if unknown:
            self.ledger.wrong(f"never delivered: {sorted(unknown)[:5]}")
        stats = await broker.ask("stats")
        assert stats["first_lsn"] > 1, "the journal was never trimmed: no checkpoint took part in this"
        assert await broker.stop() == 0


async def _is(so: bool) -> bool:
    return so


async def run(lives: Run, cycles: int) -> None:
    """Some lives, or as many as there are until a promise is broken."""
    for _ in range(cycles):
        try:
            await lives.life()
        except Gone:
            lives.ledger.wrong("the process ended while it was being audited")
        except Ended as ended:
            lives.ledger.wrong(f"the process did not start: {ended}")
        if lives.ledger.violations:
            break


async def run_and_settle(lives: Run, cycles: int) -> None:
    """Lives, and a last one in which everything comes to its end. No promise may be broken."""
    try:
        await run(lives, cycles)
        if not lives.ledger.violations:
            await lives.settle_everything()
    finally:
        await lives.end()
    assert not lives.ledger.violations, lives.ledger.violations[:10]


async def run_until_caught(lives: Run, cycles: int) -> list[str]:
    """The same with an engine that is broken: what the audit says about it."""
    try:
        await run(lives, cycles)
    finally:
        await lives.end()
    return lives.ledger.violations

"""The kill loop: a broker process is started on one folder, audited, loaded and killed, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from tests.crash.broker_run import BrokerProcess, Ended, Gone
from tests.crash.load import PARTITIONS, TOPIC, Ledger, Worker, clients
from tests.support.forkserver import ForkServer
from tests.support.wait import until

LONGEST_S = 0.3
SNAPSHOT_S = 10.0


class KillLoop:
    """One folder and the processes that are started on it, one after the other."""

    def __init__(self, folder: str, seed: int, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.ledger = Ledger()
        self.clients = clients(self.ledger, seed)
        self.random = random.Random(seed)
        self.snapshots: set[int] = set()
        self.replies = 0
        self.torn = 0
        self.count = 0
        self.now: BrokerProcess | None = None
        self.next: asyncio.Task[BrokerProcess] | None = None
        self.fork_server = ForkServer(("tests.crash.broker_process",))

    async def cycle(self) -> None:
        """Start, audit, load, kill."""
        broker = await self.start()
        await self.ledger.audit(broker)
        load = [asyncio.ensure_future(client.work(broker)) for client in self.clients]
        await self.let_work(broker)
        await self.end_process(broker)
        await asyncio.gather(*load)
        self.replies += broker.replies

    async def let_work(self, broker: BrokerProcess) -> None:
        """Let it work for a while; in every sixth cycle until it has written a snapshot."""
        self.count += 1
        ending = asyncio.ensure_future(broker.process.wait())
        if self.count % 6 == 3:
            before = self.snapshot_names()
            with contextlib.suppress(AssertionError):  # a slow machine may not get that far
                await until(lambda: _is(self.snapshot_names() != before or ending.done()), SNAPSHOT_S)
        # The process must not end by itself in this time.
        done, _ = await asyncio.wait([ending], timeout=self.random.uniform(0.01, LONGEST_S))
        if done:
            self.ledger.wrong(f"the process ended by itself with {ending.result()}: {await broker.errors()}")
        ending.cancel()

    def snapshot_names(self) -> list[str]:
        folder = Path(self.folder) / "snapshots"
        return sorted(path.name for path in folder.glob("*.snapshot"))

    async def prepare(self) -> BrokerProcess:
        return BrokerProcess(await self.fork_server.start_async(self.folder, *self.options))

    async def end_process(self, broker: BrokerProcess) -> None:
        """How a process ends: power cuts override this."""
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
        """Kill the running process and the prepared one."""
        if self.now is not None:
            await self.now.kill()
        if self.next is not None:
            await (await self.next).kill()
        await asyncio.to_thread(self.fork_server.close)

    async def settle_everything(self) -> None:
        """The last process: everything that was produced is delivered and acked."""
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
            """No message is new, held or in backoff. (An ack whose reply was lost may have been settled.)"""
            replies = await asyncio.gather(*(worker.claim(broker) for worker in workers))
            return all(not reply["messages"] and reply["next_ms"] is None for reply in replies)

        await until(is_drained, 60)
        unknown = everything - self.ledger.acked - self.ledger.delivered
        if unknown:
            self.ledger.wrong(f"never delivered: {sorted(unknown)[:5]}")
        stats = await broker.ask("stats")
        assert stats["first_lsn"] > 1, "the journal was never trimmed: there was no checkpoint"
        assert await broker.stop() == 0


async def _is(condition: bool) -> bool:
    return condition


async def run(loop: KillLoop, cycles: int) -> None:
    """Some cycles; stops early when a promise is broken."""
    for _ in range(cycles):
        try:
            await loop.cycle()
        except Gone:
            loop.ledger.wrong("the process ended while it was being audited")
        except Ended as ended:
            loop.ledger.wrong(f"the process did not start: {ended}")
        if loop.ledger.violations:
            break


async def run_and_settle(loop: KillLoop, cycles: int) -> None:
    """Some cycles, and a last process that settles everything. No promise may be broken."""
    try:
        await run(loop, cycles)
        if not loop.ledger.violations:
            await loop.settle_everything()
    finally:
        await loop.end()
    assert not loop.ledger.violations, loop.ledger.violations[:10]


async def run_until_caught(loop: KillLoop, cycles: int) -> list[str]:
    """Runs an engine that is broken on purpose; returns what the audit found."""
    try:
        await run(loop, cycles)
    finally:
        await loop.end()
    return loop.ledger.violations

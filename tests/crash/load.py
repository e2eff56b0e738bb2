"""Clients that load a broker through many restarts, and the ledger of what they may expect from it.

A reply counts from the moment it arrives. If the process ended first, the outcome is unknown: the client repeats the
request under the same number, as a real one does. `Ledger.audit` then compares what was acknowledged with what is
stored.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.crash.broker_run import BrokerProcess, Gone

TOPIC = "t"
PARTITIONS = 2
STREAM_RECORDS = 40
NO = ("Rejected",)


class Ledger:
    """What was sent, what was acknowledged, and what was seen."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.stored: dict[str, tuple[str, int]] = {}  # value -> (log, offset), acknowledged
        self.acked: set[tuple[int, int]] = set()
        self.delivered: set[tuple[int, int]] = set()
        self.closed: dict[str, int] = {}  # path -> number of records
        self.tails: dict[str, int] = {}  # path -> acknowledged records
        self.violations: list[str] = []
        self.checked: dict[str, int] = {}  # log -> offset up to which it was compared
        self.places: dict[str, str] = {}  # value -> where it was seen, to find it twice
        self.finished: set[str] = set()  # closed streams that were compared
        self.last: dict[str, int] = {}  # sender -> its last number that was seen, for the order

    def store(self, value: str, log: str, offset: int) -> None:
        before = self.stored.setdefault(value, (log, offset))
        if before != (log, offset):
            self.violations.append(f"{value} was stored at {before}, and now at {(log, offset)}")

    def wrong(self, text: str) -> None:
        self.violations.append(text)

    async def audit(self, broker: BrokerProcess, *, from_the_start: bool = False) -> None:
        """Compare what is stored with what was acknowledged."""
        if from_the_start:
            self.checked, self.places, self.last, self.finished = {}, {}, {}, set()
        for partition in range(PARTITIONS):
            log = f"{TOPIC}/{partition}"
            ask = {"topic": TOPIC, "partition": partition, "offset": self.checked.get(log, 0)}
            self._compare(log, (await broker.ask("read", **ask))["records"])
        for path in self.tails.keys() - self.finished:
            records = (await broker.ask("read", path=path, offset=0))["records"]
            expected = [[number, f"{path}:{number}"] for number in range(len(records))]
            if records != expected:
                self.wrong(f"{path} holds something else than was appended, in order")
            if len(records) < self.tails[path] or (path in self.closed and len(records) != self.closed[path]):
                self.wrong(f"{path} has {len(records)} records; {self.tails[path]} were acknowledged")
            if path in self.closed:
                self.finished.add(path)  # it cannot change any more; the last audit checks it again

    def _compare(self, log: str, records: list[list[Any]]) -> None:
        start = self.checked.get(log, 0)
        if [offset for offset, _ in records] != list(range(start, start + len(records))):
            self.wrong(f"the offsets of {log} are not dense from {start}")
        for offset, value in records:
            sender, _, number = value.partition(":")
            if value not in self.sent:
                self.wrong(f"{value} in {log} was never sent")
            if value in self.places:
                self.wrong(f"{value} is twice: at {self.places[value]} and at {log} {offset}")
            self.places[value] = f"{log} {offset}"
            if int(number) <= self.last.get(sender, -1):
                self.wrong(f"{value} comes behind {sender}:{self.last[sender]}")
            self.last[sender] = int(number)
        self.checked[log] = start + len(records)
        at = {(log, offset): value for offset, value in records}
        for value, (where, offset) in self.stored.items():
            if where == log and offset >= start and at.get((where, offset)) != value:
                self.wrong(f"{value} was acknowledged at {log} {offset}; there is {at.get((where, offset))}")


class Client:
    """A client that continues through restarts of the broker. `turn` is one small piece of work."""

    def __init__(self, ledger: Ledger, name: str, seed: int) -> None:
        self.ledger = ledger
        self.name = name
        self.random = random.Random(f"{seed}/{name}")

    async def turn(self, broker: BrokerProcess) -> None:
        raise NotImplementedError

    async def work(self, broker: BrokerProcess) -> None:
        """Until the process has ended."""
        try:
            while True:
                await self.turn(broker)
        except Gone:
            return


class Producer(Client):
    """Sends numbered values, each with its own producer sequence; repeats one until it has a reply."""

    def __init__(self, ledger: Ledger, name: str, seed: int) -> None:
        super().__init__(ledger, name, seed)
        self.partition = self.random.randrange(PARTITIONS)
        self.seq = 0

    async def turn(self, broker: BrokerProcess) -> None:
        value = f"{self.name}:{self.seq}"
        self.ledger.sent.add(value)
        reply = await broker.ask("produce", topic=TOPIC, partition=self.partition, values=[value], **self.identity())
        if reply["reply"] in NO:
            self.ledger.wrong(f"{value} was refused: {reply['message']}")
            raise Gone
        if reply["first_offset"] >= 0:
            self.ledger.store(value, f"{TOPIC}/{reply['partition']}", reply["first_offset"])
        self.seq += 1

    def identity(self) -> dict[str, Any]:
        return {"producer": self.name, "seq": self.seq}


class KeyedProducer(Producer):
    """The same with an idempotency key instead of a sequence."""

    def identity(self) -> dict[str, Any]:
        return {"key": f"{self.name}:{self.seq}"}


class Worker(Client):
    """Claims, and acks most of what it gets."""

    nacks = 0.1

    async def turn(self, broker: BrokerProcess) -> None:
        await self.claim(broker)

    async def claim(self, broker: BrokerProcess) -> dict[str, Any]:
        ledger = self.ledger
        done_before = set(ledger.acked)  # acknowledged before the claim was sent: must not be delivered again
        reply = await broker.ask("claim", topic=TOPIC, owner=self.name, max=4)
        if reply["reply"] in NO:
            ledger.wrong(f"a claim was refused: {reply['message']}")
            raise Gone
        for partition, offset, _ in reply["messages"]:
            if (partition, offset) in done_before:
                ledger.wrong(f"{TOPIC}/{partition} {offset} was acked and is delivered again")
            ledger.delivered.add((partition, offset))
        await asyncio.gather(*(self.settle(broker, reply["token"], *message[:2]) for message in reply["messages"]))
        return reply

    async def settle(self, broker: BrokerProcess, token: str, partition: int, offset: int) -> None:
        do = "nack" if self.random.random() < self.nacks else "ack"
        reply = await broker.ask(do, topic=TOPIC, owner=self.name, partition=partition, offset=offset, token=token)
        if do == "ack" and reply["reply"] == "Settlement" and not reply["refused"]:
            self.ledger.acked.add((partition, offset))


class Appender(Client):
    """Appends to streams record by record with If-Match, and closes each with its last record."""

    def __init__(self, ledger: Ledger, name: str, seed: int) -> None:
        super().__init__(ledger, name, seed)
        self.number = 0
        self.tail = 0
        self.is_created = False

    async def turn(self, broker: BrokerProcess) -> None:
        path = f"/{self.name}/{self.number}"
        ledger = self.ledger
        if not self.is_created:
            await broker.ask("stream", path=path)
            ledger.tails.setdefault(path, 0)
            self.is_created = True
        close = self.tail + 1 == STREAM_RECORDS
        ask = {"path": path, "value": f"{path}:{self.tail}", "if_match": self.tail, "close": close}
        reply = await broker.ask("append", **ask)
        if reply["reply"] == "Rejected":
            # The reply of the last process may have been lost. Then the record is stored, once.
            records = (await broker.ask("read", path=path, offset=self.tail))["records"]
            if records != [[self.tail, ask["value"]]]:
                ledger.wrong(f"{path} refused {self.tail} ({reply['message']}) and holds {records}")
                raise Gone
        self.tail += 1
        ledger.tails[path] = self.tail
        if close:
            ledger.closed[path] = self.tail
            self.number, self.tail, self.is_created = self.number + 1, 0, False
            late = await broker.ask("append", path=path, value="late", if_match=None, close=False)
            if late.get("code") != "CLOSED":
                ledger.wrong(f"{path} is closed and took a record: {late}")


def clients(ledger: Ledger, seed: int) -> list[Client]:
    return [
        *(Producer(ledger, f"p{number}", seed) for number in range(6)),
        *(KeyedProducer(ledger, f"k{number}", seed) for number in range(3)),
        *(Worker(ledger, f"w{number}", seed) for number in range(3)),
        *(Appender(ledger, f"s{number}", seed) for number in range(2)),
    ]

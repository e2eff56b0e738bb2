"""A random history: clients that send every kind of command, and the frames that result."""

from __future__ import annotations

import random

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.replies import Claimed, Rejected
from tests.support.broker_fixture import BrokerFixture, held, packed, produce


class RandomCommands:
    """Clients that send every kind of command, in random order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fixture = BrokerFixture(seed=seed)
        self.claims: list[tuple[str, str, Claimed]] = []
        self.seqs: dict[str, int] = {}
        self.values = 0

    def run(self, steps: int) -> list[bytes]:
        actions = [self.produce] * 6 + [self.claim] * 5 + [self.settle] * 6 + [self.stream] * 3
        actions += [self.stage, self.administer, self.wait]
        self.fixture.do(c.CreateTopic("t0", 2))
        for _ in range(steps):
            self.random.choice(actions)()
        return self.fixture.journal

    def topic(self) -> str:
        return self.random.choice(["t0", "t0", "t1"])

    def value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def produce(self) -> None:
        pick = self.random
        topic, partition = self.topic(), pick.randrange(2)
        values = [self.value() for _ in range(pick.choice([1, 1, 3]))]
        marks: tuple[f.RecordSchedule, ...] = ()
        producer = None
        if pick.random() < 0.3:
            delay_ms = pick.choice([0, 0, 500])
            not_before_ms = self.fixture.now_ms + delay_ms if delay_ms else 0
            marks = (f.RecordSchedule(0, pick.randrange(3), pick.choice(["", "a"]), "", not_before_ms),)
        if pick.random() < 0.3:
            name = f"{topic}/{partition}"
            producer = f.ProducerSequence(name, 1, self.seqs.get(name, 0), 7)
        reply = self.fixture.do(produce(*values, topic=topic, partition=partition, marks=marks, producer=producer))
        if producer is not None and not isinstance(reply, Rejected):
            self.seqs[producer.producer] = producer.seq + 1

    def claim(self) -> None:
        topic, group = self.topic(), self.random.choice(["g", "h"])
        reply = self.fixture.do(c.Claim(topic, group, "w", self.random.randrange(1, 6), 1_000))
        if isinstance(reply, Claimed) and reply.deliveries:
            self.claims.append((topic, group, reply))

    def settle(self) -> None:
        if not self.claims:
            return
        pick = self.random
        topic, group, claimed = self.claims.pop(pick.randrange(len(self.claims)))
        for delivery in claimed.deliveries:
            runs = held((delivery.first, delivery.end), partition=delivery.partition, token=claimed.token)
            kind = pick.choice([c.Ack, c.Ack, c.Ack, c.Nack, c.ReleaseMessages, c.RejectMessages, c.Extend])
            self.fixture.do(kind(topic, group, "w", runs))

    def stream(self) -> None:
        pick = self.random
        path = pick.choice(["/a", "/b", "/c"])
        batch, count, size = packed(self.value())
        kind = pick.randrange(8)
        if kind == 0:
            self.fixture.do(c.CreateStream(path, "text/plain"))
        elif kind == 1:
            self.fixture.do(c.CreateStream(path, "text/plain", source=pick.choice(["/a", "/b"])))
        elif kind == 2:
            self.fixture.do(c.DeleteStream(path))
        else:
            self.fixture.do(c.AppendStream(path, "text/plain", batch, count, size, close=kind == 3))

    def stage(self) -> None:
        batch, count, size = packed(self.value())
        number = self.random.randrange(1_000)
        self.fixture.do(c.Stage("w", f"h{number}", batch, count, size, topic="t0", partition=0))
        if self.random.random() < 0.6:
            self.fixture.do(c.Publish("w", self.fixture.now_ms, (f"h{number}",)))

    def administer(self) -> None:
        pick = self.random
        topic, group = self.topic(), pick.choice(["g", "h"])
        command = pick.choice(
            [
                c.CreateTopic("t1", 2),
                c.CreateTopic("t1", 2),
                c.DeleteTopic("t1"),
                c.DeleteGroup(topic, group),
                c.SeekGroup(topic, group, "earliest"),
                c.PauseGroup(topic, group, pick.random() < 0.5),
                c.TrimTopic(topic, 0, pick.randrange(5)),
            ]
        )
        self.fixture.do(command)

    def wait(self) -> None:
        self.fixture.advance(self.random.choice([1, 100, 1_500]))

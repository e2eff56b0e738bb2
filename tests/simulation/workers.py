"""Workers: they claim, then ack, nack, release, reject, extend, or die and return too late. Some ack with their next
claim.

A worker knows only its deliveries and their tokens. What it drops stays leased until the lease expires; what it keeps
too long it tries to settle with a stale token.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected, Reply, Settlement
from driftq.wire.errors import Code
from tests.simulation.actors import KIND, PATHS, TASKS, Actor
from tests.simulation.operation import Operation
from tests.simulation.world import World


class Item(NamedTuple):
    """A delivered run of messages."""

    topic: str
    group: str
    owner: str
    partition: int
    first: int
    end: int
    token: str


class Worker(Actor):
    """One consumer of one group."""

    kind = "worker"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        topic = self.topic()
        self.topic_name = f"dlq.{topic}" if number % 5 == 4 else topic
        self.group = f"g{number % 2}"
        self.owner = self.name
        self.items: list[Item] = []
        self.ghosts: list[Item] = []  # what it held before it died or stopped working
        self.retry: list[c.Command] = []
        self.concluded: list[c.CommitOutcome] = []  # the last ones, to be sent again
        self.claiming = 0
        self.reports = Random(f"reports {world.swarm.seed} {self.name}")  # apart, so that seeds keep their runs

    def act(self) -> None:
        chance = self.random.random
        if self.retry and chance() < 0.4:
            self.ask(self.retry.pop())
        elif self.concluded and chance() < 0.04:
            self.conclude_again(self.random.choice(self.concluded))
        elif self.ghosts and chance() < 0.06:
            ghost = self.ghosts.pop(int(chance() * len(self.ghosts)))
            if chance() < 0.3:
                self.conclude(ghost, (ghost.topic, ghost.group, ghost.owner), (self.held(ghost),))
            else:
                self.settle(ghost)
        elif self.items and (self.claiming or len(self.items) > 4 or chance() < 0.6):
            self.work()
        elif self.claiming < 2:
            self.claim()

    def claim(self) -> None:
        chance = self.random.random
        lease_ms = 100 + int(chance() * self.world.swarm.lease_ms) if chance() < 0.9 else None
        task = self.random.choice(TASKS) or None if chance() < 0.2 else None
        label = "l" if chance() < 0.05 else None
        self.claiming += 1
        count = 1 + int(chance() * 8)
        acks = self.finished() if chance() < 0.4 else ()
        max_bytes = 600 if count % 3 == 0 else 0  # two or three messages, or a few more if they are small
        claim = c.Claim(
            self.topic_name, self.group, self.owner, count, lease_ms, "earliest", task, label, acks, max_bytes
        )
        self.ask(claim, "claim")

    def finished(self) -> tuple[c.Held, ...]:
        """What it acks with its next claim: some of its items, and now and then one that it lost long ago."""
        chance = self.random.random
        items = [self.items.pop() for _ in range(min(len(self.items), int(chance() * 4)))]
        if self.ghosts and chance() < 0.4:
            items.append(self.ghosts.pop(int(chance() * len(self.ghosts))))
        taken: set[tuple[int, int]] = set()
        acks = []
        for item in items:
            offsets = {(item.partition, offset) for offset in range(item.first, item.end)}
            if not offsets & taken:
                acks.extend(self.with_results(self.held(item)))
                taken |= offsets
        return tuple(acks)

    def with_results(self, held: c.Held) -> tuple[c.Held, ...]:
        """Some messages of a run with a result of their own."""
        if self.reports.random() < 0.6:
            return (held,)
        self.sent += 1
        result = f'"{self.name}.{self.sent}"'.encode()
        first, rest = c.Held(held.partition, held.first, held.first + 1, held.token, result), held.first + 1
        return (first, c.Held(held.partition, rest, held.end, held.token)) if rest < held.end else (first,)

    def work(self) -> None:
        chance = self.random.random
        index = int(chance() * len(self.items))
        item = self.items.pop(index)
        roll = chance()
        if roll < 0.03:
            self.ghosts = [*self.ghosts[-10:], item, *self.items]
            self.items = []
            return
        if item.end - item.first > 1 and roll < 0.4:
            middle = item.first + 1 + int(chance() * (item.end - item.first - 1))
            self.items.append(item._replace(first=middle))
            item = item._replace(end=middle)
        if roll > 0.95:
            self.extend(item)
            self.items.append(item)
            return
        if chance() < 0.04:
            self.ghosts = [*self.ghosts[-10:], item]
        self.settle(item)

    def extend(self, item: Item) -> None:
        lease_ms = 100 + int(self.random.random() * self.world.swarm.lease_ms)
        held = self.held(item)
        if held.end == held.first + 1 and self.reports.random() < 0.5:
            self.sent += 1
            held = c.Held(held.partition, held.first, held.end, held.token, progress=b"%d" % self.sent)
        self.ask(c.Extend(item.topic, item.group, item.owner, (held,), lease_ms), item)

    def held(self, item: Item) -> c.Held:
        token = item.token if self.random.random() < 0.93 else ""
        return c.Held(item.partition, item.first, item.end, token)

    def settle(self, item: Item) -> None:
        chance = self.random.random
        held = (self.held(item),)
        names = (item.topic, item.group, item.owner)
        roll = chance()
        if roll < 0.58:
            self.ask(c.Ack(*names, self.with_results(held[0])), item)
        elif roll < 0.74:
            delay_ms = int(chance() * 500) if chance() < 0.3 else None
            traceback = "at line 7" if self.reports.random() < 0.5 else ""
            self.ask(c.Nack(*names, held, "broken", delay_ms, traceback), item)
        elif roll < 0.82:
            self.ask(
                c.ReleaseMessages(*names, held, chance() < 0.6, int(chance() * 100) if chance() < 0.3 else 0), item
            )
        elif roll < 0.86:
            self.ask(c.RejectMessages(*names, held, "bad"), item)
        elif roll < 0.88:
            self.ask(c.AckThrough(*names, item.partition, item.end - 1, held[0].token), item)
        elif roll < 0.90:
            self.extend(item)
        else:
            self.conclude(item, names, held)

    def conclude(self, item: Item, names: tuple[str, str, str], held: tuple[c.Held, ...]) -> None:
        """Settle the work with one outcome."""
        chance = self.random.random
        produces: tuple[c.Produce, ...] = ()
        appends: tuple[c.AppendStream, ...] = ()
        if chance() < 0.8:
            batch, count, size = self.batch()
            once = c.ProduceKey("", self.topic(), f"{self.name}/{self.sent}", self.sent) if chance() < 0.3 else None
            topic = once.topic if once else self.topic()
            produces = (c.Produce(topic, batch, count, size, b"", None, None, once),)
        if chance() < 0.7:
            batch, count, size = self.batch()
            if_match = int(chance() * 20) if chance() < 0.2 else None
            path = self.random.choice(PATHS)
            appends = (c.AppendStream(path, KIND, batch, count, size, None, "", if_match),)
        digest = f"{self.name}.{self.sent}".encode()
        acks = (c.Ack(*names, self.with_results(held[0])),)
        outcome = c.CommitOutcome(acks, produces, appends, digest=digest)
        if held[0].token:
            self.concluded = [*self.concluded[-5:], outcome]
        self.ask(outcome, item)

    def conclude_again(self, outcome: c.CommitOutcome) -> None:
        """Repeat an outcome whose reply was lost, or send another one under the same tokens."""
        if self.random.random() < 0.2:
            batch, count, size = self.batch()
            produces = (c.Produce(self.topic(), batch, count, size),)
            outcome = c.CommitOutcome(outcome.acks, produces, digest=f"{self.name}.{self.sent}".encode())
        self.ask(outcome)

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if op.note == "claim":
            self.claiming -= 1
        if isinstance(reply, Claimed):
            command = op.command
            assert isinstance(command, c.Claim)
            self.world.counts["acks with a claim"] += len(command.acks)
            self.world.counts["stale settles refused"] += len(reply.refused)
            for delivery in reply.deliveries:
                names = (command.topic, command.group, command.owner)
                self.items.append(Item(*names, delivery.partition, delivery.first, delivery.end, reply.token))
        elif isinstance(reply, Settlement) and reply.refused:
            self.world.counts["stale settles refused"] += len(reply.refused)
        elif isinstance(reply, Rejected) and reply.code is Code.DISK_FULL and isinstance(op.note, Item):
            self.items.append(op.note)

    def on_unknown(self, op: Operation) -> None:
        if op.note == "claim":
            self.claiming -= 1
        elif self.random.random() < 0.5 and (
            not isinstance(op.command, c.CommitOutcome) or op.command in self.concluded
        ):
            self.retry.append(op.command)  # an outcome without a token is not recognised as a repeat

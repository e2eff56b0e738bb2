"""Subscribers to streams, clients that query logs and producers, and one that redrives dead letters."""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model import subscriptions as w
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.queries import ListStreams, ReadPartition, ReadProducer, ReadStates, ReadStream, ReadSubscription
from driftq.core.model.replies import Reply
from driftq.core.model.stream_facts import PULL_WAKE, WEBHOOK, SubscriptionConfig
from tests.simulation.actors import KIND, PATHS, Actor
from tests.simulation.checks.ledger import WAKES
from tests.simulation.operation import Operation
from tests.simulation.world import World


class Subscriber(Actor):
    """Creates subscriptions, claims wakes, acks them; sometimes with an old generation."""

    kind = "subscriber"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.wakes: list[w.WakeView] = []
        self.made_stream = False

    def act(self) -> None:
        chance = self.random.random
        name = f"sub{int(chance() * 3)}"
        roll = chance()
        if not self.made_stream:
            self.made_stream = True
            self.ask(c.CreateStream(WAKES, KIND))
        elif roll < 0.1:
            self.create(name)
        elif roll < 0.13:
            self.ask(w.DeleteSubscription(name))
        elif roll < 0.2:
            self.ask(w.LinkStreams(name, (self.random.choice(PATHS),)))
        elif roll < 0.25:
            self.ask(w.UnlinkStream(name, self.random.choice(PATHS)))
        elif roll < 0.3:
            self.ask(ReadSubscription(name))
        elif roll < 0.31:
            self.ask(w.MakeSigningKey(b"secret"))
        elif roll < 0.4:
            self.ask(w.FinishWake(name, int(chance() * 12)))
        elif self.wakes and roll < 0.8:
            self.ack()
        else:
            self.ask(w.ClaimWake(name, self.name))

    def create(self, name: str) -> None:
        chance = self.random.random
        lease_ms = self.random.choice((300, 4_000))
        pattern = self.random.choice(("*", "**", ""))
        named = tuple(path for path in PATHS if chance() < 0.3)
        if chance() < 0.4:
            config = SubscriptionConfig(WEBHOOK, pattern, named, "https://example.org/hook", "", lease_ms)
        else:
            config = SubscriptionConfig(PULL_WAKE, pattern, named, "", WAKES, lease_ms)
        self.ask(w.CreateSubscription(name, config, "here"))

    def ack(self) -> None:
        chance = self.random.random
        index = int(chance() * len(self.wakes))
        wake = self.wakes[index] if chance() < 0.3 else self.wakes.pop(index)
        acks = tuple((stream.path, stream.end_offset) for stream in wake.streams if chance() < 0.8)
        end = chance()
        self.ask(w.AckWake(wake.subscription, wake.generation, wake.wake_id, acks, end < 0.5, 0.5 <= end < 0.6))

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(reply, w.WakeView):
            self.wakes = [*self.wakes[-5:], reply]


class Inspector(Actor):
    """Queries the ends of logs, the positions of groups, the list of streams and the state of producers."""

    kind = "looker"

    def act(self) -> None:
        chance = self.random.random
        roll = chance()
        if roll < 0.35:
            self.ask(ReadStream(self.random.choice(PATHS), chance() < 0.5))
        elif roll < 0.7:
            partition = int(chance() * self.world.swarm.partitions)
            self.ask(ReadPartition(self.topic(), partition))
            offset = None if chance() < 0.6 else int(chance() * 40)
            self.ask(ReadStates(self.topic(), f"g{int(chance() * 2)}", partition, offset, limit=1 + int(chance() * 9)))
        elif roll < 0.9:
            path = self.random.choice(PATHS)
            self.ask(ReadProducer(path, f"stream{int(chance() * 2)}/{path}/{self.random.choice('ud')}"))
        else:
            self.ask(ListStreams(self.random.choice(("", "s", "f")), "", 1 + int(chance() * 6)))


class Redriver(Actor):
    """Redrives dead letters, and repeats some of its requests."""

    kind = "redriver"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.last: v.Redrive | None = None

    def act(self) -> None:
        chance = self.random.random
        if self.last is not None and chance() < 0.3:
            self.ask(self.last)
            return
        topic = self.topic()
        group = "redrive" if chance() < 0.7 else "g0"
        self.last = v.Redrive(f"dlq.{topic}", group, tuple(self.part(topic) for _ in range(1 + int(chance() * 3))))
        self.ask(self.last)

    def part(self, topic: str) -> v.RedrivePart:
        """Some neighbouring letters. Parts of one command may name the same letter."""
        chance = self.random.random
        batch, count, size = self.batch(1 if chance() < 0.5 else 3)
        partition = int(chance() * self.world.swarm.partitions)
        only = self.random.choice(("", "g0", "g1"))
        marks = tuple(RecordSchedule(index, group=only) for index in range(count)) if only else ()
        first = int(chance() * 30 * chance())
        produce = c.Produce(topic, batch, count, size, b"", partition, marks=marks)
        return v.RedrivePart(partition, tuple(range(first, first + count)), produce)

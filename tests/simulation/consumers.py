"""Readers of `/v1/consume`: connections with a window, as `server.consume_stream` drives it, and the clients at their
other end.

A client reads in order of delivery. Some settle one message after the other, some work on several at once, some stall,
some disconnect. A connection ends with its process.
"""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.engine.consumer_window import ConsumerWindow, ConsumerWindows
from tests.simulation.actors import Actor
from tests.simulation.checks.windows import Connection
from tests.simulation.operation import Operation
from tests.simulation.world import World

STYLES = ("serial", "serial", "parallel", "stalled", "changing")


class Consumer(Actor):
    """One client; it connects again when its connection is gone."""

    kind = "consumer"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.topic_name = self.topic()
        self.group = "g0" if number == 0 else "readers"
        self.windows: ConsumerWindows | None = None
        self.connect()

    def connect(self) -> None:
        chance = self.random.random
        self.style = self.random.choice(STYLES)
        self.lease_ms = 100 + int(chance() * self.world.swarm.lease_ms)
        self.prefetch = 1 + int(chance() * 12) if chance() < 0.5 else None
        self.inbox: list[c.Held] = []  # what the client read and has not settled
        self.asked: Operation | None = None
        self.replied: Claimed | None = None
        self.windows = self.world.windows
        self.window = ConsumerWindow(
            self.lease_ms, self.world.swarm.limits.in_flight_max, self.prefetch, self.world.note_moved(self)
        )
        self.connection = Connection(self.lease_ms, self.prefetch, self.world.swarm.limits.in_flight_max)
        self.world.connections[self] = self.connection
        self.world.counts["connections"] += 1

    def disconnect(self) -> None:
        assert self.windows is not None
        self.windows.close(self.window)
        self.world.connections.pop(self, None)
        self.windows = None

    def act(self) -> None:
        chance = self.random.random
        if self.windows is not self.world.windows:
            self.connect()
        elif self.replied is not None:
            self.deliver()
        elif chance() < 0.004:
            self.disconnect()
        elif self.inbox and self.style != "stalled" and chance() < 0.7:
            self.settle()
        elif self.asked is None:
            self.claim()
        if self.style == "changing" and chance() < 0.02:
            self.style = self.random.choice(STYLES)

    def claim(self) -> None:
        now_ms = self.world.now_ms
        room = self.window.room(now_ms)
        if room:
            self.connection.may_take(room, now_ms)
            count = min(room, 1 + int(self.random.random() * 12))
            self.asked = self.ask(c.Claim(self.topic_name, self.group, self.name, count, self.lease_ms))

    def settle(self) -> None:
        index = int(self.random.random() * min(4, len(self.inbox))) if self.style == "parallel" else 0
        held = (self.inbox.pop(index),)
        names = (self.topic_name, self.group, self.name)
        roll = self.random.random()
        if roll < 0.85:
            self.ask(c.Ack(*names, held))
        elif roll < 0.93:
            self.ask(c.Nack(*names, held, "broken"))
        elif roll < 0.97:
            self.ask(c.RejectMessages(*names, held, "bad"))
        else:
            self.ask(c.ReleaseMessages(*names, held))

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(op.command, c.Keep) and isinstance(reply, Rejected):
            self.connection.refused = True  # the disk is full, or the topic is gone
        if op is self.asked:
            self.asked = None
            if isinstance(reply, Claimed) and reply.deliveries:
                self.replied = reply
                if self.random.random() < 0.5:
                    self.deliver()  # otherwise other commits happen in between

    def on_unknown(self, op: Operation) -> None:
        self.windows = None

    def deliver(self) -> None:
        """Lines are written to the socket."""
        claimed, self.replied = self.replied, None
        group = self.world.opened.broker.state.groups.get(claimed.group_id) if claimed is not None else None
        if claimed is None or group is None or self.windows is None:
            return
        at_ms = min(claimed.until_ms - self.lease_ms, self.world.now_ms)
        until_ms = min(claimed.until_ms, at_ms + self.lease_ms)
        for delivery in claimed.deliveries:
            held = c.Held(delivery.partition, delivery.first, delivery.end, claimed.token)
            progress = group.progress[delivery.partition]
            end_ms = min(until_ms, delivery.until_ms or until_ms)
            self.windows.deliver(self.window, progress, held, end_ms, at_ms)
            self.connection.delivered(progress, held, end_ms, at_ms)
            self.inbox += [
                c.Held(delivery.partition, at, at + 1, claimed.token) for at in range(delivery.first, delivery.end)
            ]
        self.world.counts["messages in windows"] += self.window.held

    def keep(self) -> None:
        """Called when messages of the window ended, or when its timer fires."""
        for until_ms, held in self.window.extensions(self.world.now_ms):
            self.connection.kept(held, until_ms, self.world.now_ms)
            self.world.counts["leases kept"] += sum(run.end - run.first for run in held)
            self.ask(c.Keep(self.topic_name, self.group, tuple(held), until_ms))

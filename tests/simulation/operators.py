"""A client that retries, moves, purges and deletes messages by hand. It draws from a generator of its own, and acts in
some seeds only, so that the others stay as they were."""

from __future__ import annotations

from random import Random

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.state.idempotency_keys import job_key
from tests.simulation.actors import Actor
from tests.simulation.world import World


def acts_in(seed: int) -> bool:
    return seed % 4 == 1


class Operator(Actor):
    """Names offsets mostly near the end of a log, and repeats some of its requests."""

    kind = "operator"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"operator {world.swarm.seed}")
        self._last: c.Command | None = None

    def act(self) -> None:
        chance = self._own_random.random
        if chance() >= 0.06:
            return
        if self._last is None or chance() >= 0.2:
            self._last = self._command()
        self.ask(self._last)

    def _command(self) -> c.Command:
        chance = self._own_random.random
        topic = f"t{int(chance() * self.world.swarm.topics)}"
        kind = chance()
        if kind < 0.4:
            partition = self._partition()
            return v.RetryMessages(topic, partition, self._offsets(topic, partition, 12))
        if kind < 0.75:
            return v.MoveMessages(topic, tuple(self._part(topic) for _ in range(1 + int(chance() * 3))))
        if kind < 0.97:
            first = int(chance() * 20 * chance())
            letters = c.Held(self._partition(), first, first + 1 + int(chance() * 4))
            return v.DeleteDeadLetters(f"dlq.{topic}", "redrive", (letters,))
        return v.PurgeTopic(topic if chance() < 0.7 else f"dlq.{topic}")

    def _part(self, topic: str) -> v.MovePart:
        """Parts of one command may name the same message."""
        chance = self._own_random.random
        target = f"t{int(chance() * self.world.swarm.topics)}"
        partition = self._partition()
        with_id = chance() < 0.3
        batch, count, size = self.batch(1 if with_id or chance() < 0.5 else 3)
        offsets = self._offsets(topic, partition, count)
        job = c.ProduceKey("", target, job_key(f"j{int(chance() * 15)}"), 7, 200) if with_id else None
        produce = c.Produce(target, batch, count, size, b"", self._partition(), job=job)
        return v.MovePart(partition, offsets, produce)

    def _partition(self) -> int:
        return int(self._own_random.random() * self.world.swarm.partitions)

    def _offsets(self, topic: str, partition: int, count: int) -> tuple[int, ...]:
        """Neighbouring offsets near the end."""
        chance = self._own_random.random
        state = self.world.opened.broker.state
        known = state.topics.get(topic)
        end = state.logs[known.log_ids[partition % len(known.log_ids)]].end if known is not None else 0
        first = max(0, end - count - int(chance() * chance() * 30))
        return tuple(range(first, first + count))

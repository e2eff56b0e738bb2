"""A client that makes job batches: groups and chains, nested, open ones that it adds to and seals; it cancels some, and
repeats what got no reply. It draws from a generator of its own, and acts in some seeds only."""

from __future__ import annotations

from random import Random

from driftq.core.model import commands as c
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.model.replies import Reply
from tests.simulation.actors import Actor
from tests.simulation.operation import JOB_OF_A_BATCH, Operation
from tests.simulation.world import World


def acts_in(seed: int) -> bool:
    return seed % 4 == 3


class JobBatcher(Actor):
    """Makes batches under a few names, again and again."""

    kind = "batcher"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._own_random = Random(f"batches {world.swarm.seed}")
        self._retry: list[c.Command] = []
        self._open: dict[str, int] = {}  # by id: how many members an open batch has, as far as it knows

    def act(self) -> None:
        chance = self._own_random
        if chance.random() < 0.05:
            again = self._retry and chance.random() < 0.5
            self.ask(self._retry.pop() if again else self._command(chance))

    def _command(self, chance: Random) -> c.Command:
        kind = chance.random()
        if self._open and kind < 0.35:
            batch_id = chance.choice(list(self._open))
            first = max(0, self._open[batch_id] + chance.choice((0, 0, 0, -1, 1)))
            jobs = tuple(self._job(chance) for _ in range(chance.randrange(3)))
            return j.AddToJobBatch(batch_id, first, jobs, chance.random() < 0.5)
        if chance.random() < 0.1:
            return j.CancelJobBatch(f"b{chance.randrange(16)}")
        self.sent += 1
        parent = chance.choice(list(self._open)) if self._open and chance.random() < 0.3 else ""
        template = self._batch(chance, f"b{chance.randrange(16)}", 2)
        sealed = template.kind == b.CHAIN or chance.random() < 0.7
        return j.CreateJobBatch(template, sealed, parent, f"{self.name}.{self.sent}".encode())

    def _batch(self, chance: Random, batch_id: str, depth: int) -> b.JobBatchTemplate:
        members: list[b.JobTemplate | b.JobBatchTemplate] = [self._job(chance) for _ in range(chance.randrange(3))]
        if depth and chance.random() < 0.4:
            nested = self._batch(chance, f"{batch_id}.{chance.randrange(3)}", depth - 1)
            members.insert(chance.randrange(len(members) + 1), nested)
        callbacks = [self._job(chance) if chance.random() < 0.6 else None for _ in range(3)]
        kind, ttl_ms = chance.choice((b.GROUP, b.GROUP, b.CHAIN)), chance.choice((300, 5_000, 60_000))
        return b.JobBatchTemplate(batch_id, kind, f"g{chance.randrange(2)}", tuple(members), *callbacks, ttl_ms)

    def _job(self, chance: Random) -> b.JobTemplate:
        self.sent += 1
        topic = f"t{chance.randrange(self.world.swarm.topics)}"
        partition = chance.randrange(self.world.swarm.partitions)
        job_id = f"{self.name}.{self.sent}" if chance.random() < 0.3 else ""
        delay_ms = chance.choice((0, 0, 0, 300))
        value = b"%b.%d" % (JOB_OF_A_BATCH, self.sent)
        return b.JobTemplate(topic, topic, value, partition=partition, delay_ms=delay_ms, job_id=job_id)

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(reply, j.JobBatchChanged):
            self._open.pop(reply.batch_id, None)
            if not reply.sealed:
                self._open[reply.batch_id] = reply.count
        elif isinstance(op.command, j.AddToJobBatch):
            self._open.pop(op.command.batch_id, None)

    def on_unknown(self, op: Operation) -> None:
        self._retry.append(op.command)

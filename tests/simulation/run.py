"""Runs one seed from its beginning to its end: set up, act, heal, drain, read everything, stop, start, compare.

Returns a `Result`; a broken promise does not raise.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import ranges
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.core.state import held_ranges, timer_queue
from tests.simulation import actors, administrators, consumers, job_batchers, operators, subscribers, workers
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.corruption import Expected, begin_lying, end_lying, try_flips
from tests.simulation.operation import Operation
from tests.simulation.queries import QueryClient
from tests.simulation.swarm import Swarm, draw
from tests.simulation.trace import Trace
from tests.simulation.world import World

OPERATIONS = 4_000
SWEEPS_OF_BATCHES = 60
HOW_MANY = {"plain": 2, "idempotent": 4, "keyed": 2, "worker": 6, "consumer": 3, "stream": 2, "stager": 2, "effects": 2}
CLASSES: dict[str, type[actors.Actor]] = {
    "plain": actors.PlainProducer,
    "idempotent": actors.IdempotentProducer,
    "keyed": actors.KeyedProducer,
    "jobs": actors.JobProducer,
    "worker": workers.Worker,
    "consumer": consumers.Consumer,
    "stream": actors.StreamWriter,
    "fork": actors.Forker,
    "stager": actors.Stager,
    "effects": actors.EffectsUser,
    "admin": actors.Admin,
    "reader": actors.Reader,
    "subscriber": subscribers.Subscriber,
    "looker": subscribers.Inspector,
    "redriver": subscribers.Redriver,
}


@dataclass
class Result:
    """What one seed did."""

    seed: int
    kind: str
    operations: int = 0
    error: str = ""
    promise: str = ""
    trace: str = ""
    simulated_ms: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    fault_labels: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    replies: Counter[str] = field(default_factory=Counter)


class Drainer:
    """At the end: claims everything and acks it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def __str__(self) -> str:
        return "drainer"

    def on_unknown(self, op: Operation) -> None:
        pass

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(reply, Claimed) and reply.deliveries:
            command = op.command
            assert isinstance(command, c.Claim)
            held = tuple(
                c.Held(delivery.partition, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries
            )
            self.acks.append(c.Ack(command.topic, command.group, command.owner, held))

    def drain(self) -> None:
        """Q3 and liveness: without faults, every message of every group gets settled."""
        world, queues = self.world, self.world.audit.queues
        self.acks: list[c.Ack] = []
        world.commit_all()
        for group in list(queues.groups.values()):
            world.submit(c.PauseGroup(group.topic, group.name, False), self)
        world.commit_all()
        self.end_batches()
        rounds = 0
        while left := queues.unsettled():
            rounds += 1
            demand(rounds < 3_000, "liveness", f"after {rounds} rounds these are not settled: {left[:5]}")
            world.now_ms += 40_000
            for _ in range(1_000):
                command = world.opened.broker.due(world.now_ms)
                if command is None:
                    break
                world.submit(command, self)
            else:
                raise Violation("liveness", "a thousand sweeps at the same time")
            for topic, name in dict.fromkeys((topic, name) for topic, name, _, _ in left):
                if world.opened.broker.state.topics[topic].groups[name].commits_offsets:
                    world.submit(c.CommitOffsets(name, queues.ends_of(topic)), self)
                else:
                    world.submit(c.Claim(topic, name, "drainer", 200, 30_000), self)
            world.commit_all()
            acks, self.acks = self.acks, []
            for ack in acks:
                world.submit(ack, self)
            world.commit_all()
        self.end_batches()

    def end_batches(self) -> None:
        """Sweeps end the batches that a full frame left to them, and cancel what is left of cancelled ones."""
        world = self.world
        for _ in range(SWEEPS_OF_BATCHES if world.audit.job_batches.has_any() else 0):
            world.now_ms += 200
            command = world.opened.broker.due(world.now_ms)
            if command is not None:
                world.submit(command, self)
        world.commit_all()
        world.audit.job_batches.finished()


def run_seed(
    seed: int, operations: int = OPERATIONS, printer: Callable[[str], None] | None = None, swarm: Swarm | None = None
) -> Result:
    """One seed, whole."""
    with _small_blocks():
        return _run_seed(seed, printer, swarm or draw(seed, operations))


@contextmanager
def _small_blocks() -> Iterator[None]:
    """Few ranges and timers fill many blocks, so that a seed splits, empties and crosses them."""
    with ExitStack() as stack:
        for module, name in ((ranges, "BLOCK_RANGES"), (held_ranges, "BLOCK_RANGES"), (timer_queue, "BLOCK_ITEMS")):
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, 4)
        yield


def _run_seed(seed: int, printer: Callable[[str], None] | None, swarm: Swarm) -> Result:
    trace = Trace(printer)
    world = World(swarm, trace)
    result = Result(seed, swarm.kind)
    try:
        _play(world, swarm)
    except Violation as violation:
        result.error, result.promise = str(violation), violation.promise
        trace.say(f"{world.steps}: {violation}")
    except Exception as error:
        result.error = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-8)}"
        result.promise = type(error).__name__
        trace.say(f"{world.steps}: {type(error).__name__}: {error}")
    return _filled(result, world)


def _filled(result: Result, world: World) -> Result:
    result.operations = world.operations
    result.trace = world.trace.hexdigest()
    result.simulated_ms = world.passed_ms
    result.counts = world.counts
    audit = world.audit
    result.counts["restarts compared"] = audit.restarts.restarts
    result.counts["dead letters"] = audit.letters.count
    result.counts["history events"] = audit.history.count
    result.counts["reads that waited"] = audit.reads.waited
    result.counts["groups idle"] = audit.backlogs.idled
    result.counts["groups caught up"] = audit.backlogs.caught_up
    result.counts["producers held up"] = audit.backlogs.refused
    result.counts["results stored"] = audit.results.stored
    result.counts["results forgotten"] = audit.results.forgotten
    result.counts["progress reported"] = audit.results.reported
    result.counts["job batches ended"] = audit.job_batches.ended
    result.counts["steps of chains"] = audit.job_batches.steps
    result.counts["schedules fired"] = audit.schedules.firings
    result.counts["schedules missed"] = audit.schedules.missed
    result.counts["made due"] = audit.interventions.made_due
    result.counts["moved"] = audit.interventions.moved
    result.counts["letters deleted"] = audit.interventions.deleted
    result.counts["purged"] = audit.interventions.purged
    result.counts["published"] = audit.staging.published
    result.counts["stream histories"] = audit.streams.histories
    result.counts["stream calls"] = audit.streams.calls
    result.faults = world.faults.counts + Counter(
        {name: count for name, count in world.disk.fault_counts.items() if name in ("torn", "full", "flip")}
    )
    result.labels = Counter(world.disk.counts)
    result.fault_labels = world.faults.at_labels
    result.commands = world.commands
    result.replies = world.replies
    return result


def _play(world: World, swarm: Swarm) -> None:
    world.start()
    if swarm.kind != "lies":
        perform(world)
        finish(world)
        return
    honest = int(swarm.operations * 0.8)
    cast = perform(world, honest)
    world.heal()
    begin_lying(world)
    cast.act(world.operations + cast.fault_random.choice((20, 60, 200, swarm.operations - honest)))
    end_lying(world, cast.fault_random.choice(("none", "random")))


def perform(world: World, operations: int = 0) -> Cast:
    """Let the clients act until the number of operations is reached."""
    cast = Cast(world)
    cast.act(operations or world.swarm.operations)
    return cast


class Cast:
    """The clients of a run, and the choice of the next one."""

    def __init__(self, world: World) -> None:
        swarm = world.swarm
        self.world = world
        self.fault_random = Random(f"fault_random {swarm.seed}")
        self._query_client = QueryClient(swarm.seed)
        self._expected = Expected(world)
        self._cast: list[actors.Actor] = []
        self._totals: list[int] = []
        for name, weight in swarm.weights.items():
            for number in range(HOW_MANY.get(name, 1)):
                self._cast.append(CLASSES[name](world, number))
                self._totals.append((self._totals[-1] if self._totals else 0) + weight)
        self._extra: list[actors.Actor] = []  # they act beside the others
        if administrators.acts_in(swarm.seed):
            self._extra = [
                administrators.TokenAdministrator(world, 0),
                administrators.TenantAdministrator(world, 0),
                administrators.AuditAdministrator(world, 0),
            ]
        if job_batchers.acts_in(swarm.seed):
            self._extra.append(job_batchers.JobBatcher(world, 0))
        if administrators.ScheduleAdministrator.acts_in(swarm.seed):
            self._extra.append(administrators.ScheduleAdministrator(world, 0))
        if operators.acts_in(swarm.seed):
            self._extra.append(operators.Operator(world, 0))
        boss = actors.Admin(world, 99)
        for number in range(swarm.topics):
            command = c.CreateTopic(f"t{number}", swarm.partitions, actors.topic_config(boss))
            world.guarded(partial(boss.ask, command))

    def act(self, operations: int) -> None:
        world = self.world
        flips = world.swarm.kind == "flips"
        while world.operations < operations:
            for actor in world.random.choices(self._cast, cum_weights=self._totals, k=20):
                world.steps += 1
                world.audit.streams.at_step(world.steps)
                world.pass_time()
                world.guarded(actor.act)
                for extra in self._extra:
                    world.guarded(extra.act)
                question = self._query_client.question()
                if question is not None:
                    world.guarded(partial(world.query, question, self._query_client))
                world.guarded(world.work)
            if flips and self.fault_random.random() < 0.03:
                world.guarded(world.commit_all)
                if world.is_quiet():
                    try_flips(world, self.fault_random, self._expected)


def finish(world: World) -> None:
    """Heal, drain, and check everything once more."""
    world.heal()
    world.die("the last kill before healing")
    world.opened.store.make_room()
    world.opened.journal.make_room()
    world.sequencer.room.free_bytes = world.opened.journal.room_bytes()
    reply = world.submit(c.CreateTopic("healed"), world).reply or world.commit_all()
    demand(not isinstance(reply, Rejected), "liveness", f"new work is refused though everything is well: {reply}")
    if administrators.ScheduleAdministrator.acts_in(world.swarm.seed):
        administrators.ScheduleAdministrator(world, 1).finish()
    Drainer(world).drain()
    world.audit.compare(world.opened.broker.state, world.now_ms)
    world.clean_stop()
    world.audit.restarts.logs(world.opened)
    for stream in world.audit.streams.by_log.values():
        world.audit.streams.linearizes(stream)
    _read_all(world)


def _read_all(world: World) -> None:
    """L1 once more, from the replies alone: every acknowledged batch that was not dropped is at its offset."""
    audit: Any = world.audit
    for (log_id, first), batch in audit.ledger.acked.items():
        log = audit.ledger.logs.get(log_id)
        if log is None or first < log.start:
            continue
        batches = world.opened.store.read(log_id, first, first + 1, 1)
        demand(batches and batches[0][24:] == batch[24:], "L1", f"offset {first} of log {log_id} was acknowledged")

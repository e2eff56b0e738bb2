"""Clients that write: producers of several kinds, jobs, streams, stages, effects and administration; and a reader.

Each chooses its next action from what a client knows: the replies that it received. A client without a reply does not
know what happened; it retries now or later, or continues. Only the reader looks into the store.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.queries import ReadStream
from driftq.core.model.replies import (
    EffectBegun,
    Produced,
    PublishedReply,
    Rejected,
    Reply,
    StagedReply,
    StreamAppended,
)
from driftq.core.state.idempotency_keys import job_key
from driftq.core.state.producers import SERVER_EPOCH
from driftq.wire.errors import Code
from driftq.wire.message import Envelope, Head, Job, RetryPolicy, encode_head
from driftq.wire.records import Record, pack, pack_one, unpack
from tests.simulation.operation import Operation
from tests.simulation.world import World

TASKS = ("", "", "a", "b")
TENANTS = ("", "x", "y")
PATHS = tuple(f"s{n}" for n in range(5))
KIND = "text/plain"


class Actor:
    """A client with a name."""

    kind = "actor"

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = world.random
        self.name = f"{self.kind}{number}"
        self.sent = 0

    def __str__(self) -> str:
        return self.name

    def act(self) -> None:
        raise NotImplementedError

    def on_reply(self, op: Operation, reply: Reply) -> None:
        pass

    def on_unknown(self, op: Operation) -> None:
        pass

    def ask(self, command: c.Command, note: Any = None) -> Operation:
        return self.world.submit(command, self, note)

    def topic(self) -> str:
        return f"t{int(self.random.random() * self.world.swarm.topics)}"

    def batch(self, count_max: int = 3, head: bytes = b"") -> tuple[bytes, int, int]:
        """A packed batch of unique values: (batch, count, payload bytes)."""
        self.sent += 1
        chance = self.random.random
        count = 1 + int(chance() * count_max)
        size = int(chance() * self.world.swarm.value_bytes)
        if chance() < 0.01:
            size += 1_500
        if count == 1:
            value = f"{self.name}.{self.sent}".encode().ljust(size, b".")
            return pack_one(value, b"", head), 1, len(value)
        values = [f"{self.name}.{self.sent}.{index}".encode().ljust(size, b".") for index in range(count)]
        return pack([Record(value, b"", head) for value in values]), count, sum(map(len, values))


class PlainProducer(Actor):
    """Sends without tracking replies."""

    kind = "plain"

    def act(self) -> None:
        chance = self.random.random
        head = b""
        if chance() < 0.1:
            policy = RetryPolicy(int(chance() * 4), self.random.choice((0, 30, 200)), 400)
            head = encode_head(Head(envelope=Envelope(retry_policy=policy)))
        partition = int(chance() * self.world.swarm.partitions) if chance() < 0.5 else None
        key = b"%d" % int(chance() * 50) if chance() < 0.5 else b""
        batch, count, size = self.batch(3, head)
        topic = self.topic()
        if self.world.swarm.coalesces and chance() < 0.7:
            self.burst(topic, partition)
        else:
            self.ask(c.Produce(topic, batch, count, size, key, partition))

    def burst(self, topic: str, partition: int | None) -> None:
        """Single messages of many callers, in one turn of the event loop."""
        chance = self.random.random
        for _ in range(1 + int(chance() * 8)):
            key = b"%d" % int(chance() * 50) if chance() < 0.5 else b""
            (record,) = unpack(self.batch(1)[0])
            self.world.produce(topic, record.value, key, partition, self)


class IdempotentProducer(Actor):
    """(producer, epoch, seq), up to five in flight; repeats, restarts, and sometimes breaks the protocol."""

    kind = "idem"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.target = (self.topic(), int(self.random.random() * world.swarm.partitions))
        self.epoch = 0
        self.next_seq = 0
        self.waiting: dict[int, c.Produce] = {}  # seq -> sent, not acknowledged
        self.resend: list[int] = []
        self.done: list[c.Produce] = []  # the last few acknowledged

    def act(self) -> None:
        chance = self.random.random()
        if self.resend:
            seq = self.resend.pop(0)
            if seq in self.waiting:
                self.ask(self.waiting[seq], (self.epoch, seq))
        elif chance < 0.06 and self.waiting:
            command = self.random.choice(list(self.waiting.values()))
            self.ask(command, "repeat")
        elif chance < 0.12 and self.done:
            self.ask(self.random.choice(self.done), "repeat")
        elif chance < 0.16:
            self.misbehave()
        elif chance < 0.18:
            self.epoch += 1
            self.next_seq = 0
            self.waiting.clear()
            self.done.clear()
        elif len(self.waiting) < 5:
            command = self.waiting[self.next_seq] = self.make(self.epoch, self.next_seq)
            self.next_seq += 1
            self.ask(command, (self.epoch, command.producer.seq))  # type: ignore[union-attr]

    def make(self, epoch: int, seq: int) -> c.Produce:
        batch, count, size = self.batch()
        by = f.ProducerSequence(self.name, epoch, seq, self.sent)
        return c.Produce(self.target[0], batch, count, size, b"", self.target[1], by)

    def misbehave(self) -> None:
        roll = self.random.random()
        if roll < 0.4 and self.done:
            seq = self.random.choice(self.done).producer.seq  # type: ignore[union-attr]
            self.ask(self.make(self.epoch, seq), "other bytes")
        elif roll < 0.7 and self.epoch:
            self.ask(self.make(self.epoch - 1, int(self.random.random() * 6)), "stale")
        else:
            self.ask(self.make(self.epoch, self.next_seq + 1 + int(self.random.random() * 4)), "gap")

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if not isinstance(op.note, tuple) or op.note[0] != self.epoch:
            return
        seq = op.note[1]
        if isinstance(reply, Produced):
            command = self.waiting.pop(seq, None)
            if command is not None:
                self.done = [*self.done[-3:], command]
        elif isinstance(reply, Rejected):
            if reply.code in (Code.NOT_FOUND, Code.TOO_LARGE, Code.STALE_EPOCH, Code.SEQUENCE_MISMATCH) or (
                reply.code is Code.SEQUENCE_GAP and reply.details["expected_seq"] not in self.waiting
            ):
                self.epoch += 1  # the topic changed, or this batch cannot be stored: start over
                self.next_seq = 0
                self.waiting.clear()
                self.done.clear()
                self.resend.clear()
            else:
                self.resend = sorted(self.waiting)

    def on_unknown(self, op: Operation) -> None:
        if isinstance(op.note, tuple):
            self.resend = sorted(self.waiting)


class KeyedProducer(Actor):
    """Idempotency keys from a small pool, some with a short TTL; retries without a reply."""

    kind = "keyed"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.retry: list[c.Produce] = []
        self.fresh_keys = 0

    def act(self) -> None:
        chance = self.random.random
        if self.retry and chance() < 0.5:
            self.ask(self.retry.pop())
            return
        batch, count, size = self.batch()
        self.fresh_keys += 1
        key = f"k{int(chance() * 12)}" if chance() < 0.6 else f"{self.name}/{self.fresh_keys}"
        ttl_ms = self.random.choice((0, 0, 400, 20_000))
        once = c.ProduceKey("", self.topic(), key, self.sent, ttl_ms, chance() < 0.1)
        partition = int(chance() * self.world.swarm.partitions) if chance() < 0.5 else None
        self.ask(c.Produce(once.topic, batch, count, size, b"", partition, None, once))

    def on_unknown(self, op: Operation) -> None:
        if isinstance(op.command, c.Produce):
            self.retry.append(op.command)


class JobProducer(Actor):
    """Messages with priority, task, label, delay and deadline; some have an id from a small pool."""

    kind = "jobs"

    def act(self) -> None:
        chance = self.random.random
        now_ms = self.world.now_ms
        topic = self.topic()
        job_id = f"j{int(chance() * 15)}" if chance() < 0.5 else ""
        count = 1 if job_id else 1 + int(chance() * 3)
        marks: list[f.RecordSchedule] = []
        for index in range(count):
            mark = f.RecordSchedule(
                index,
                int(chance() * 10) if chance() < 0.5 else 0,
                self.random.choice(TASKS),
                "l" if chance() < 0.1 else "",
                now_ms + int(chance() * 2_000) if chance() < 0.25 else 0,
                now_ms + int(chance() * 4_000) if chance() < 0.3 else 0,
                self.random.choice(TENANTS),
                timeout_ms=(60, 400, 2_500)[self.sent % 3] if (self.sent + index) % 4 == 0 else 0,
            )
            if mark != f.RecordSchedule(index):
                marks.append(mark)
        policy = RetryPolicy(1 + int(chance() * 3), 20, 100) if chance() < 0.3 else None
        head = encode_head(Head(job=Job(id=job_id), envelope=Envelope(retry_policy=policy)))
        job = c.ProduceKey("", topic, job_key(job_id), self.sent, self.random.choice((0, 200))) if job_id else None
        self.sent += 1
        values = [f"{self.name}.{self.sent}.{index}".encode() for index in range(count)]
        batch = pack([Record(value, b"j", head) for value in values], scheduled=True)
        partition = int(chance() * self.world.swarm.partitions) if chance() < 0.5 else None
        size = sum(map(len, values)) + count
        self.ask(c.Produce(topic, batch, count, size, b"j", partition, marks=tuple(marks), job=job))


class StreamWriter(Actor):
    """Creates, appends (plainly, conditionally, numbered, as a producer), closes, trims, deletes."""

    kind = "stream"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.tails: dict[str, int] = {}  # the last end that it received
        self.seqs: dict[str, int] = {}
        self.numbers = 0
        self.retry: list[c.AppendStream] = []

    def act(self) -> None:
        chance = self.random.random()
        path = self.random.choice(PATHS)
        if path not in self.tails or chance < 0.05:
            self.create(path)
        elif chance < 0.08:
            self.ask(ReadStream(path, self.random.random() < 0.7))
        elif chance < 0.10:
            self.ask(c.TrimStream(path, int(self.random.random() * (self.tails[path] + 1))))
        elif chance < 0.115:
            self.ask(c.DeleteStream(path))
        elif self.retry and chance < 0.3:
            self.ask(self.retry.pop())
        else:
            self.append(path)

    def create(self, path: str) -> None:
        chance = self.random.random
        ttl_s = self.random.choice((1, 20)) if chance() < 0.25 else None
        expires_ms = self.world.now_ms + int(chance() * 9_000) if ttl_s is None and chance() < 0.1 else None
        batch, count, size = self.batch() if chance() < 0.3 else (b"", 0, 0)
        closed = chance() < 0.05
        self.ask(c.CreateStream(path, KIND, ttl_s, expires_ms, "", closed, None, None, None, batch, count, size))

    def append(self, path: str) -> None:
        chance = self.random.random
        batch, count, size = self.batch()
        by, number, if_match, close = None, "", None, chance() < 0.02
        if close and chance() < 0.5:
            batch, count, size = b"", 0, 0
        roll = chance()
        if roll < 0.4:
            if_match = self.tails[path] - (chance() < 0.1)
        elif roll < 0.55:
            self.numbers += 1 if chance() < 0.8 else -1
            number = f"{max(0, self.numbers):06d}"
        elif roll < 0.8:
            epoch = SERVER_EPOCH if chance() < 0.3 else 0
            seq = self.seqs.get(path, 0)
            producer = f"{self.name}/{path}/{'u' if epoch else 'd'}"
            by = f.ProducerSequence(producer, epoch, seq, self.sent)
            self.seqs[path] = seq + 1
            # Continuing without a reply abandons the old batches; repeating them later would be a new session.
            self.retry = [old for old in self.retry if old.producer is None or old.producer.producer != producer]
        command = c.AppendStream(path, KIND, batch, count, size, by, number, if_match, close)
        self.ask(command)
        if by is not None and chance() < 0.1:
            self.ask(command)  # the first may still be in flight

    def on_reply(self, op: Operation, reply: Reply) -> None:
        path = getattr(op.command, "path", "")
        if isinstance(reply, Rejected):
            if reply.code in (Code.NOT_FOUND, Code.GONE, Code.CLOSED):
                self.tails.pop(path, None)
            elif reply.code is Code.SEQUENCE_GAP:
                self.seqs[path] = max(0, reply.details["expected_seq"])
            elif "end_offset" in reply.details:
                self.tails[path] = reply.details["end_offset"]
        elif isinstance(reply, StreamAppended) or hasattr(reply, "end_offset"):
            self.tails[path] = reply.end_offset

    def on_unknown(self, op: Operation) -> None:
        if isinstance(op.command, c.AppendStream) and op.command.producer is not None:
            self.retry.append(op.command)


class Forker(Actor):
    """Forks streams, writes to the forks and deletes them."""

    kind = "fork"

    def act(self) -> None:
        chance = self.random.random
        source = self.random.choice(PATHS)
        path = f"f{int(chance() * 4)}"
        roll = chance()
        if roll < 0.35:
            offset = int(chance() * 8) if chance() < 0.7 else None
            sub = 1 + int(chance() * 4) if chance() < 0.3 else None
            kind = KIND if chance() < 0.9 else ""
            ttl_s = 2 if chance() < 0.2 else None
            batch, count, size = self.batch() if chance() < 0.3 else (b"", 0, 0)
            if chance() < 0.2:
                source = f"f{int(chance() * 4)}"
            self.ask(c.CreateStream(path, kind, ttl_s, None, "", False, source, offset, sub, batch, count, size))
        elif roll < 0.8:
            batch, count, size = self.batch()
            self.ask(c.AppendStream(path, KIND, batch, count, size))
        else:
            self.ask(c.DeleteStream(path if chance() < 0.7 else source))


class Stager(Actor):
    """Stages batches under handles and publishes them, once for each number."""

    kind = "stager"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.writer = f"w{number % 2}"
        self.number = 0
        self.handles: list[str] = []
        self.named = 0
        self.publishing: c.Publish | None = None
        self.published: c.Publish | None = None

    def act(self) -> None:
        chance = self.random.random()
        if self.publishing is not None:
            self.ask(self.publishing)
        elif chance < 0.55 or not self.handles:
            self.stage()
        elif chance < 0.80:
            self.number += 1 + int(self.random.random() * 2)
            handles = tuple(self.random.sample(self.handles, 1 + int(self.random.random() * len(self.handles))))
            content = self.random.choice(("", f"{self.name}/{self.number}"))
            self.publishing = c.Publish(self.writer, self.number, handles, content)
            self.ask(self.publishing)
        elif chance < 0.88 and self.published is not None:
            self.ask(self.published if self.random.random() < 0.6 else replace(self.published, content="other"))
        elif chance < 0.93:
            self.ask(c.Publish(self.writer, max(0, self.number - 1), tuple(self.handles)))
        else:
            self.ask(c.ForgetStages(self.writer, (self.random.choice(self.handles),)))

    def stage(self) -> None:
        chance = self.random.random
        handle = self.random.choice(self.handles) if self.handles and chance() < 0.3 else ""
        if not handle:
            self.named += 1
            handle = f"{self.name}/{self.named}"
        batch, count, size = self.batch()
        ttl_ms = self.random.choice((0, 0, 700))
        if chance() < 0.3:
            command = c.Stage(self.writer, handle, batch, count, size, path=self.random.choice(PATHS), ttl_ms=ttl_ms)
        else:
            partition = int(chance() * self.world.swarm.partitions)
            command = c.Stage(self.writer, handle, batch, count, size, self.topic(), b"", partition, ttl_ms=ttl_ms)
        self.ask(command)

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(reply, StagedReply):
            if reply.handle not in self.handles:
                self.handles.append(reply.handle)
        elif op.command is self.publishing and (isinstance(reply, PublishedReply) or _is_final(reply)):
            if isinstance(reply, PublishedReply):
                self.published = self.publishing
            self.publishing = None
            self.handles.clear()
        elif isinstance(reply, Rejected) and reply.code is Code.CONFLICT and "batch_number" in reply.details:
            self.number = max(self.number, reply.details["batch_number"])


def _is_final(reply: Reply) -> bool:
    return isinstance(reply, Rejected) and reply.code is not Code.DISK_FULL


class EffectsUser(Actor):
    """Begins, commits and fails effects on shared keys; sometimes returns with an old fence."""

    kind = "effects"

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.begun: list[tuple[c.EffectKey, int]] = []

    def act(self) -> None:
        chance = self.random.random
        if self.begun and chance() < 0.6:
            index = int(chance() * len(self.begun))
            key, fence = self.begun[index] if chance() < 0.2 else self.begun.pop(index)
            if chance() < 0.75:
                self.sent += 1
                ttl_ms = self.random.choice((0, 500))
                commit = c.CommitEffect(key, fence, f"{self.name}.{self.sent}".encode(), ttl_ms)
                if chance() < 0.3:
                    batch, count, size = self.batch()
                    produce = c.Produce(key.topic, batch, count, size, b"", 0)
                    self.ask(c.CommitOutcome((), (produce,), (), (commit,), digest=commit.result))
                else:
                    self.ask(commit)
            else:
                self.ask(c.FailEffect(key, fence, "no"))
            return
        topic = self.topic()
        key = c.EffectKey("", topic, "g0", f"e{int(chance() * 10)}")
        owner = self.name if chance() < 0.8 else "shared"
        token = f"lease of {self.name}" if chance() < 0.5 else ""
        fence = next((known for begun, known in self.begun if begun == key and chance() < 0.3), None)
        if chance() < 0.5:
            self.ask(c.BeginEffect(key, owner, None, 0, int(chance() * 40), token, fence), key)
        else:
            self.ask(c.BeginEffect(key, owner, None, None, None, token, fence), key)

    def on_reply(self, op: Operation, reply: Reply) -> None:
        if isinstance(reply, EffectBegun):
            self.begun = [*self.begun[-6:], (op.note, reply.fence)]


READER = "reader"  # the group of a reader that commits its offsets


class Admin(Actor):
    """Topics and groups: create, configure, delete, seek, pause, trim, cancel."""

    kind = "admin"

    def act(self) -> None:
        chance = self.random.random
        topic = self.topic()
        group = f"g{int(chance() * 3)}"
        if chance() < 0.15:
            topic = f"dlq.{topic}"
        partition = int(chance() * self.world.swarm.partitions)
        offset = int(chance() * 60)
        actions: list[c.Command] = [
            c.CreateTopic(topic, self.world.swarm.partitions, topic_config(self)),
            c.CreateTopic(topic, 1 + int(chance() * 3)),
            c.ConfigureTopic(topic, topic_config(self)),
            c.CreateGroup(topic, group, self.random.choice(("earliest", "latest", self.world.now_ms - 2_000))),
            c.SeekGroup(topic, group, offset, partition),
            c.SeekGroup(topic, group, self.random.choice(("earliest", "latest", self.world.now_ms - 1_000))),
            c.PauseGroup(topic, group, chance() < 0.3),
            c.PauseGroup(topic, group, False),
            c.TrimTopic(topic, partition, offset),
            c.Cancel(topic, partition, offset),
            c.Cancel(topic, partition, max(0, self._end(topic, partition) - 1 - offset // 4)),
        ]
        if chance() < 0.1:
            actions = [c.DeleteGroup(topic, group), c.DeleteTopic(topic)]
        elif chance() < 0.02:
            # Only forward: expired objects may be dropped, and the models have only one clock.
            actions = [c.SetClock(self.world.now_ms + int(chance() * 20_000))]
        command = self.random.choice(actions)
        self.ask(command)
        if isinstance(command, c.PauseGroup) and not topic.startswith("dlq."):
            self.ask(c.CommitOffsets(READER, ((topic, partition, min(offset, self._end(topic, partition))),)))
            self.ask(c.Claim(topic, READER, "o", 5))  # refused: nothing is claimed from a reader
        if isinstance(command, c.Cancel):  # a group that starts or seeks after it must pass over it
            seek = c.SeekGroup(topic, group, "earliest")
            self.ask(c.CreateGroup(topic, group, "earliest") if chance() < 0.3 else seek)

    def _end(self, topic: str, partition: int) -> int:
        state = self.world.opened.broker.state
        known = state.topics.get(topic)
        return state.logs[known.log_ids[partition % len(known.log_ids)]].end if known is not None else 0


def topic_config(actor: Actor) -> f.TopicConfig:
    chance = actor.random.random
    retry = RetryPolicy(1 + int(chance() * 3), 25, 200) if chance() < 0.5 else None
    return f.TopicConfig(
        retention_ms=actor.random.choice((0, 0, 3_000)),
        retention_bytes=actor.random.choice((0, 0, 4_000)),
        in_flight_max=actor.random.choice((0, 0, 3)),
        retry=retry,
        history=chance() < 0.06,
        fair="tenant" if chance() < 0.3 else "",
        keep_unread=actor.world.swarm.keep_unread,
    )


class Reader(Actor):
    """Reads any log, as fetches and streams do, and asks for tails."""

    kind = "reader"

    def act(self) -> None:
        world = self.world
        audit = world.audit
        chance = self.random.random
        logs = list(audit.ledger.logs)
        log_id = logs[int(chance() * len(logs))]
        store = world.opened.store
        world.operations += 1
        world.commands["read"] += 1
        log = audit.ledger.logs[log_id]
        if log.start == log.end:
            return
        end = store.end(log_id)
        audit.streams.tail(log_id, end, world.steps)
        offset = log.start + int(chance() * (end - log.start + 1))
        upto = min(end, offset + 1 + int(chance() * 30))
        batches = store.read(log_id, offset, upto, 1 << 40)
        audit.ledger.read(log_id, offset, upto, batches, end)

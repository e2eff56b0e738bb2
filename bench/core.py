"""The core alone: no disk, no network, no threads. Commands decided and applied, frames encoded and replayed.

    python -m bench.core [--runs 5] [--commands 20000] [--only TEXT]

Rates are operations for a second of one core's time. `bench.scaling` measures memory and whether costs stay flat.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from bench.report import Prepare, Run, emit, interleaved, median_cost
from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Reply
from driftq.engine.clock import SystemChance
from driftq.wire.records import Record, pack, pack_one

NOW_MS = 1_700_000_000_000
VALUE = b"v" * 100
ONE = pack_one(VALUE)
HUNDRED = pack([Record(VALUE)] * 100)
THOUSAND = pack([Record(VALUE)] * 1_000)
PLAIN = c.Produce("t", ONE, 1, len(VALUE), partition=0)
WIDE = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50, in_flight_max=1 << 20)


class Reader:
    """Everything that was appended counts as durable, and all records are equal."""

    broker: Broker

    def end(self, log_id: int) -> int:
        return self.broker.state.logs[log_id].end

    def record(self, log_id: int, offset: int) -> Record:
        return Record(VALUE)

    def head(self, log_id: int, offset: int) -> bytes:
        return b""

    def batch_end(self, log_id: int, offset: int) -> int:
        return offset + 1

    def time_of(self, log_id: int, offset: int) -> int:
        return NOW_MS

    def offset_at(self, log_id: int, at_ms: int) -> int:
        return 0

    def spans(self, log_id: int) -> Sequence[tuple[int, int, int, int]]:
        return ()


def new_broker(partitions: int = 1, groups: int = 0, topic: str = "t") -> Broker:
    reader = Reader()
    reader.broker = broker = Broker(WIDE, reader, SystemChance())
    execute(broker, c.CreateTopic(topic, partitions))
    for number in range(groups):
        execute(broker, c.CreateGroup(topic, f"g{number}"))
    return broker


def execute(broker: Broker, command: c.Command, now_ms: int = NOW_MS) -> Reply:
    facts, reply = broker.decide(command, now_ms)
    for fact in facts:
        broker.apply(fact)
    return reply


def fill(broker: Broker, count: int) -> None:
    """A backlog of plain messages, appended a thousand at a time."""
    thousand = c.Produce("t", THOUSAND, 1_000, 100_000, partition=0)
    for _ in range(count // 1_000):
        execute(broker, thousand)
    for _ in range(count % 1_000):
        execute(broker, PLAIN)


def executed(broker: Broker, commands: Iterable[c.Command], records_each: int = 1) -> Run:
    batch = list(commands)

    def run() -> int:
        decide, apply = broker.decide, broker.apply
        for command in batch:
            for fact in decide(command, NOW_MS).facts:
                apply(fact)
        return len(batch) * records_each

    return run


# --- producing ---


def produce_cases(count: int) -> dict[str, Prepare]:
    def batches(batch: bytes, records: int) -> Run:
        command = c.Produce("t", batch, records, records * len(VALUE), partition=0)
        return executed(new_broker(groups=1), [command] * max(1, count // 10), records)

    priorities = [(f.RecordSchedule(0, priority=number),) for number in range(10)]
    return {
        "produce plain": lambda: executed(new_broker(groups=1), [PLAIN] * count),
        "produce by key": lambda: executed(
            new_broker(8, 1), [c.Produce("t", ONE, 1, 100, key=b"key-%d" % (n % 997)) for n in range(count)]
        ),
        "produce with idempotency key": lambda: executed(
            new_broker(groups=1),
            [c.Produce("t", ONE, 1, 100, partition=0, once=c.ProduceKey("", "t", f"key-{n}")) for n in range(count)],
        ),
        "produce with producer": lambda: executed(
            new_broker(groups=1),
            [c.Produce("t", ONE, 1, 100, partition=0, producer=f.ProducerSequence("p", 0, n, n)) for n in range(count)],
        ),
        "produce with priority": lambda: executed(
            new_broker(groups=1),
            [c.Produce("t", ONE, 1, 100, partition=0, marks=priorities[n % 10]) for n in range(count)],
        ),
        "produce delayed": lambda: executed(
            new_broker(groups=1),
            [
                c.Produce("t", ONE, 1, 100, partition=0, marks=(f.RecordSchedule(0, not_before_ms=NOW_MS + n),))
                for n in range(1, count + 1)
            ],
        ),
        "produce batches of 100, records": lambda: batches(HUNDRED, 100),
        "produce batches of 1000, records": lambda: batches(THOUSAND, 1_000),
    }


# --- consuming ---


def claimed_and_acked(count: int, size: int, *, singly: bool) -> Run:
    broker = new_broker(groups=1)
    fill(broker, count)

    def run() -> int:
        for _ in range(count // size):
            reply = execute(broker, c.Claim("t", "g0", "w", size))
            assert isinstance(reply, Claimed)
            for delivery in reply.deliveries:
                step = 1 if singly else delivery.end - delivery.first
                for first in range(delivery.first, delivery.end, step):
                    held = c.Held(delivery.partition, first, first + step, reply.token)
                    execute(broker, c.Ack("t", "g0", "w", (held,)))
        return count // size * size

    return run


def nacked(count: int) -> Run:
    broker = new_broker(groups=1)
    fill(broker, count)

    def run() -> int:
        for _ in range(count // 100):
            reply = execute(broker, c.Claim("t", "g0", "w", 100))
            assert isinstance(reply, Claimed)
            delivery = reply.deliveries[0]
            for offset in range(delivery.first, delivery.end):
                held = c.Held(delivery.partition, offset, offset + 1, reply.token)
                execute(broker, c.Nack("t", "g0", "w", (held,), "no", 60_000))
        return count // 100 * 100

    return run


def consume_cases(count: int) -> dict[str, Prepare]:
    return {
        "claim 1 + ack": lambda: claimed_and_acked(count // 2, 1, singly=False),
        "claim 100 + ack one range, records": lambda: claimed_and_acked(count * 20, 100, singly=False),
        "claim 1000 + ack one range, records": lambda: claimed_and_acked(count * 50, 1_000, singly=False),
        "claim 100 + 100 acks, records": lambda: claimed_and_acked(count, 100, singly=True),
        "claim 100 + 100 nacks, records": lambda: nacked(count),
    }


# --- streams, stages, effects ---


def stream_appends(count: int, *, by_producer: bool) -> Run:
    broker = new_broker()
    execute(broker, c.CreateStream("s"))
    kind = "application/octet-stream"
    return executed(
        broker,
        [
            c.AppendStream("s", kind, ONE, 1, 100, producer=f.ProducerSequence("p", 0, n, n) if by_producer else None)
            for n in range(count)
        ],
    )


def staged_and_published(count: int) -> Run:
    commands: list[c.Command] = []
    for n in range(count // 2):
        commands.append(c.Stage("w", f"h{n}", ONE, 1, 100, topic="t", partition=0))
        commands.append(c.Publish("w", n + 1, (f"h{n}",)))
    return executed(new_broker(), commands)


def effects(count: int) -> Run:
    broker = new_broker(groups=1)
    commands: list[c.Command] = []
    for n in range(count // 2):
        key = c.EffectKey("", "t", "g0", f"key-{n}")
        commands.append(c.BeginEffect(key, "w"))
        commands.append(c.CommitEffect(key, n + 1, b"result"))
    return executed(broker, commands)


def other_cases(count: int) -> dict[str, Prepare]:
    return {
        "stream append": lambda: stream_appends(count, by_producer=False),
        "stream append with producer": lambda: stream_appends(count, by_producer=True),
        "stage + publish, commands": lambda: staged_and_published(count),
        "begin + commit effect, commands": lambda: effects(count),
    }


# --- frames ---


def frames_of(commands: Iterable[c.Command], broker: Broker) -> list[bytes]:
    frames: list[bytes] = []
    for command in commands:
        facts, _ = broker.decide(command, NOW_MS)
        for fact in facts:
            broker.apply(fact)
        frames.append(encode(facts))
    return frames


def encoded(count: int) -> Run:
    facts = new_broker(groups=1).decide(PLAIN, NOW_MS).facts

    def run() -> int:
        for _ in range(count):
            encode(facts)
        return count

    return run


def replayed(commands: Sequence[c.Command]) -> Run:
    frames = frames_of(commands, new_broker(groups=1))
    broker = new_broker(groups=1)

    def run() -> int:
        apply = broker.apply
        for frame in frames:
            for fact in decode(frame):
                apply(fact)
        return len(frames)

    return run


def worked(count: int) -> list[c.Command]:
    """Produce, claim and ack in turns, one message at a time."""
    commands: list[c.Command] = []
    for n in range(count // 3):
        held = c.Held(0, n, n + 1)
        commands += [PLAIN, c.Claim("t", "g0", "w", 1), c.Ack("t", "g0", "w", (held,))]
    return commands


def frame_cases(count: int) -> dict[str, Prepare]:
    return {
        "encode, frames": lambda: encoded(count * 5),
        "replay produce, frames": lambda: replayed([PLAIN] * (count * 2)),
        "replay produce + claim + ack, frames": lambda: replayed(worked(count)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    count = options.commands
    cases = produce_cases(count) | consume_cases(count) | other_cases(count) | frame_cases(count)
    cases = {name: prepare for name, prepare in cases.items() if options.only in name}
    for name, costs in interleaved(cases, options.runs):
        cost = median_cost(costs)
        case, _, what = name.partition(", ")
        emit("core", case, cost.per_s, f"{what or 'commands'}/cpu-s", cpu_us_per_op=cost.cpu_us, runs=len(costs))


if __name__ == "__main__":
    main()

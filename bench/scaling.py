"""Whether the core's costs stay flat: memory per item of state, and the time of a call as the state grows.

    python -m bench.scaling [--runs 5] [--large 1000000] [--only TEXT]

Memory is what the allocator gave out for each item. Flatness is a ratio: the CPU time of a call with a large state,
divided by the time of the same call with a small one. Both are measured alternately in the same process.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Callable

from bench.core import HUNDRED, NOW_MS, ONE, PLAIN, THOUSAND, execute, executed, fill, new_broker
from bench.report import Run, cost_of, emit, median
from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.replies import Claimed, Rejected
from driftq.core.state.logs import SIZES_MAX

STEP = 500  # calls in one timed run


# --- memory ---


def grown_bytes(work: Callable[[int], None], warm: int, count: int) -> float:
    """Bytes that stay allocated for each of `count` items, after `warm` of them."""
    tracemalloc.start()
    try:
        work(warm)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(count)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()


def settle_messages(broker: Broker) -> Callable[[int], None]:
    def work(count: int) -> None:
        for _ in range(count // 100):
            execute(broker, c.Produce("t", HUNDRED, 100, 10_000, partition=0))
            reply = execute(broker, c.Claim("t", "g0", "w", 100))
            assert isinstance(reply, Claimed)
            delivery = reply.deliveries[0]
            execute(broker, c.Ack("t", "g0", "w", (c.Held(0, delivery.first, delivery.end, reply.token),)))

    return work


def wait_messages(broker: Broker, mark: f.RecordSchedule | None = None) -> Callable[[int], None]:
    command = c.Produce("t", ONE, 1, 100, partition=0, marks=(mark,) if mark else ())
    return lambda count: [execute(broker, command) for _ in range(count)] and None


def hold_messages(broker: Broker, *, then_nack: bool) -> Callable[[int], None]:
    """Claims of one message each, which stay leased, or wait in backoff after a nack."""

    def work(count: int) -> None:
        fill(broker, count)
        for _ in range(count):
            reply = execute(broker, c.Claim("t", "g0", "worker", 1))
            assert isinstance(reply, Claimed)
            delivery = reply.deliveries[0]
            if then_nack:
                held = c.Held(0, delivery.first, delivery.end, reply.token)
                execute(broker, c.Nack("t", "g0", "worker", (held,), "a reason", 3_600_000))

    return work


def numbered(broker: Broker, command: Callable[[int], c.Command]) -> Callable[[int], None]:
    next_number = 0

    def work(count: int) -> None:
        nonlocal next_number
        for number in range(next_number, next_number + count):
            assert not isinstance(execute(broker, command(number)), Rejected)
        next_number += count

    return work


def once(number: int) -> c.Command:
    return c.Produce("t", ONE, 1, 100, partition=0, once=c.ProduceKey("tenant", "t", f"order-{number:012d}"))


def by_producer(number: int) -> c.Command:
    return c.Produce("t", ONE, 1, 100, partition=0, producer=f.ProducerSequence(f"producer-{number}", 0, 0, number))


def memory(count: int, only: str) -> None:
    cases: dict[str, Callable[[], Callable[[int], None]]] = {
        "settled message": lambda: settle_messages(new_broker(groups=1)),
        "waiting message": lambda: wait_messages(new_broker(groups=1)),
        "waiting message with priority": lambda: wait_messages(new_broker(groups=1), f.RecordSchedule(0, priority=3)),
        "held range": lambda: hold_messages(new_broker(groups=1), then_nack=False),
        "message in backoff": lambda: hold_messages(new_broker(groups=1), then_nack=True),
        "idempotency key": lambda: numbered(new_broker(), once),
        "producer": lambda: numbered(new_broker(), by_producer),
        "stream": lambda: numbered(new_broker(), lambda n: c.CreateStream(f"streams/{n:012d}")),
        "topic": lambda: numbered(new_broker(), lambda n: c.CreateTopic(f"topic-{n:012d}")),
        "group": lambda: numbered(new_broker(), lambda n: c.CreateGroup("t", f"group-{n:06d}")),
    }
    limits = {"producer": 4_000, "group": 450, "topic": 4_000}  # limits allow no more of them
    for name, prepare in cases.items():
        if only in name:
            size = min(count, limits.get(name, count))
            warm = min(size, 20_000)
            if name == "settled message":
                # A log's index of sizes grows and is thinned again: over a whole cycle nothing may be left.
                size = 100 * SIZES_MAX // 2 if count >= 50_000 else count
                warm = 3 * size
            value = grown_bytes(prepare(), warm, size)
            emit("scaling", f"memory for a {name}", max(0.0, value), "bytes", counted=size)


# --- flatness ---


def producing(broker: Broker, command: c.Command = PLAIN) -> Callable[[], Run]:
    return lambda: executed(broker, [command] * STEP)


def keys_known(count: int) -> Callable[[], Run]:
    broker = new_broker()
    numbered(broker, once)(count)
    turn = 0

    def prepare() -> Run:
        nonlocal turn
        turn += 1
        commands = [
            c.Produce("t", ONE, 1, 100, partition=0, once=c.ProduceKey("tenant", "t", f"new-{turn}-{n}"))
            for n in range(STEP)
        ]
        return executed(broker, commands)

    return prepare


def claiming(backlog: int, mark: Callable[[int], tuple[f.RecordSchedule, ...]] | None = None) -> Callable[[], Run]:
    """Claims of ten and their acks; claimed messages are produced again, unmeasured."""
    broker = new_broker(groups=1)
    if mark is None:
        fill(broker, backlog)
    for number in range(backlog if mark is not None else 0):
        execute(broker, c.Produce("t", ONE, 1, 100, partition=0, marks=mark(number) if mark is not None else ()))
    number = backlog

    def run() -> int:
        for _ in range(STEP // 10):
            reply = execute(broker, c.Claim("t", "g0", "w", 10))
            assert isinstance(reply, Claimed)
            held = tuple(
                c.Held(delivery.partition, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries
            )
            execute(broker, c.Ack("t", "g0", "w", held))
        return STEP // 10

    def prepare() -> Run:
        nonlocal number
        for _ in range(STEP):
            number += 1
            marks = mark(number) if mark is not None else ()
            execute(broker, c.Produce("t", ONE, 1, 100, partition=0, marks=marks))
        return run

    return prepare


def in_backoff(count: int) -> Callable[[], Run]:
    """Claims and acks of one message while many wait in backoff, due in an hour."""
    broker = new_broker(groups=1)
    hold_messages(broker, then_nack=True)(count)

    def prepare() -> Run:
        fill(broker, STEP)

        def run() -> int:
            for _ in range(STEP):
                reply = execute(broker, c.Claim("t", "g0", "w", 1))
                assert isinstance(reply, Claimed)
                delivery = reply.deliveries[0]
                execute(broker, c.Ack("t", "g0", "w", (c.Held(0, delivery.first, delivery.end, reply.token),)))
            return STEP

        return run

    return prepare


def overdue(count: int) -> Callable[[], Run]:
    """Claims of one message while many are due for a retry. Deciding changes nothing, so it is repeated."""
    broker = new_broker(groups=1)
    hold_messages(broker, then_nack=True)(count)
    command = c.Claim("t", "g0", "w", 1)

    def run() -> int:
        for _ in range(50):
            broker.decide(command, NOW_MS + 7_200_000)
        return 50

    return lambda: run


def one_lost_lease(count: int) -> Callable[[], Run]:
    """The sweep of a single lost lease while many messages wait in backoff."""
    broker = new_broker(groups=1)
    hold_messages(broker, then_nack=True)(count)
    fill(broker, 1)
    execute(broker, c.Claim("t", "g0", "w", 1, lease_ms=1_000))
    command = broker.due(NOW_MS + 2_000)
    assert command is not None

    def run() -> int:
        for _ in range(10):
            broker.decide(command, NOW_MS + 2_000)
        return 10

    return lambda: run


def staged(count: int) -> Callable[[], Run]:
    """Stage and publish of one writer while others have staged."""
    broker = new_broker()
    for number in range(count):
        execute(broker, c.Stage(f"other-{number}", f"other-{number}", ONE, 1, 100, topic="t", partition=0))
    turn = 0

    def prepare() -> Run:
        nonlocal turn
        turn += 1
        stage = c.Stage("w", f"h{turn}", ONE, 1, 100, topic="t", partition=0)
        return executed(broker, [stage, c.Publish("w", turn, (f"h{turn}",))])

    return prepare


def batches_read_by(groups: int) -> Callable[[], Run]:
    """Batches of 1,024 records: each begins where the lowest floor is looked up."""
    return producing(new_broker(groups=groups), c.Produce("t", THOUSAND, 1_024, 102_400, partition=0))


def with_history(count: int) -> Callable[[], Run]:
    broker = new_broker()
    for _ in range(count):
        execute(broker, PLAIN)
    return producing(broker)


def by_task(lanes: int) -> Callable[[int], tuple[f.RecordSchedule, ...]]:
    return lambda number: (f.RecordSchedule(0, task=f"task-{number % lanes}"),)


def flatness(large: int, runs: int, only: str) -> None:
    few = min(1_000, large)
    by_priority = [(f.RecordSchedule(0, priority=n),) for n in range(10)]
    cases: dict[str, tuple[Callable[[int], Callable[[], Run]], int, int]] = {
        "produce, messages of history": (with_history, few, large),
        "produce, idempotency keys": (keys_known, 10, large),
        "produce, groups": (lambda n: producing(new_broker(groups=n)), 1, few),
        "produce batches of 1024, groups": (batches_read_by, 1, few),
        "produce with task, lanes": (producing_by_task, 10, min(900, large)),
        "claim 10 + ack, messages of backlog": (claiming, few, large),
        "claim 10 + ack, messages of backlog in 10 priorities": (
            lambda n: claiming(n, lambda number: by_priority[number % 10]), few, large // 4,
        ),
        "claim 10 + ack, lanes": (lambda n: claiming(2 * few, by_task(n)), 1, min(900, large)),
        "claim 1 + ack, messages in backoff": (in_backoff, 10, large // 10),
        "claim 1, messages due for retry": (overdue, 10, large // 10),
        "sweep of one lost lease, messages in backoff": (one_lost_lease, 10, large // 10),
        "stage + publish, stages of other writers": (staged, 10, large // 100),
    }  # fmt: skip
    for name, (make, little, much) in cases.items():
        if only not in name:
            continue
        gc.collect()
        with_little, with_much = make(little), make(much)
        gc.collect()
        gc.freeze()  # the garbage collector skips what exists now, as in a server after its start
        pairs = [(cost_of(with_little()).cpu_us, cost_of(with_much()).cpu_us) for _ in range(4 * runs)]
        gc.unfreeze()
        small, big = median([pair[0] for pair in pairs]), median([pair[1] for pair in pairs])
        case, _, what = name.partition(", ")
        emit(
            "scaling", f"{case}: {little} or {much} {what}", big / small, "ratio", cpu_us_per_op=big, cpu_us_small=small
        )


def producing_by_task(lanes: int) -> Callable[[], Run]:
    broker = new_broker(groups=1)
    for number in range(lanes):
        execute(broker, c.Produce("t", ONE, 1, 100, partition=0, marks=by_task(lanes)(number)))
    return producing(broker, c.Produce("t", ONE, 1, 100, partition=0, marks=by_task(lanes)(0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    memory(max(1_000, options.large // 20), options.only)
    flatness(options.large, options.runs, options.only)


if __name__ == "__main__":
    main()

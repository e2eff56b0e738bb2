"""One story of a few hundred operations, told once, and at each call to the disk by a copy that meets a fault there.

    python -m tests.simulation.fault_driver FAULT EVERY

The story has every kind of client in it, checkpoints, sweeps and restarts. Copies are forks, so the caller should
be small: as a program of its own it has a third of a test runner's memory to copy.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
import traceback
import warnings
from functools import cache

from driftq.core.model.limits import BrokerLimits
from driftq.engine.recovery import StorageOptions
from tests.simulation.run import finish, perform
from tests.simulation.swarm import ACTORS, FaultPlan, Swarm, draw
from tests.simulation.trace import Trace
from tests.simulation.world import World
from tests.support.simdisk import Fault

SEED = 39  # few calls, and every kind of them
OPERATIONS = 200
AFTERWARDS = 50  # operations that follow a fault, if the story has as many left
NO_FAULTS = FaultPlan(0, 0, 0, 0, "", ("eio",), 0.0, False, 0.0)


@cache
def story() -> Swarm:
    return dataclasses.replace(
        draw(SEED, OPERATIONS),
        kind="plain",
        weights=dict(ACTORS),
        options=StorageOptions(9_000, 600, 2_000, 8),
        limits=BrokerLimits(
            in_flight_max=5,
            key_ttl_ms=2_000,
            stage_ttl_ms=4_000,
            effect_lease_ms=300,
            message_bytes=2_000,
            batch_bytes=1_200,  # what one command buries must fit into a segment
        ),
        faults=NO_FAULTS,
        commit_chance=0.4,
        slow_commit=0.3,
        pace_ms=40,
        lease_ms=300,
        value_bytes=60,
        partitions=2,
        topics=2,
        checks_folds=True,
    )


class Teller:
    """Runs the story once. At each call that the fault can strike the process is copied: the copy meets the fault,
    starts again, continues for a while and comes to the end; the original waits for its verdict and continues as if
    nothing had been."""

    def __init__(self, fault: Fault | None = None, every: int = 1) -> None:
        self.labels: list[str] = []
        self.copies = 0
        self.broken: list[str] = []
        self.world = World(story(), Trace())
        self._fault = fault
        self._every = every
        self._tellings = 0
        self._verdict: int | None = None  # where a copy writes it
        self.world.disk.on_call = self._on_call
        self.world.faults.enabled = False  # there is this one fault and no other

    def tell(self) -> None:
        gc.freeze()  # what is there already need not be copied because a collection touched it
        try:
            self.world.start()
            perform(self.world)
            self.world.disk.on_call = None
            finish(self.world)
            struck = self._fault is None or self._fault.value in self.world.disk.fault_counts
            said = "" if struck else "the fault did not strike"
        except BaseException:
            if self._verdict is None:
                raise
            said = traceback.format_exc()
        if self._verdict is None:
            gc.unfreeze()
        else:
            os.write(self._verdict, said.encode()[-60_000:])  # a pipe takes as much without a reader
            os._exit(0)

    def _on_call(self, label: str) -> Fault | None:
        self.labels.append(label)
        if self._fault is None or not is_telling(self._fault, label):
            return None
        self._tellings += 1
        return None if self._tellings % self._every else self._copy(label)

    def _copy(self, label: str) -> Fault | None:
        verdict, to_verdict = os.pipe()
        self.copies += 1
        child = _fork()
        if child == 0:
            self._verdict = to_verdict
            self.world.disk.on_call = None
            self.world.operations = max(self.world.operations, OPERATIONS - AFTERWARDS)
            cuts_power = float(self.copies % 3 > 0)
            self.world.faults.plan = dataclasses.replace(self.world.faults.plan, power=cuts_power)
            return self._fault
        os.close(to_verdict)
        with os.fdopen(verdict, "rb") as answers:
            said = answers.read().decode()
        _, status = os.waitpid(child, 0)
        if said or status:
            self.broken.append(f"{self._fault} at call {len(self.labels)}, {label}: {said or f'ended with {status}'}")
        return None


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn of threads: a test runner's may be there, and the copy neither uses nor waits for them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def is_telling(fault: Fault, label: str) -> bool:
    """A sync cannot run out of room, and only a write can be short."""
    if fault is Fault.SHORT:
        return label in ("journal.append", "journal.header", "log.append", "log.header", "index.write") or (
            label.endswith((".write", ".end"))
        )
    return fault is not Fault.ENOSPC or "sync" not in label


def main(fault: str, every: str) -> None:
    """Prints how many copies there were, and what broke in them."""
    teller = Teller(Fault(fault), int(every))
    teller.tell()
    print(json.dumps({"copies": teller.copies, "broken": teller.broken}))


if __name__ == "__main__":
    main(*sys.argv[1:])

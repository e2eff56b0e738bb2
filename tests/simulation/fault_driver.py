"""Runs one workload of a few hundred operations, and injects a fault at each disk call in a forked copy.

    python -m tests.simulation.fault_driver FAULT EVERY

The workload has every kind of client, checkpoints, sweeps and restarts. It runs as a program of its own, because a fork
copies the memory of its parent, and a test runner has three times as much.
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
from driftq.engine.folder_storage import StorageOptions
from tests.simulation.run import finish, perform
from tests.simulation.swarm import ACTORS, FaultPlan, Swarm, draw
from tests.simulation.trace import Trace
from tests.simulation.world import World
from tests.support.simdisk import Fault

SEED = 44  # few disk calls, of every kind
OPERATIONS = 300
AFTERWARDS = 50  # operations after a fault, if the workload has as many left
NO_FAULTS = FaultPlan(0, 0, 0, 0, "", ("eio",), 0.0, False, 0.0)


@cache
def workload() -> Swarm:
    return dataclasses.replace(
        draw(SEED, OPERATIONS),
        kind="plain",
        weights=dict(ACTORS),
        options=StorageOptions(9_000, 600, 2_000, 8, share_bytes=1_300, shared_segment_bytes=300),
        limits=BrokerLimits(
            in_flight_max=5,
            key_ttl_ms=2_000,
            stage_ttl_ms=4_000,
            effect_lease_ms=300,
            message_bytes=2_000,
            batch_bytes=1_200,  # the dead letters of one command must fit into a segment
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


class FaultDriver:
    """Runs the workload once. At each disk call that can fail in this way the process forks. The child gets the fault,
    restarts, continues for a while and finishes; the parent waits for its result and continues without the fault."""

    def __init__(self, fault: Fault | None = None, every: int = 1) -> None:
        self.labels: list[str] = []
        self.copies = 0
        self.broken: list[str] = []
        self.world = World(workload(), Trace())
        self._fault = fault
        self._every = every
        self._fault_points = 0
        self._result_fd: int | None = None  # in a child: where it writes its result
        self.world.disk.on_call = self._on_call
        self.world.faults.enabled = False  # no faults but this one

    def run(self) -> None:
        gc.freeze()  # a collection in a child must not touch, and so copy, the objects of the parent
        try:
            self.world.start()
            perform(self.world)
            self.world.disk.on_call = None
            finish(self.world)
            struck = self._fault is None or self._fault.value in self.world.disk.fault_counts
            failure = "" if struck else "the fault did not strike"
        except BaseException:
            if self._result_fd is None:
                raise
            failure = traceback.format_exc()
        if self._result_fd is None:
            gc.unfreeze()
        else:
            os.write(self._result_fd, failure.encode()[-60_000:])  # fits into a pipe without a reader
            os._exit(0)

    def _on_call(self, label: str) -> Fault | None:
        self.labels.append(label)
        if self._fault is None or not can_strike(self._fault, label):
            return None
        self._fault_points += 1
        return None if self._fault_points % self._every else self._copy(label)

    def _copy(self, label: str) -> Fault | None:
        result_fd, child_fd = os.pipe()
        self.copies += 1
        child = _fork()
        if child == 0:
            self._result_fd = child_fd
            self.world.disk.on_call = None
            self.world.operations = max(self.world.operations, OPERATIONS - AFTERWARDS)
            cuts_power = float(self.copies % 3 > 0)
            self.world.faults.plan = dataclasses.replace(self.world.faults.plan, power=cuts_power)
            return self._fault
        os.close(child_fd)
        with os.fdopen(result_fd, "rb") as result:
            failure = result.read().decode()
        _, status = os.waitpid(child, 0)
        if failure or status:
            self.broken.append(
                f"{self._fault} at call {len(self.labels)}, {label}: {failure or f'ended with {status}'}"
            )
        return None


def _fork() -> int:
    with warnings.catch_warnings():
        # Newer Pythons warn about threads. A test runner may have some; the child neither uses nor waits for them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def can_strike(fault: Fault, label: str) -> bool:
    """Whether the call can fail in this way: a sync cannot run out of space, and only a write can be short."""
    if fault is Fault.SHORT:
        return label in ("journal.append", "journal.header", "log.append", "log.header", "index.write") or (
            label.endswith((".write", ".end"))
        )
    return fault is not Fault.ENOSPC or "sync" not in label


def main(fault: str, every: str) -> None:
    """Prints the number of forks and what failed in them."""
    driver = FaultDriver(Fault(fault), int(every))
    driver.run()
    print(json.dumps({"copies": driver.copies, "broken": driver.broken}))


if __name__ == "__main__":
    main(*sys.argv[1:])

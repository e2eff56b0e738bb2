"""One story of a few hundred operations, told again and again; each time another call to the disk fails.

The story has every kind of client in it, checkpoints, sweeps and restarts. N = 1, 2, 3 … until a telling needs fewer
calls: the Nth call crashes the machine before or after its effect, fails, finds no room, or writes only a part. After
each the process starts again, the story goes on to its end, and every check of the simulation is made.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from driftq.core.limits import Limits
from driftq.engine.recovery import StorageOptions
from tests.simulation.run import finish, perform
from tests.simulation.swarm import ACTORS, FaultPlan, Swarm, draw
from tests.simulation.trace import Trace
from tests.simulation.world import World
from tests.support.simdisk import Fault

OPERATIONS = 300
NO_FAULTS = FaultPlan(0, 0, 0, 0, "", ("eio",), 0.0, False, 0.0)
EVERY = {"dev": 9, "ci": 3, "release": 1}


@cache
def story() -> Swarm:
    return dataclasses.replace(
        draw(2, OPERATIONS),
        kind="plain",
        weights=dict(ACTORS),
        options=StorageOptions(9_000, 600, 2_000, 8),
        limits=Limits(
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


def tell(nth: int, fault: Fault | None, *, power: bool = True) -> World:
    """The story with one fault in it. Raises if a promise is broken."""
    plan = dataclasses.replace(NO_FAULTS, power=float(power))
    world = World(dataclasses.replace(story(), faults=plan), Trace())
    if fault is not None:
        world.disk.fail_nth(nth, fault)
    world.faults.enabled = fault is None  # the one fault stays armed; there are no others
    world.start()
    perform(world)
    finish(world)
    return world


@cache
def calls() -> list[str]:
    """The labels of the story's calls, in order, when nothing fails."""
    labels: list[str] = []
    world = World(story(), Trace())
    enter = world.disk.enter

    def noted(label: str) -> Fault | None:
        labels.append(label)
        return enter(label)

    world.disk.enter = noted  # type: ignore[method-assign]
    world.start()
    perform(world)
    return labels


def is_telling(fault: Fault, label: str) -> bool:
    """A sync cannot run out of room, and only a write can be short."""
    if fault is Fault.SHORT:
        return label in ("journal.append", "journal.header", "log.append", "log.header", "index.write") or (
            label.endswith((".write", ".end"))
        )
    return fault is not Fault.ENOSPC or "sync" not in label


def test_the_story_touches_everything():
    labels = set(calls())
    assert len(calls()) > 300, "the story is too short to say much"
    assert {"snapshot.rename", "journal.trim.remove", "log.remove", "log.sync", "journal.watermark.sync"} <= labels
    asked = tell(1, None).commands
    wanted = {"Produce", "Claim", "Ack", "Nack", "AppendStream", "CreateStream", "Stage", "Publish", "BeginEffect"}
    assert wanted <= set(asked), wanted - set(asked)


@pytest.mark.parametrize("fault", Fault)
def test_whichever_call_fails_no_promise_is_broken(fault, profile):
    numbers = [n for n, label in enumerate(calls(), 1) if is_telling(fault, label)]
    hit = 0
    for nth in numbers[:: EVERY[profile]]:
        try:
            world = tell(nth, fault, power=nth % 3 > 0)
        except Exception as error:
            raise AssertionError(f"{fault.value} at call {nth}, {calls()[nth - 1]}: {error}") from error
        hit += world.disk.fault_counts.get(fault.value, 0)
    assert hit >= len(numbers[:: EVERY[profile]]) * 0.9

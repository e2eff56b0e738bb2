"""The checks of corrupted disks, in situations that seeds rarely produce."""

from __future__ import annotations

from driftq.core.model import commands as c
from tests.simulation.corruption import begin_lying, end_lying
from tests.simulation.fault_driver import workload
from tests.simulation.operation import Operation
from tests.simulation.run import Drainer
from tests.simulation.trace import Trace
from tests.simulation.world import World
from tests.support.broker_fixture import produce


def half_committed(world: World) -> Operation:
    """A command that a lying device has stored, or not, and that was not acknowledged."""
    client = Drainer(world)
    world.submit(c.CreateTopic("t"), client)
    world.commit_all()
    begin_lying(world)
    op = world.submit(produce("m"), client)
    world.commit(at_once=False)  # taken
    world.commit(at_once=False)  # stored
    return op


def started() -> World:
    world = World(workload(), Trace())
    world.faults.enabled = False
    world.start()
    return world


def test_an_unacknowledged_frame_that_a_lying_device_kept_is_no_violation():
    world = started()
    op = half_committed(world)
    assert op.reply is None
    end_lying(world, "all")
    assert world.counts["lies harmless"] == 1
    assert world.audit.lsn == op.lsn


def test_an_unacknowledged_frame_that_a_lying_device_lost_is_no_violation():
    world = started()
    op = half_committed(world)
    end_lying(world, "none")
    assert world.counts["lies harmless"] == 1
    assert world.audit.lsn == op.lsn - 1

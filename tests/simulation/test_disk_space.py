"""How much work the sequencer admits when the disk is full, with the real journal on a simulated disk.

If it reserves too little space, the engine stops; if it reserves too much, it refuses work although there is space.
"""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected, Reply
from driftq.engine.folder_storage import Opened, StorageOptions, open_folder
from driftq.engine.group_commit import COMMIT_FRAMES_MAX
from driftq.engine.sequencer import Sequencer
from driftq.wire.errors import Code
from tests.support.broker_fixture import SeededChance, produce
from tests.support.simdisk import SimDisk


class Machine:
    """An engine's parts on a disk that can be filled."""

    def __init__(self, segment_bytes: int, limits: BrokerLimits) -> None:
        self.disk = SimDisk()
        self.disk.make_folder("t", "d")
        options = StorageOptions(segment_bytes, 1 << 20)
        self.opened: Opened = open_folder(self.disk, "d", bytes(16), limits, SeededChance(), options)
        self.replies: list[Reply] = []
        self.sequencer = Sequencer(
            self.opened.broker,
            self.opened.store,
            0,
            options.journal_room(self.opened.journal.room_bytes()),
        )

    def send(self, command: c.Command, now_ms: int = 1) -> None:
        self.sequencer.submit(command, now_ms, self.replies.append)

    def commit(self) -> None:
        while (taken := self.sequencer.take_batch(COMMIT_FRAMES_MAX)) is not None:
            lsn = self.opened.journal.append(taken.expected_lsn, taken.frames)
            self.sequencer.room.free_bytes = self.opened.journal.room_bytes()
            self.sequencer.on_durable(lsn)

    def ask(self, command: c.Command, now_ms: int = 1) -> Reply:
        self.send(command, now_ms)
        self.commit()
        return self.replies[-1]

    def use_up_the_segment(self) -> None:
        """Write until the spare segment is nearly all the room there is."""
        room_bytes = self.opened.options.segment_room_bytes()
        pauses = True
        while self.opened.journal.room_bytes() > room_bytes + 100:
            self.ask(c.PauseGroup("t", "g", pauses))
            pauses = not pauses
        self.ask(c.PauseGroup("t", "g", False))
        assert self.opened.journal.room_bytes() >= room_bytes, "the spare segment should be there"


@pytest.mark.parametrize("segment_bytes", [6_500, 12_288, 49_152])
def test_new_work_is_taken_when_only_a_spare_segment_is_left(segment_bytes):
    machine = Machine(segment_bytes, BrokerLimits())
    machine.ask(c.CreateTopic("t"))
    machine.ask(c.CreateGroup("t", "g"))
    machine.use_up_the_segment()
    value = "v" * (machine.opened.options.segment_room_bytes() // 2)
    assert not isinstance(machine.ask(produce(value)), Rejected)


def test_a_claim_whose_frame_fills_most_of_a_segment_is_taken_when_only_the_spare_is_left():
    machine = Machine(12_288, BrokerLimits(in_flight_max=2_000, retry_ratio=0.0))
    machine.ask(c.CreateTopic("t"))
    machine.ask(c.CreateGroup("t", "g"))
    for number in range(30):
        assert not isinstance(machine.ask(produce(f"{number}")), Rejected)
    machine.use_up_the_segment()
    reply = machine.ask(c.Claim("t", "g", "w" * 6_000, 30, 10_000))
    assert isinstance(reply, Claimed), reply
    assert reply.deliveries


def test_thousands_of_small_frames_at_once_do_not_stop_an_engine_on_a_full_disk():
    machine = Machine(16_384, BrokerLimits())
    machine.ask(c.CreateTopic("t"))
    machine.ask(c.CreateGroup("t", "g"))
    machine.use_up_the_segment()
    machine.disk.capacity_bytes = machine.disk.used_bytes
    del machine.replies[:]
    for number in range(3_000):
        machine.send(c.PauseGroup("t", "g", bool(number % 2)))
    machine.commit()  # raises if a frame was admitted without space for it
    refused = [reply for reply in machine.replies if isinstance(reply, Rejected)]
    assert {reply.code for reply in refused} == {Code.DISK_FULL}
    assert 1_000 < len(refused) < 2_500

"""Whichever call to the disk fails: in each copy of one story (`teller`) it is another.

At its first, second, third … call a copy goes another way: there the call crashes the machine, fails, finds no room,
or writes only a part. After that the process starts again, the story continues for a while and comes to its end, and
every check of the simulation is made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.fault_driver import Teller
from tests.support.simdisk import Fault

ROOT = Path(__file__).parents[2]
EVERY = {"dev": 9, "ci": 1, "release": 1}


def test_the_story_touches_everything():
    teller = Teller()
    teller.tell()
    assert len(teller.labels) > 300, "the story is too short to say much"
    wanted = {"snapshot.rename", "journal.trim.remove", "log.remove", "log.sync", "journal.watermark.sync"}
    assert wanted <= set(teller.labels), wanted - set(teller.labels)
    asked = {"Produce", "Claim", "Ack", "Nack", "AppendStream", "CreateStream", "Stage", "Publish", "BeginEffect"}
    assert asked <= set(teller.world.commands), asked - set(teller.world.commands)


# A crash behind a call is a crash before the next: in between nothing touches the disk, and memory is lost in both.
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.CRASH_AFTER])
def test_whichever_call_fails_no_promise_is_broken(fault, profile):
    line = [sys.executable, "-m", "tests.simulation.fault_driver", fault.value, str(EVERY[profile])]
    told = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found["copies"] > 100 / EVERY[profile], "there was too little to strike at"
    assert not found["broken"], "\n\n".join(found["broken"][:3])

"""Each disk call of one workload fails once, in a forked copy (`fault_driver`).

The nth call crashes the machine, returns an error, finds no space or writes only a part. Then the process restarts, the
workload continues for a while and finishes, and every check of the simulation runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.fault_driver import FaultDriver
from tests.support.simdisk import Fault

ROOT = Path(__file__).parents[2]
EVERY = {"quick": 27, "dev": 9, "ci": 1, "release": 1}


def test_the_workload_reaches_every_kind_of_disk_call_and_command():
    driver = FaultDriver()
    driver.run()
    assert len(driver.labels) > 300, "the workload is too short"
    wanted = {"snapshot.rename", "journal.trim.remove", "log.remove", "log.sync", "shared.append"}
    assert wanted <= set(driver.labels), wanted - set(driver.labels)
    asked = {"Produce", "Claim", "Ack", "Nack", "AppendStream", "CreateStream", "Stage", "Publish", "BeginEffect"}
    assert asked <= set(driver.world.commands), asked - set(driver.world.commands)


# A crash after a call is the same as a crash before the next one: nothing touches the disk in between.
@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.CRASH_AFTER])
def test_no_promise_is_broken_whichever_disk_call_fails(fault, profile):
    line = [sys.executable, "-m", "tests.simulation.fault_driver", fault.value, str(EVERY[profile])]
    completed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result["copies"] > 100 / EVERY[profile], "too few disk calls were tried"
    assert not result["broken"], "\n\n".join(result["broken"][:3])

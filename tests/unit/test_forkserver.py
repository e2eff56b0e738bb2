"""What tests start servers with: it must not fail them by itself."""

from __future__ import annotations

import io
import os
import struct
import subprocess

from tests.support.forkserver import Born


def test_a_process_that_has_ended_while_nobody_knows_can_be_killed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    status, to_status = os.pipe()
    born = Born(gone.pid, io.StringIO(), status)

    born.kill()
    os.write(to_status, struct.pack("<i", 3))
    os.close(to_status)

    assert born.wait(1.0) == 3
    born.kill()
    assert born.returncode == 3

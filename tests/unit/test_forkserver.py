"""The fork server that tests start processes with must not fail them by itself."""

from __future__ import annotations

import io
import os
import struct
import subprocess

from tests.support.forkserver import ForkedProcess


def test_killing_a_process_whose_end_was_not_reported_yet_is_harmless() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    status, to_status = os.pipe()
    process = ForkedProcess(ended.pid, io.StringIO(), status)

    process.kill()
    os.write(to_status, struct.pack("<i", 3))
    os.close(to_status)

    assert process.wait(1.0) == 3
    process.kill()
    assert process.returncode == 3

"""A machine is lost under load, again and again: what the archive promises is there on the next one."""

from __future__ import annotations

import pytest

from tests.crash.lost_machine import run_cycles

CYCLES = {"quick": 1, "dev": 2, "ci": 3, "release": 50}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_was_promised_is_there_on_the_next_machine(tmp_path, profile, seed, mode):
    (tmp_path / "archive").mkdir()
    audit = run_cycles(tmp_path, str(tmp_path / "archive"), mode, CYCLES[profile], seed)
    assert audit.cycles == CYCLES[profile]
    assert len(audit.stored) > 20
    print(f"{mode}: {audit.cycles} machines lost, {len(audit.stored)} there, {audit.lost} lost within the lag")

"""The power of a real ext4 filesystem is cut under load: what was acknowledged before the cut is there afterwards.

Only replies that arrived before the cut count: a sync that races the cut may succeed although its data is lost, and a
real cut would stop the client too. Without syncs the same loop must lose data, or it proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.crash.broker_run import BrokerProcess
from tests.crash.kill_loop import KillLoop, run_and_settle, run_until_caught
from tests.crash.mounts import PowerCut, not_here
from tests.support.wait import until_now

CUTS = {"dev": 8, "ci": 30, "release": 1_000}
SIZE_BYTES = 64 << 20


class PowerCutLoop(KillLoop):
    """A kill loop whose processes end with a power cut."""

    def __init__(self, power: PowerCut, profile: str, seed: int, *options: str) -> None:
        super().__init__(str(power.at / "data"), seed, *options)
        self.power = power
        self.profile = profile

    async def end_process(self, broker: BrokerProcess) -> None:
        broker.ignored = True
        self.power.cut(self.profile)
        await broker.kill()
        until_now(self.is_unmounted, 20)  # a checkpoint of the killed broker may still hold its files
        self.power.mount_again()

    def is_unmounted(self) -> bool:
        try:
            self.power.unmount()
        except OSError:
            return False
        return True


@contextlib.contextmanager
def filesystem(folder: Path, profile: str) -> Iterator[PowerCut]:
    power = PowerCut(folder, SIZE_BYTES, profile)
    try:
        yield power
    finally:
        power.close()


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path, profile, seed):
    with filesystem(tmp_path, profile) as power:
        loop = PowerCutLoop(power, profile, seed)
        asyncio.run(run_and_settle(loop, CUTS[profile]))
    print(f"{CUTS[profile]} cuts, {loop.replies} replies, {len(loop.ledger.stored)} stored, {loop.torn} torn tails")


def test_a_cut_filesystem_that_another_namespace_holds_is_mounted_from_a_copy(tmp_path, profile):
    with filesystem(tmp_path, profile) as power:
        sandbox = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", "echo in; exec sleep 60"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert sandbox.stdout is not None
            if sandbox.stdout.readline() != "in\n":
                not_here("a mount namespace cannot be made here", profile)
            (power.at / "kept").write_text("synced")
            os.sync()
            power.cut(profile)
            power.unmount()
            power.mount_again()
            assert (power.at / "kept").read_text() == "synced"
            (power.at / "LOCK").write_text("new")
        finally:
            sandbox.kill()
            sandbox.communicate()


def test_without_syncs_a_power_cut_loses_data_and_the_audit_notices(tmp_path, profile, seed):
    with filesystem(tmp_path, profile) as power:
        loop = PowerCutLoop(power, profile, seed, "--mutate", "no_sync")
        assert asyncio.run(run_until_caught(loop, 20))

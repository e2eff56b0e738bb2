"""Faults of one run, drawn from its seed: crashes and errors at disk calls, a disk that fills, clocks that jump.

Decides when and which. `tests.support.simdisk` does the damage, and `world` handles the consequences for the process.
Every fault is counted, because a fault that never happened proves nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from random import Random

from tests.simulation.swarm import INFREQUENT, RARE, FaultPlan
from tests.support.simdisk import Fault, SimDisk

PATIENCE = 40  # faults, after which they are half as frequent, then a third as frequent …
KINDS = {"eio": Fault.EIO, "enospc": Fault.ENOSPC, "short": Fault.SHORT}
JUMPS_MS = (-86_400_000, -3_600_000, -60_000, -700, 0, 0, 300, 5_000, 700_000, 3_600_000, 86_400_000)


class Faults:
    """Decides where the next fault strikes."""

    def __init__(self, plan: FaultPlan, seed: int) -> None:
        self.plan = plan
        self.random = Random(f"faults {seed}")
        self.counts: Counter[str] = Counter()
        self.at_labels: Counter[str] = Counter()
        self.enabled = True
        self._strikes = 0
        self._cause = RARE.get(plan.label, "") if plan.crash_calls else ""  # the only place of crashes
        self._crash_left = self._gap(plan.crash_calls)
        self._error_left = self._gap(plan.error_calls)
        self._label_left = self._label_gap()

    def _gap(self, mean: int) -> int:
        return 1 + int(self.random.expovariate(1 / mean) * self._calm()) if mean else 1 << 60

    def _calm(self) -> int:
        """If a crash struck every checkpoint, every start would replay the whole history, and nothing after a
        checkpoint would be tested. So faults become less frequent."""
        return 1 + self._strikes // PATIENCE

    def _label_gap(self) -> int:
        if not self.plan.label:
            return 0
        if self.plan.label in INFREQUENT:
            return 1
        return self._calm() * self.random.choice((1, 2) if self.plan.label in RARE else (1, 1, 2, 3, 5, 9, 20, 60))

    def arm(self, disk: SimDisk) -> None:
        """For a new process: a crash removes the hook of the disk."""
        if self.enabled:
            disk.on_call = self.on_call

    def on_call(self, label: str) -> Fault | None:
        if not self._cause or label == self._cause:
            self._crash_left -= 1
        self._error_left -= 1
        if self._crash_left <= 0:
            self._crash_left = self._gap(self.plan.crash_calls)
            return self._strike(label, Fault.CRASH_BEFORE if self._cause else self._crash())
        if self._error_left <= 0:
            self._error_left = self._gap(self.plan.error_calls)
            return self._strike(label, KINDS[self.random.choice(self.plan.kinds)])
        if label == self.plan.label:
            self._label_left -= 1
            if self._label_left == 0:
                self._label_left = self._label_gap()
                if self.plan.error_calls and self.random.random() < 0.4:
                    return self._strike(label, KINDS[self.random.choice(self.plan.kinds)])
                if self.plan.crash_calls:
                    return self._strike(label, self._crash())
        return None

    def _crash(self) -> Fault:
        return Fault.CRASH_BEFORE if self.random.random() < 0.5 else Fault.CRASH_AFTER

    def _strike(self, label: str, fault: Fault) -> Fault:
        self._strikes += 1
        self.counts[fault.value] += 1
        self.at_labels[label] += 1
        return fault

    def stop(self) -> None:
        """No more faults, neither in starts nor in the clock."""
        self.plan = dataclasses.replace(self.plan, in_recovery=0.0, jumps=False, full_steps=0, kill_steps=0)

    def in_recovery(self) -> bool:
        return self.random.random() < self.plan.in_recovery

    def cuts_power(self) -> bool:
        return self.random.random() < self.plan.power

    def keep(self) -> str:
        """What a power cut leaves of the writes that were not synced."""
        return self.random.choice(("random", "random", "random", "none", "all")) if not self._cause else "random"

    def jump_ms(self) -> int:
        """How far the wall clock was set while the process was down."""
        jump = self.random.choice(JUMPS_MS) if self.plan.jumps and self.random.random() < 0.5 else 0
        if jump:
            self.counts["jump forward" if jump > 0 else "jump back"] += 1
        return jump

    def fills(self) -> bool:
        """Whether the disk fills at this step."""
        return bool(self.plan.full_steps) and self.random.random() * self.plan.full_steps < 1

    def kills(self) -> bool:
        return bool(self.plan.kill_steps) and self.random.random() * self.plan.kill_steps < 1

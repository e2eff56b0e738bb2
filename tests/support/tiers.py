"""How long each kind of test took: the table at the end of a pytest run, and the one over all the runs of `make test`.

`make test` starts pytest several times. Each run appends one JSON line to the file that DRIFTQ_TIERS names;
`python -m tests.support.tiers FILE` adds them up. Seconds are those of the tests themselves: tests that ran at the same
time in several processes are added, so a sum may be larger than the elapsed time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

OUTCOMES = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")
FILE_VARIABLE = "DRIFTQ_TIERS"


@dataclass
class Tier:
    """The tests of one kind: how they ended, and for how long they ran."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass
class TierRun:
    """The tiers of one pytest run, or of several added up."""

    tiers: dict[str, Tier] = field(default_factory=dict)

    def add(self, name: str, outcome: str, seconds: float, count: int = 1) -> None:
        tier = self.tiers.setdefault(name, Tier())
        tier.outcomes[outcome] += count
        tier.seconds += seconds

    def table(self, order: list[str]) -> list[str]:
        """The lines of the table, in the order of the tiers' names."""
        lines = [f"{'tier':<12} {'tests':>6} {'seconds':>9}   outcomes"]
        for name in sorted(self.tiers, key=lambda name: order.index(name) if name in order else len(order)):
            tier = self.tiers[name]
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in tier.outcomes.items() if count)
            lines.append(f"{name:<12} {tier.outcomes.total():>6} {tier.seconds:>9.1f}   {outcomes}")
        return lines

    def append_to_file(self) -> None:
        """Append this run to the file of all runs, if there is one."""
        if path := os.environ.get(FILE_VARIABLE):
            entry = {name: {"outcomes": tier.outcomes, "seconds": tier.seconds} for name, tier in self.tiers.items()}
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")


def total(lines: list[str]) -> TierRun:
    """All runs added up."""
    run = TierRun()
    for line in lines:
        for name, tier in json.loads(line).items():
            for outcome, count in tier["outcomes"].items():
                run.add(name, outcome, 0.0, count)
            run.tiers[name].seconds += tier["seconds"]
    return run


def main(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    begun_s, *runs = lines
    print("\n".join(total(runs).table([])))
    minutes, seconds = divmod(round(time.time() - float(begun_s)), 60)
    print(f"{len(runs)} pytest runs, {minutes} min {seconds} s by the clock, with setup and checks")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

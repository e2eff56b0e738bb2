"""`python -m tests.simulation SEED [--count N] [--ops N] [--trace] [--processes N] [--report FILE]`

One seed is replayed with its trace; many seeds run on all processors, the failing ones from `seeds.txt` first. The exit
code is 1 if a promise was broken or an event that must happen never happened.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from tests.simulation.run import OPERATIONS, run_seed
from tests.simulation.seed_runs import Tally, known_seeds, run_many
from tests.simulation.swarm import draw


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, help="the seed, or the first of many")
    parser.add_argument("--count", type=int, default=1, help="how many seeds (default: 1)")
    parser.add_argument("--ops", type=int, default=OPERATIONS, help=f"operations for each seed (default: {OPERATIONS})")
    parser.add_argument("--trace", action="store_true", help="print every command and reply")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", help="write the figures here, as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.count == 1:
        return _one(chosen.seed, chosen.ops, chosen.trace)
    return _many(chosen)


def _one(seed: int, operations: int, trace: bool) -> int:
    lines: list[str] = []
    result = run_seed(seed, operations, print if trace else lines.append)
    if not trace:
        print("\n".join(line[:300] for line in lines[-30:]) if result.error else "no promise was broken")
    print(f"\nseed {seed}, {result.kind}: {result.operations} operations, trace {result.trace}")
    print(f"configuration: {draw(seed, operations)}")
    for name in ("counts", "faults", "commands", "replies"):
        print(f"{name}: {dict(sorted(getattr(result, name).items()))}")
    if result.error:
        print(f"\n{result.error}\nreplay: python -m tests.simulation {seed} --ops {operations} --trace")
    return 1 if result.error else 0


def _many(chosen: argparse.Namespace) -> int:
    seeds = list(dict.fromkeys([*known_seeds(), *range(chosen.seed, chosen.seed + chosen.count)]))
    began = time.monotonic()
    tally = run_many(seeds, chosen.ops, chosen.processes, progress=_progress(len(seeds)))
    seconds = time.monotonic() - began
    print(f"\n{tally.summary(seconds)}")
    if chosen.report:
        figures = tally.figures(seconds) | {
            "commit": _commit(),
            "first_seed": chosen.seed,
            "processes": chosen.processes,
        }
        with open(chosen.report, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1, sort_keys=True)
            file.write("\n")
    for seed, error in tally.broken[:20]:
        print(f"\nseed {seed}: {error}\nreplay: python -m tests.simulation {seed} --ops {chosen.ops} --trace")
    missing = tally.never() if chosen.count >= 250 else []
    if missing:
        print(f"\nnever happened: {', '.join(missing)}")
    return 1 if tally.broken or missing else 0


def _progress(total: int):
    def show(tally: Tally) -> None:
        if sys.stderr.isatty() and tally.seeds % 5 == 0:
            print(f"\r{tally.seeds}/{total} seeds, {tally.operations:,} operations", end="", file=sys.stderr)

    return show


def _commit() -> str:
    completed = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return completed.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

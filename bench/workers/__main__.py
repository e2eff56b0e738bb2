"""Runs the parts and saves a named run: see the package."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from bench.named_run import place, save_part
from bench.workers import comparison, figures
from bench.workers.frameworks import FRAMEWORKS

PARTS = ("comparison", "figures")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be repeated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--only", default=",".join(FRAMEWORKS), help="frameworks of the comparison, by comma")
    parser.add_argument("--folder", help="where the data goes; the disk under it is what is measured")
    parser.add_argument("--no-install", action="store_true", help="measure only what is already here")
    parser.add_argument("--save", metavar="NAME", help="also write bench/results/NAME.json")
    options = parser.parse_args()
    document: dict[str, Any] = place()
    names = [name for name in FRAMEWORKS if name in options.only.split(",")]
    parts = options.part or PARTS
    if "comparison" in parts:
        document["comparison"] = comparison.run(
            names, options.rounds, options.seconds, options.folder, download=not options.no_install
        )
    if "figures" in parts:
        document["figures"] = figures.run(options.rounds, options.seconds, options.folder)
    if options.save:
        save_part(options.save, "workers", document)
    return 0


if __name__ == "__main__":
    sys.exit(main())

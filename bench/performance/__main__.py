"""Writes the page and the picture: see the package."""

from __future__ import annotations

import sys
from pathlib import Path

import bench.performance
from bench.named_run import load
from bench.performance.peers import picture
from bench.performance.sections import page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.svg"


def main() -> int:
    if len(sys.argv) != 2:
        print(bench.performance.__doc__, file=sys.stderr)
        return 2
    run = load(sys.argv[1])
    PAGE.write_text(page(run), encoding="utf-8")
    if "peers" in run:
        PICTURE.write_text(picture(run), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

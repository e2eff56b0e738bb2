"""Runs the benchmarks of the engine: `python -m bench`. A single one, with its options: `python -m bench.core`."""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("core", "scaling", "commit", "checkpoint", "recover")


def main() -> int:
    """Each runs in its own process, so that memory of one does not affect the next."""
    for name in BENCHES:
        process = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False)
        if process.returncode:
            return process.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every benchmark of the engine in turn: `python -m bench`. For one alone, with its options: `python -m bench.core`."""

from __future__ import annotations

import subprocess
import sys

BENCHES = ("core", "shape", "commit", "checkpoint", "recover")


def main() -> int:
    """Each in a process of its own, so that the memory of one does not weigh on the next."""
    for name in BENCHES:
        ended = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False)
        if ended.returncode:
            return ended.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A named run: the results that docs/performance.md is made from, in bench/results/NAME.json.

A run has parts (`peers`, `growth`, `steady` and others), each written by its bench with `--save NAME` and each with the
place and the commit it was measured at. `bench.performance` has a section for each.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import commit, machine

RESULTS = Path(__file__).parent / "results"


def place() -> dict[str, Any]:
    """Where and when a part is measured. The load is that before the run."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def load(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return document


def save_part(name: str, part: str, results: dict[str, Any], folder: Path = RESULTS) -> None:
    """Add a part to a run, or replace it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    document = load(name, folder) if path.exists() else {"name": name}
    document[part] = results
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

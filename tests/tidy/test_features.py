"""The page that maps features to their tests lists every transcript, check and planted bug, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.archive_bugs import ARCHIVE_BUGS
from tests.simulation.planted import BUGS
from tests.tidy.sources import ROOT

PAGE = ROOT / "docs" / "internals" / "features.md"


def linked_files() -> set[Path]:
    links = re.findall(r"\]\(([^)#\s]+)\)", PAGE.read_text(encoding="utf-8"))
    return {(PAGE.parent / link).resolve() for link in links}


def test_every_file_that_the_page_names_exists():
    missing = sorted(str(path.relative_to(ROOT)) for path in linked_files() if not path.exists())
    assert not missing


def test_every_transcript_and_every_check_is_on_the_page():
    transcripts = set((ROOT / "tests" / "scenarios").glob("*/*.txt"))
    checks = {path for path in (ROOT / "tests" / "simulation" / "checks").glob("*.py") if path.name != "__init__.py"}
    missing = sorted(str(path.relative_to(ROOT)) for path in (transcripts | checks) - linked_files())
    assert not missing, f"add them to {PAGE.relative_to(ROOT)}"


def test_every_planted_bug_is_on_the_page_and_no_other():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    planted = {*BUGS, *ARCHIVE_BUGS}
    assert named == planted, f"add or remove in {PAGE.relative_to(ROOT)}: {sorted(named ^ planted)}"

"""Plain English: words that a reader has to translate first, and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

INSTEAD = {
    r"whoever|those who": "the caller, the client, the worker",
    r"nobody|somebody|everybody|anybody": "no client, another process, every group: name it",
    r"goes on|go on|going on": "continues, resumes",
    r"comes? again": "is delivered again, is retried",
    r"for ever": "permanently",
    r"seldom": "rarely",
    r"meanwhile": "in the meantime",
    r"(is|are|was|be) told|tells": "is notified, reports, returns, shows",
    r"as good as once": "idempotent",
    r"weather": "expected",
    r"hears? of": "is notified of",
    r"hangs? up": "disconnects",
    r"in vain": "without effect",
    r"anew": "again",
    r"lets? in": "admits, accepts",
}
# An underscore ends a word, too, so that names are checked as well.
PATTERN = "|".join(INSTEAD).replace(" ", "[ _]")
WORDS = re.compile(rf"(?<![^\W_])(?:{PATTERN})(?![^\W_])", re.IGNORECASE)
FOLDERS = ("src", "tests", "bench", "examples", "docs")
KINDS = {".py", ".md", ".toml", ".html", ".js"}


def pages() -> list[Path]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    paths += ROOT.glob("*.md")
    # A decision is not edited after it was accepted, and a changelog keeps what it said.
    # `nobody` is the name of a Unix user in one file.
    kept = {
        ROOT / "CHANGELOG.md",
        Path(__file__),
        ROOT / "tests" / "support" / "postgres.py",
        *(ROOT / "docs" / "decisions").rglob("*"),
    }
    return sorted(path for path in paths if path not in kept and "node_modules" not in path.parts)


def unusual(text: str) -> list[str]:
    lines = text.splitlines()
    return [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if WORDS.search(line)]


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_uses_the_usual_words(path):
    assert not unusual(path.read_text(encoding="utf-8")), "write " + "; ".join(INSTEAD.values())


def test_an_unusual_word_is_seen():
    assert unusual("fine\nNobody waits\n") == ["2: Nobody waits"]
    assert unusual("def test_it_goes_on_and_on():") == ["1: def test_it_goes_on_and_on():"]
    assert not unusual("a number is sent along; the weatherman")

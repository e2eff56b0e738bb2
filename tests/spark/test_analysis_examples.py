"""The examples of analysis run, print what the guide shows, and their pictures are those of the docs."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "analysis"
NAMES = ("backlog", "backtest", "costs", "quality")


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_and_draws_what_the_guide_shows(spark, tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path)])
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as when Python is started with the file
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")

    drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "analysis.md").read_text(encoding="utf-8")
    assert printed.getvalue().strip(), "the example prints nothing"
    for line in printed.getvalue().splitlines():
        assert line.strip() in guide, f"docs/guides/analysis.md does not show: {line}"


def test_every_example_of_analysis_has_this_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, "workday"}

"""The Python blocks of the guides run, in order, and print what the page says.

Each guide brings its own broker in memory. A `text` block that follows a `python` block is what that block prints.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
TESTED = (
    "exactly-once-writes",
    "from-celery",
    "from-kafka",
    "from-rabbitmq",
    "from-redis-streams",
    "idempotency-and-effects",
    "job-batches",
    "results",
    "schedules",
    "retries-and-dead-letters",
    "routing",
    "scheduling",
    "token-streams",
    "workers",
)
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n*```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", TESTED)
def test_every_block_of_a_guide_runs_and_prints_what_the_page_shows(name):
    text = (GUIDES / f"{name}.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert blocks, "a guide shows code"
    namespace: dict[str, object] = {"__name__": "guide"}
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{name}.md", "exec"), namespace)
        if expected:
            assert printed.getvalue() == expected


@pytest.mark.parametrize("path", sorted(GUIDES.glob("from-*.md")), ids=lambda path: path.stem)
def test_the_program_before_compiles_and_each_page_has_its_names(path):
    """`test_guides_before` runs them where the other can be installed."""
    text = path.read_text(encoding="utf-8")
    (before,) = re.findall(r"^```python before\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    compile(before, path.name, "exec")
    assert "## Names" in text
    assert "## What differs" in text

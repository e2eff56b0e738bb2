"""Names of code in documents: a link whose text is a name leads to a file that defines the name.

`[`Sequencer.take_batch`](…/sequencer.py)` means that sequencer.py has a class `Sequencer` with a method `take_batch`.
The walk through a produce and the table "Where is …?" of AGENTS.md consist of such links, so that a rename cannot leave
them wrong.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, files

LINK = re.compile(r"\[`([A-Za-z_][\w.]*?)(?:\(\))?`\]\(([^)#\s]+\.py)\)")
DOCUMENTS = [path for path in files() if path.suffix == ".md" and LINK.search(path.read_text(encoding="utf-8"))]
BEHAVIOURS = (
    "times of a schedule",
    "retry backoff",
    "lease expiry",
    "FNV",
    "idempotency key lives",
    "dead-letter",
    "server-sent events",
    "If-Match",
    "one commit holds",
    "snapshots",
    "files of small logs",
    "disk is full",
    "Spark offset planning",
    "handler's exception",
    "module of a command",
    "command line",
    "settings",
)


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """Every name that a module defines: functions, classes, their methods and attributes, constants."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                names.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(prefix + node.target.id)

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(names)


def undefined_names(path: Path, text: str) -> list[str]:
    wrong = []
    for name, target in LINK.findall(text):
        module = (path.parent / target).resolve()
        if not module.exists() or name not in defined(module):
            wrong.append(f"{name} in {target}")
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_linked_name_is_defined_in_its_file(path):
    assert not undefined_names(path, path.read_text(encoding="utf-8"))


def test_the_table_of_behaviours_names_a_place_for_each():
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    table = page.partition("## Where is …?")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "](" in line]
    assert len(rows) == len(BEHAVIOURS)
    for behaviour, row in zip(BEHAVIOURS, rows, strict=True):
        assert behaviour in row[1], behaviour


def test_a_planted_wrong_name_is_found(tmp_path):
    (tmp_path / "code.py").write_text("class A:\n    def b(self): ...\n\nLIMIT = 1\n")
    text = "[`A.b`](code.py) [`LIMIT`](code.py) [`A.c`](code.py) [`d`](gone.py) [plain](code.py)"
    assert undefined_names(tmp_path / "page.md", text) == ["A.c in code.py", "d in gone.py"]

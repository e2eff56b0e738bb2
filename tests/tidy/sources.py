"""What the tidy tests look at: the files of the project, and the modules among them as parsed trees.

Files that git ignores are not part of the project. A copy without git (an archive) is walked instead. This module
judges nothing; the tests next to it do.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "driftq"
TESTS = ROOT / "tests"

NOT_OURS = {".git", ".venv", "data", "build", "dist", "node_modules", "__pycache__"}


class Module(NamedTuple):
    """One Python file."""

    path: Path
    text: str
    tree: ast.Module

    def at(self, node: ast.AST) -> str:
        """The place of a node as an editor understands it."""
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


@functools.cache
def files() -> tuple[Path, ...]:
    """Every file that is, or could be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not NOT_OURS & set(path.relative_to(ROOT).parts)]
    return tuple(sorted(path for path in paths if path.is_file()))


def texts() -> Iterator[tuple[Path, str]]:
    """Every file that is text, with its text."""
    for path in files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@functools.cache
def parse(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path, text, ast.parse(text, filename=str(path)))


def modules(folder: Path) -> list[Module]:
    """Every Python file under a folder."""
    return [parse(path) for path in files() if path.suffix == ".py" and path.is_relative_to(folder)]


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node

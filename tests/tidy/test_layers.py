"""Imports go down, never up: the contracts in pyproject.toml, and that they can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT

PACKAGES = ("cli", "server", "spark", "engine", "client", "core", "storage", "wire", "settings")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = (
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(cache_dir=None, no_cache=True))"
    )
    environ = {**os.environ, "PYTHONPATH": str(root / "src")}
    return subprocess.run(
        [sys.executable, "-c", command], cwd=root, env=environ, capture_output=True, text=True, check=False
    )


def test_every_contract_is_kept():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def small_project(folder: Path, *names: str) -> Path:
    """A copy of the contracts over empty packages."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    root = folder / "src" / "driftq"
    for name in (*PACKAGES, *names):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
    (root / "__init__.py").touch()
    return folder


def test_empty_packages_break_no_contract(tmp_path):
    assert lint_imports(small_project(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("wire/planted.py", "import driftq.core", "Imports go down"),
        ("storage/planted.py", "import driftq.core", "Imports go down"),
        ("core/planted.py", "import time", "The core knows no clock"),
        ("core/planted.py", "from random import Random", "The core knows no clock"),
        ("client/planted.py", "import driftq.core", "client and spark never"),
        ("spark/planted.py", "import driftq.storage", "client and spark never"),
        ("server/planted.py", "import driftq.client", "server and engine never"),
        ("engine/planted.py", "import driftq.client", "server and engine never"),
        ("stray/planted.py", "", "Imports go down"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path, module, line, contract):
    package = module.partition("/")[0]
    small_project(tmp_path, *({package} - {*PACKAGES}))
    (tmp_path / "src" / "driftq" / module).write_text(line + "\n")
    result = lint_imports(tmp_path)
    assert result.returncode != 0, result.stdout
    broken = [row for row in result.stdout.splitlines() if "BROKEN" in row]
    assert any(row.startswith(contract) for row in broken), result.stdout


JOURNAL_FILES = ("file_journal", "journal_files", "journal_writer", "tail_recovery")
KNOWS_FILES = {"engine/folder_storage.py", "engine/snapshot_store.py"}  # the composition, and the fold of a data folder


def importers_of_journal_files(root: Path) -> set[str]:
    """Modules outside `storage` and `repair` that import, when they run, a module of the journal in local files."""
    paths = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("storage", "repair")]
    return {
        str(path.relative_to(root))
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(tuple(f"from driftq.storage.{name} " for name in JOURNAL_FILES))
    }


def test_only_the_composition_knows_that_the_journal_is_local_files():
    assert importers_of_journal_files(ROOT / "src" / "driftq") == KNOWS_FILES


def test_a_planted_use_of_the_file_journal_is_found(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "planted.py").write_text("from driftq.storage.file_journal import FileJournal\n")
    assert importers_of_journal_files(tmp_path) == {"server/planted.py"}

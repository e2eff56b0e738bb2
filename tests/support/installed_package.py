"""The package as users get it: an sdist, the wheel built from it, and virtualenvs with the locked packages and nothing
else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tidy.sources import ROOT

UV = Path(sys.executable).with_name("uv")
TIMEOUT_S = 120


def run(*command: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed, outside of this environment: nothing of the source tree is on its path."""
    completed = run_any(*command, cwd=cwd, **environ)
    assert completed.returncode == 0, f"{command}\n{completed.stdout}\n{completed.stderr}"
    return completed


def run_any(*command: object, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    line = [str(part) for part in command]
    return subprocess.run(
        line, cwd=cwd, env=clean_environment() | environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def clean_environment() -> dict[str, str]:
    """What a shell of a user has: without this virtualenv and without settings of ours."""
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRIFTQ", "PYTHON", "VIRTUAL"))}
    return kept | {"PATH": path}


def build(folder: Path) -> Path:
    """Build the sdist from a copy of the files that git knows, and the wheel from the sdist. Returns the wheel."""
    source = folder / "source"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        if not name.startswith(("tests/", "bench/", "docs/")) and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
            (source / name).chmod((ROOT / name).stat().st_mode)
    out = folder / "dist"
    run(UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, source)
    (wheel,) = out.glob("*.whl")
    return wheel


def virtualenv(folder: Path, wheel: Path, lock: str) -> Path:
    """A new virtualenv with the packages of a lock and the wheel. Returns its folder of programs.

    Where uv finds no way to the packages, pip may: as in `make setup`, it comes second."""
    run(UV, "venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin" / "python"
    with_uv = (UV, "pip", "install", "--quiet", "--no-deps", "--python", python)
    with_pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile")
    locked = ("--require-hashes", "--requirement", ROOT / "requirements" / lock)
    if run_any(*with_uv, *locked).returncode != 0:
        run(*with_pip, *locked)
    run(*with_uv, wheel)
    return folder / "bin"

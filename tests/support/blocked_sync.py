"""Blocks the journal's `fdatasync` in a real server process until the test unblocks it.

A preloaded library waits in `fdatasync` while a file exists, and creates another file when it begins to wait. One block
is then written and not synced. Everything that the process decides after it is only in memory and lost by `kill -9`.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.preload import compile_library
from tests.support.server import Server, from_scratch
from tests.support.wait import until_now

SOURCE = r"""
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


def compile_blocking_library(folder: Path) -> str:
    return compile_library(SOURCE, folder)


class BlockedSyncServer(Server):
    """A server whose journal syncs can be blocked. It is a new process: one of the fork server has loaded its C
    library.

    The engine syncs inline once the disk has been quick for a while. Block before that, within the first commits.
    """

    def __init__(self, data: str, library: str, hold: Path, *settings: str) -> None:
        self._hold = hold
        env = {"LD_PRELOAD": library, "HOLD_SYNC_OF": ".journal", "HOLD_SYNC_WHILE": str(hold)}
        launch = Server.launch
        try:
            Server.launch = staticmethod(from_scratch)  # type: ignore[method-assign, assignment]
            super().__init__(data, *settings, env=env)
        finally:
            Server.launch = launch  # type: ignore[method-assign]

    def block_syncs(self) -> None:
        """Takes effect at the next sync."""
        self._hold.touch()

    def wait_until_blocked(self) -> None:
        until_now(Path(f"{self._hold}.held").exists, 20.0)

    def unblock_syncs(self) -> None:
        self._hold.unlink()

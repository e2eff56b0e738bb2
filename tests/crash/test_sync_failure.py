"""After a failed fdatasync of a real process nothing is acknowledged, and the process exits with its own code."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from driftq.cli.exit_codes import Exit
from tests.crash.broker_run import BrokerProcess, Gone
from tests.crash.load import TOPIC, Ledger
from tests.support.preload import compile_library

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Fails the nth sync of a file whose path contains a word, and every later one: as a dying device does. */
static int seen;
static int fails(int fd) {
    const char *word = getenv("FAIL_SYNC_OF"), *nth = getenv("FAIL_SYNC_NTH");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (!word || !nth || size < 0) return 0;
    path[size] = 0;
    return strstr(path, word) && ++seen >= atoi(nth);
}
int fdatasync(int fd) {
    if (fails(fd)) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int fsync(int fd) {
    if (fails(fd)) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> str:
    return compile_library(SOURCE, tmp_path_factory.mktemp("preload"))


async def produce_until_gone(broker: BrokerProcess, ledger: Ledger) -> None:
    for number in itertools.count():  # the watermark is saved about once a second
        value = f"p:{number}"
        ledger.sent.add(value)
        try:
            reply = await broker.ask("produce", topic=TOPIC, partition=0, values=[value], producer="p", seq=number)
        except Gone:
            return
        ledger.store(value, f"{TOPIC}/0", reply["first_offset"])


@pytest.mark.parametrize("nth", [8, 40])
@pytest.mark.parametrize("word", [".journal", "watermark"])
def test_after_a_failed_sync_nothing_is_acknowledged_and_the_process_ends_with_70(tmp_path, library, word, nth):
    async def scenario() -> None:
        folder = str(tmp_path / "data")
        env = {"LD_PRELOAD": library, "FAIL_SYNC_OF": word, "FAIL_SYNC_NTH": str(nth)}
        broker = await BrokerProcess.start(folder, env=env)
        ledger = Ledger()
        await broker.ask("topic", topic=TOPIC, partitions=2)
        await produce_until_gone(broker, ledger)
        assert await broker.ended() == Exit.FAILED
        errors = await broker.errors()
        assert "sync" in errors
        assert "Traceback" not in errors
        again = await BrokerProcess.start(folder)
        await ledger.audit(again)
        assert not ledger.violations, ledger.violations
        assert await again.stop() == 0

    asyncio.run(scenario())

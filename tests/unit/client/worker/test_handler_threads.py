"""Threads that call a plain handler: as many as are needed, each message once, nothing lost between two lists."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from types import SimpleNamespace

from driftq.client.claims import Reject
from driftq.client.worker.handler_threads import HandlerThreads


class Run:
    """Threads with the lists of a worker."""

    def __init__(self, handler, concurrency):
        self.ready, self.running, self.taking = deque(), set(), threading.Lock()
        self.results = []
        self.changed = asyncio.Event()
        self.threads = HandlerThreads(handler, concurrency, self.ready, self.running, self.taking, self.on_done)

    def on_done(self, attempt, result):
        self.results.append((attempt.message.name, result))
        self.changed.set()

    def give(self, *names, damage=""):
        self.ready.extend(SimpleNamespace(name=name, damage=damage) for name in names)
        self.threads.wake()

    async def until(self, count):
        async with asyncio.timeout(20):
            while len(self.results) < count:
                self.changed.clear()
                await self.changed.wait()


def on_loop(test):
    @functools.wraps(test)
    def run():
        asyncio.run(test())

    return run


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("driftq-worker-")]


@on_loop
async def test_each_message_is_handled_once_by_as_many_threads_as_are_needed():
    used, barrier = set(), threading.Barrier(3)

    def handle(message):
        used.add(threading.get_ident())
        if message.name < 3:
            barrier.wait(20)  # three run at the same time
        return message.name

    run = Run(handle, 3)
    run.give(0, 1, 2)
    await run.until(3)
    run.give(*range(3, 500))
    await run.until(500)
    assert sorted(name for name, _ in run.results) == list(range(500))
    assert all(result.value == name and result.error is None for name, result in run.results)
    assert len(used) == 3
    threads = own_threads()
    run.threads.close()
    for thread in threads:
        thread.join(20)
    assert not own_threads()


@on_loop
async def test_a_single_message_starts_a_single_thread():
    run = Run(lambda message: None, 8)
    run.give("a")
    await run.until(1)
    assert len(own_threads()) == 1
    run.threads.close()


@on_loop
async def test_no_error_ends_a_thread():
    def handle(message):
        raise message.name

    run = Run(handle, 1)
    errors = [SystemExit(1), KeyboardInterrupt(), ValueError("no"), asyncio.CancelledError()]
    run.give(*errors)
    await run.until(len(errors))
    assert [result.error for _, result in run.results] == errors
    run.threads.close()


@on_loop
async def test_a_message_that_cannot_be_decoded_is_rejected_without_a_call():
    called = []
    run = Run(called.append, 1)
    run.give("a", damage="its head is torn")
    await run.until(1)
    ((_, result),) = run.results
    assert isinstance(result.error, Reject)
    assert result.error.reason == "its head is torn"
    assert not called
    run.threads.close()


@on_loop
async def test_under_the_lock_every_message_is_in_one_of_the_lists():
    """What extends leases and what ends a worker look at both lists: a message between them would be overlooked."""
    release = threading.Event()
    run = Run(lambda message: release.wait(20), 4)
    run.give(*range(8))
    for _ in range(1_000):
        with run.taking:
            assert len(run.ready) + len(run.running) == 8
    release.set()
    await run.until(8)
    run.threads.close()

"""The task frameworks of the comparison: a durable server each, jobs in its queue, and its own worker command.

Jobs are enqueued before anything is measured, through the framework's own call; Redis syncs each write from then on. A
worker runs in one process. What is left in the queue is asked of the server: a job counts when its ack is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import driftq
from bench.peers.driftq import DriftQPeer
from bench.peers.redis_streams import RedisPeer
from bench.peers.server_process import ServerProcess

if TYPE_CHECKING:
    import redis

PROGRAMS = "bench.workers.programs"
CALLERS = 64


class Variant(NamedTuple):
    """One way to run the worker of a framework."""

    title: str
    task: str  # of the program
    arguments: tuple[str, ...]  # of the worker command


class Framework:
    """One framework with its server, in a folder of its own."""

    name: ClassVar[str]
    package: ClassVar[str]  # as pip knows it
    durability: ClassVar[str]
    variants: ClassVar[Sequence[Variant]]
    jobs_per_s: int  # enough jobs for each second of a variant

    def install(self, *, download: bool) -> None:
        """Find or bring its server; raises MissingError."""

    def start(self, folder: Path) -> None:
        raise NotImplementedError

    def enqueue(self, variant: Variant, count: int) -> None:
        raise NotImplementedError

    def remaining(self, variant: Variant) -> int:
        """Jobs that are not acked."""
        raise NotImplementedError

    def worker(self, variant: Variant, folder: Path, env: Mapping[str, str]) -> ServerProcess:
        """Start its worker command."""
        raise NotImplementedError

    def server_cpu_s(self) -> float:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class DriftQTasks(Framework):
    name = "DriftQ"
    package = "driftq"
    durability = "a sync before every reply"
    jobs_per_s = 60_000
    variants = (
        Variant("plain function, 8 threads", "plain", ()),
        Variant("async function, 8 at a time", "awaited", ()),
        Variant("plain function, 1 thread (its default)", "plain", ("--concurrency", "1")),
    )

    def __init__(self) -> None:
        self._peer = DriftQPeer()

    def start(self, folder: Path) -> None:
        self.url = self._peer.start(folder)
        self._broker = driftq.connect(self.url)
        self.program = importlib.import_module(f"{PROGRAMS}.driftq_tasks")
        for task in self.program.TASKS:
            self._broker.topics.create(task.name)
            self._broker.claim(task.name, task.subscription.group, task=task.name)  # the group begins here

    def enqueue(self, variant: Variant, count: int) -> None:
        asyncio.run(self._enqueue(getattr(self.program, variant.task), count))

    async def _enqueue(self, task: Any, count: int) -> None:
        numbers = iter(range(count))

        async def call() -> None:
            for number in numbers:
                await task.enqueue(broker, number)

        async with self._broker.asynchronous() as broker:
            await asyncio.gather(*(call() for _ in range(CALLERS)))

    def remaining(self, variant: Variant) -> int:
        return self._broker.groups.describe(variant.task, "workers").lag

    def worker(self, variant: Variant, folder: Path, env: Mapping[str, str]) -> ServerProcess:
        target = f"{PROGRAMS}.driftq_tasks:{variant.task}"
        command = [sys.executable, "-m", "driftq.cli.main", "worker", target, "--url", self.url, *variant.arguments]
        return ServerProcess(command, folder, name="worker", env=env)

    def server_cpu_s(self) -> float:
        return self._peer.cpu_s()

    def stop(self) -> None:
        self._peer.stop()


class RedisFramework(Framework):
    """A framework on Redis."""

    durability = "Redis: appendonly yes, appendfsync always"

    def __init__(self) -> None:
        self._peer = RedisPeer()

    def install(self, *, download: bool) -> None:
        self._peer.install(download=download)

    def start(self, folder: Path) -> None:
        import redis

        port = self._peer.start(folder)
        self._redis = redis.Redis(port=int(port))
        self.url = os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{port}/0"
        name = f"{PROGRAMS}.{self.package}_tasks"
        sys.modules.pop(name, None)  # it connects to the address of the environment
        self.program = importlib.import_module(name)

    @contextlib.contextmanager
    def unsynced(self) -> Iterator[redis.Redis]:
        """Let Redis not sync while jobs are enqueued, which is not measured."""
        self._redis.config_set("appendfsync", "everysec")
        yield self._redis
        self._redis.config_set("appendfsync", "always")

    def server_cpu_s(self) -> float:
        return self._peer.cpu_s()

    def stop(self) -> None:
        self._peer.stop()

    def started(self, module: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> ServerProcess:
        command = [sys.executable, "-m", module, *arguments]
        return ServerProcess(command, folder, name="worker", env={**env, "BENCH_REDIS": self.url})


class DramatiqTasks(RedisFramework):
    name = "dramatiq"
    package = "dramatiq"
    jobs_per_s = 3_000
    variants = (
        Variant("8 threads (its default)", "nothing", ("--threads", "8")),
        Variant("1 thread", "nothing", ("--threads", "1")),
    )

    def enqueue(self, variant: Variant, count: int) -> None:
        with self.unsynced():
            for number in range(count):
                self.program.nothing.send(number)

    def remaining(self, variant: Variant) -> int:
        return int(self._redis.hlen("dramatiq:default.msgs"))

    def worker(self, variant: Variant, folder: Path, env: Mapping[str, str]) -> ServerProcess:
        arguments = [f"{PROGRAMS}.dramatiq_tasks", "--processes", "1", *variant.arguments]
        return self.started("dramatiq", arguments, folder, env)


class CeleryTasks(RedisFramework):
    name = "celery"
    package = "celery"
    jobs_per_s = 3_000
    variants = (
        Variant("prefork (its default), one child", "nothing", ("--pool", "prefork")),
        Variant("prefork, prefetch 64", "nothing", ("--pool", "prefork", "--prefetch-multiplier", "64")),
        Variant("solo, prefetch 64", "nothing", ("--pool", "solo", "--prefetch-multiplier", "64")),
    )

    def enqueue(self, variant: Variant, count: int) -> None:
        with self.unsynced():
            for number in range(count):
                self.program.nothing.delay(number)

    def remaining(self, variant: Variant) -> int:
        return int(self._redis.llen("celery")) + int(self._redis.hlen("unacked"))

    def worker(self, variant: Variant, folder: Path, env: Mapping[str, str]) -> ServerProcess:
        quiet = ["--concurrency", "1", "--loglevel", "WARNING", "--without-gossip", "--without-mingle"]
        arguments = ["--app", f"{PROGRAMS}.celery_tasks", "worker", *quiet, *variant.arguments]
        return self.started("celery", arguments, folder, env)


FRAMEWORKS: dict[str, Callable[[], Framework]] = {kind.name: kind for kind in (DriftQTasks, DramatiqTasks, CeleryTasks)}

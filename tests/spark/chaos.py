"""Kills processes at times from a seed while `chaos_driver` runs, then audits the topics.

    python -m tests.spark.chaos 100          (or: make spark-chaos N=100)

What is killed: the broker, the driver, an executor, a Python worker, a worker of the cluster with its executors. A kill
happens when a share of the rows has been written, after a random pause, so that it hits any step of a micro-batch. The
audit: every row exactly once in both copies and in the table, in the order of the source where that is guaranteed. It
shares no code with the sinks.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import driftq
from tests.spark.chaos_driver import NOT_SHIPPED
from tests.spark.cluster import HOSTS, LOOK_S, Cluster, environment, kill_group, package_zip, standalone
from tests.spark.independent_reader import table_values, topic_values
from tests.support.server import Server
from tests.support.wait import until_now

KINDS = ("broker", "driver", "executor", "python", "worker")
PARTITIONS = 3
ROWS_PER_BATCH = 900
FINISH_S = 1_200.0


class Chaos:
    """One run: a broker, a cluster, and a driver that is restarted until it succeeds."""

    def __init__(self, folder: Path, cluster: Cluster, rows: int, chance: random.Random) -> None:
        self.folder = folder
        self.cluster = cluster
        self.rows = rows
        self.chance = chance
        self.kills: Counter[str] = Counter()
        self.starts = 0
        self.server = Server(str(folder / "broker"))
        self._package = package_zip(folder)
        self._load()
        self.driver = self._start_driver()

    def _load(self) -> None:
        with driftq.connect(self.server.url) as broker:
            broker.topics.create("in", partitions=PARTITIONS)
            for name in ("staged", "direct"):
                broker.topics.create(name, partitions=PARTITIONS)
            with broker.producer("in") as producer:
                for number in range(self.rows):
                    producer.send(f"row {number}", key=f"k{number}")

    def _start_driver(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with open(self.folder / "driver.log", "ab") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "tests.spark.chaos_driver", self.server.url, str(self.folder / "checkpoints"),
                    self.cluster.url, str(self._package), str(ROWS_PER_BATCH),
                ],
                stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True,
            )  # fmt: skip

    # --- the kills ---

    def kill(self, kind: str) -> None:
        match kind:
            case "broker":
                self.server.kill()
                self.server = Server(str(self.folder / "broker"), port=self.server.port)
            case "driver":
                kill_group(self.driver)
                self.driver = self._start_driver()
            case "executor":
                if not self._kill_one_of(self.cluster.executors):
                    return
            case "python":
                if not self._kill_one_of(self.cluster.python_workers):
                    return
            case _:
                self.cluster.kill_worker(self.chance.randrange(len(HOSTS)))
        self.kills[kind] += 1

    def _kill_one_of(self, running: Callable[[], list[int]]) -> bool:
        """Wait for one: after other kills it takes seconds until executors are there again and run Python."""
        killed = False

        def try_once() -> bool:
            nonlocal killed
            if pids := running():
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(pids), signal.SIGKILL)
                    killed = True
            return killed or not self._is_running()

        self._until(try_once)
        return killed

    def run(self, kinds: list[str]) -> None:
        """Kill while rows are being copied: the nth kill waits for the nth share of them."""
        for number, kind in enumerate(kinds):
            share = 2 * self.rows * number // (len(kinds) + 1)
            self._until(lambda share=share: not self._is_running() or self.written() > share)
            if not self._is_running():
                break  # everything is copied
            threading.Event().wait(self.chance.uniform(0, 1.5))  # so that the kill hits any step
            self.kill(kind)
        self._until(lambda: not self._is_running())

    def _until(self, condition: Callable[[], bool]) -> None:
        until_now(condition, FINISH_S, pause_s=LOOK_S)

    def _is_running(self) -> bool:
        """Start the driver again if it failed, as an operator would."""
        code = self.driver.poll()
        if code:
            assert self.starts < 20, self.driver_log()
            self.driver = self._start_driver()
        return code != 0

    def written(self) -> int:
        return sum(
            partition["end"]
            for topic in ("staged", "direct")
            for partition in self.server.call("GET", f"/v1/topics/{topic}/offsets").json()["partitions"]
        )

    def driver_log(self) -> str:
        return (self.folder / "driver.log").read_text(errors="replace")[-6_000:]

    # --- the audit ---

    def audit(self) -> None:
        stderr = "".join(path.read_text(errors="replace") for path in self.cluster.folder.glob("work/*/*/stderr"))
        assert NOT_SHIPPED not in stderr, NOT_SHIPPED
        source = topic_values(self.server.url, "in")
        copies = {topic: topic_values(self.server.url, topic) for topic in ("staged", "direct")}
        copies["table"] = table_values(self.folder / "checkpoints" / "table")
        for topic, copy in copies.items():
            counts = Counter(value for values in copy.values() for value in values)
            missing = [value for values in source.values() for value in values if value not in counts]
            doubled = {value: count for value, count in counts.items() if count > 1}
            assert not missing, f"{topic}: {len(missing)} missing, among them {missing[:3]}"
            assert not doubled, f"{topic}: {len(doubled)} doubled, among them {list(doubled.items())[:3]}"
            assert len(counts) == self.rows
            if topic != "staged":
                assert copy == source, f"{topic}: the order inside a partition changed"

    def close(self) -> None:
        kill_group(self.driver)
        if self.server.process.poll() is None:
            self.server.stop()


def kinds_of(count: int, chance: random.Random) -> list[str]:
    """Use every kind of kill once before any is repeated."""
    kinds: list[str] = []
    while len(kinds) < count:
        kinds.extend(chance.sample(KINDS, len(KINDS)))
    return kinds[:count]


def one_run(folder: Path, kills: int, seed: int, rows: int) -> Counter[str]:
    """A cluster, `kills` kills and an audit; returns what was killed."""
    chance = random.Random(seed)
    with standalone(folder / "cluster") as cluster:
        chaos = Chaos(folder, cluster, rows, chance)
        try:
            chaos.run(kinds_of(kills, chance))
            chaos.audit()
        except BaseException:
            print(chaos.driver_log(), file=sys.stderr)
            raise
        finally:
            chaos.close()
        return chaos.kills


def main() -> None:
    parser = argparse.ArgumentParser(description="kill processes under Spark, and audit")
    parser.add_argument("count", type=int, help="how many kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=18_000, help="rows of one run")
    parser.add_argument("--kills", type=int, default=10, help="kills in one run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # exit handlers stop the processes
    killed: Counter[str] = Counter()
    seed = options.seed
    while killed.total() < options.count:
        with tempfile.TemporaryDirectory(prefix="spark-chaos-") as folder:
            began_s = time.monotonic()
            kills = one_run(Path(folder), min(options.kills, options.count - killed.total()), seed, options.rows)
            killed += kills
            kill_counts = ", ".join(f"{kind} {count}" for kind, count in sorted(kills.items()))
            print(f"seed {seed}: {kill_counts}: every row once, {time.monotonic() - began_s:.0f} s", flush=True)
        seed += 1
    print(f"{killed.total()} kills: {dict(killed)}")


if __name__ == "__main__":
    main()

"""Cycles of losing a machine: kill the broker under load, delete its folder, restore it from the archive, and audit.

    python -m tests.crash.lost_machine 50 --mode sync     # also by `make archive-cycles N=50`

Writers produce and note what was acknowledged, and when. A watcher asks for the lag of the archive all the time. After
a restore, everything that was acknowledged must be there in mode "sync"; in mode "async", everything that was
acknowledged before the point that the last answer of the watcher guarantees.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.s3_server import s3_server
from tests.support.server import Server
from tests.support.wait import until_now

TOPIC = "orders"
WRITERS = 4
SETTINGS = ("storage.segment_bytes=65536", "limits.batch_bytes=65536", "archive.base_bytes=100000")


@dataclass
class Audit:
    """What clients were promised."""

    stored: dict[str, tuple[int, float]] = field(default_factory=dict)  # value: offset, when it was acknowledged
    acked: set[int] = field(default_factory=set)  # offsets
    lost: int = 0  # acknowledged and gone, within what the lag allowed
    cycles: int = 0


class LostMachine:
    """One archive, and the brokers that are lost, one after the other."""

    def __init__(self, folder: Path, url: str, mode: str, seed: int, env: dict[str, str] | None = None) -> None:
        self.data = folder / "data"
        self.url = url
        self.mode = mode
        self.env = env or {}
        self.random = random.Random(seed)
        self.audit = Audit()
        self._count = 0
        self._safe_s = 0.0  # what was acknowledged before is in the archive
        self._lock = threading.Lock()

    def start(self) -> Server:
        settings = (f"archive.url={self.url}", f"archive.mode={self.mode}", "archive.interval_ms=50", *SETTINGS)
        return Server(str(self.data), *settings, env=self.env)

    def cycle(self) -> None:
        """Load, kill, delete, restore, audit."""
        server = self.start()
        server.call("POST", "/v1/topics", {"name": TOPIC, "partitions": 1})
        self._check(server)
        stop = threading.Event()
        threads = [threading.Thread(target=self._write, args=(server, stop)) for _ in range(WRITERS)]
        threads += [threading.Thread(target=work, args=(server, stop)) for work in (self._consume, self._watch)]
        more = len(self.audit.stored) + self.random.randrange(20, 400)
        for thread in threads:
            thread.start()
        until_now(lambda: len(self.audit.stored) >= more, 60)
        server.kill()
        stop.set()
        for thread in threads:
            thread.join()
        shutil.rmtree(self.data)
        self._restore()
        self.audit.cycles += 1

    def finish(self) -> None:
        server = self.start()
        self._check(server)
        assert server.stop(60) == 0, "".join(server.lines)

    def _restore(self) -> None:
        command = [sys.executable, "-m", "driftq.cli.main", "restore", self.url, str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **self.env}, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _write(self, server: Server, stop: threading.Event) -> None:
        connection = server.connect()
        try:
            while not stop.is_set():
                with self._lock:
                    self._count += 1
                    value = f"m{self._count}"
                connection.request("POST", "/v1/produce", f'{{"topic": "{TOPIC}", "value": "{value}"}}')
                reply = connection.getresponse()
                body = reply.read()
                if reply.status == 200:
                    offset = json.loads(body)["offset"]
                    with self._lock:
                        self.audit.stored[value] = offset, time.monotonic()
        except Exception:  # the broker was killed
            return
        finally:
            connection.close()

    def _consume(self, server: Server, stop: threading.Event) -> None:
        claim = {"topic": TOPIC, "group": "g", "owner": "o", "max": 20, "wait_ms": 50, "lease_ms": 600_000}
        while not stop.is_set():
            try:
                messages = server.call("POST", "/v1/claim", claim).json()["messages"]
                for message in messages[::2]:  # every other one: the group keeps gaps
                    ack = {"topic": TOPIC, "group": "g", "owner": "o", "partition": 0, "offset": message["offset"]}
                    if server.call("POST", "/v1/ack", ack).status == 204:
                        self.audit.acked.add(message["offset"])
            except Exception:  # the broker was killed
                return

    def _watch(self, server: Server, stop: threading.Event) -> None:
        while not stop.is_set():
            asked_s = time.monotonic()
            try:
                archive = server.call("GET", "/v1/readyz").json()["archive"]
            except Exception:  # the broker was killed
                return
            if archive["generation"]:
                self._safe_s = asked_s - archive["lag_ms"] / 1_000

    def _check(self, server: Server) -> None:
        """Compare what is there with what was promised, and forget what was rightly lost."""
        there = self._read(server)
        counts: dict[str, int] = {}
        for value in there.values():
            counts[value] = counts.get(value, 0) + 1
        assert all(count == 1 for count in counts.values()), "a message is there twice"
        for value, (offset, at_s) in list(self.audit.stored.items()):
            if there.get(offset) == value:
                continue
            assert self.mode == "async", f"{value} at offset {offset} was acknowledged and is gone"
            assert at_s >= self._safe_s, f"{value} was acknowledged {self._safe_s - at_s:.3f} s before the lag allowed"
            self.audit.lost += 1
            del self.audit.stored[value]
        if self.mode == "sync":
            states = server.call("GET", f"/v1/topics/{TOPIC}/groups/g/states?limit=1000").json()
            pending = {row["offset"] for row in states.get("messages", [])}
            assert not pending & self.audit.acked, "an acked message is pending again"
        else:
            self.audit.acked.clear()

    def _read(self, server: Server) -> dict[int, str]:
        there: dict[int, str] = {}
        while True:
            path = f"/v1/topics/{TOPIC}/partitions/0/messages?offset={len(there)}&limit=1000"
            messages = server.call("GET", path).json().get("messages", [])
            if not messages:
                return there
            there |= {message["offset"]: message["value"] for message in messages}


def run_cycles(folder: Path, url: str, mode: str, cycles: int, seed: int, env: dict[str, str] | None = None) -> Audit:
    machine = LostMachine(folder, url, mode, seed, env)
    for _ in range(cycles):
        machine.cycle()
    machine.finish()
    return machine.audit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cycles", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="a real S3 server instead of a folder")
    parser.add_argument("--mode", choices=("sync", "async"), help="only this one")
    arguments = parser.parse_args()
    for mode in [arguments.mode] if arguments.mode else ("sync", "async"):
        with tempfile.TemporaryDirectory() as name, s3_server() as s3:
            folder = Path(name)
            (folder / "archive").mkdir()
            s3.make_bucket("archive")
            url = f"s3://archive/{mode}" if arguments.s3 else str(folder / "archive")
            audit = run_cycles(folder, url, mode, arguments.cycles, arguments.seed, s3.environment())
            print(
                f"{mode}: {audit.cycles} machines lost, {len(audit.stored)} acknowledged messages are there, "
                f"{audit.lost} were lost within the lag, {len(audit.acked)} acks checked"
            )


if __name__ == "__main__":
    main()

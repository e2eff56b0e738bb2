"""A server under test: started in a temporary folder, observed through /proc, ended by its process ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.wait import until_now

START_S = 60.0
STOP_S = 20.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class StartError(Exception):
    """A server did not start; the message ends with its log."""


def free_port() -> int:
    """A port of the loopback interface that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


class ServerProcess:
    """One process with its children. `credentials` are passed to Popen: the user to run as."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        name: str = "server",
        env: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        credentials: Mapping[str, Any] | None = None,
    ) -> None:
        self.log = folder / f"{name}.log"
        self._stop_signal = stop_signal
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(env or {})}, **(credentials or {}),
            )  # fmt: skip

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        def ready() -> bool:
            if self.process.poll() is not None:
                raise StartError(f"the process ended with {self.process.returncode}: {self._last_lines()}")
            return is_ready()

        try:
            until_now(ready, START_S)
        except AssertionError:
            raise StartError(f"not ready after {START_S:.0f} s: {self._last_lines()}") from None

    def has_logged(self, text: str) -> bool:
        return text in self.log.read_text(encoding="utf-8", errors="replace")

    def _last_lines(self) -> str:
        return " | ".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])

    def cpu_s(self) -> float:
        """CPU time of the process, its children, and the children that have ended."""
        return sum(_cpu_s(pid) for pid in descendants(self.process.pid))

    def stop(self) -> None:
        """Ask it to stop; kill it and its children by their ids if it does not."""
        pids = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(self._stop_signal)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid in pids[1:]:
            _end(pid)


def descendants(pid: int) -> list[int]:
    """A process and everything it started, directly or indirectly."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    pids = [pid]
    for parent in pids:
        pids.extend(children.get(parent, ()))
    return pids


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name; none if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return TICK_S * sum(int(field) for field in fields[11:15])


def _end(pid: int) -> None:
    """A child that outlived its parent."""
    deadline_s = time.monotonic() + 2.0
    while _stat(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    if _stat(pid):
        os.kill(pid, signal.SIGKILL)

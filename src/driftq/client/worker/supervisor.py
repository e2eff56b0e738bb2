"""The supervisor: starts processes that run workers, restarts those that die, and ends all of them in order.

    supervisor                                          process n (`driftq.cli.worker_process`)
    ──────────                                          ───────────────────────────────────────
    start ───────────────────────────────────────────▶  import the modules, find the workers
    the first one: banner        ◀── loaded, files ───  run them
    none can be loaded: end            ◀── failed ────
    none can run them: end       ◀── failed ────        (the broker refuses a schedule, or the token)
    dies: log, back off, start again                    (a signal, a crash, out of memory)
    SIGTERM, SIGINT: all ── SIGTERM ─────────────────▶  claim nothing more, finish what runs ── ended ──▶
    a second signal: all ── SIGINT ──────────────────▶  release what runs, end at once
    --reload and a file has changed: as SIGTERM, then start again
    the supervisor itself dies: its socket closes ───▶  drain, as after SIGTERM

A process that reports its own end (everything was done, or the broker asked it to drain) is not started again; when
none is left, the supervisor ends. Each process has a socket to the supervisor and writes one JSON object a line.

The supervisor imports no module of the user, so that a reload needs no tricks, and knows neither workers nor brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from driftq.client.worker.file_watch import FileWatch
from driftq.client.worker.runner import signals_handled

logger = logging.getLogger("driftq.supervisor")

CONTROL_FD = "DRIFTQ_WORKER_CONTROL"  # the environment variable with the number of the socket
DRAIN_SIGNAL, ABORT_SIGNAL = signal.SIGTERM, signal.SIGINT
BACKOFF_S, BACKOFF_S_MAX = 0.5, 30.0
STEADY_S = 60.0  # a process that ran for this long starts again with the shortest backoff
GRACE_S = 10.0  # after the time to drain, before a process is killed
ABORT_S = 10.0  # after a second signal
FORCED = 130  # the exit code after a second signal
LINE_BYTES_MAX = 4 << 20


class SupervisorOptions(NamedTuple):
    """How many processes, and how they end."""

    processes: int = 1
    drain_ms: int = 30_000
    reload: bool = False
    burst: bool = False  # processes end by themselves: one that cannot work ends the whole


class LoadFailure(NamedTuple):
    """Why a process cannot load or run its workers. `code` is its exit code."""

    message: str
    detail: str
    code: int
    files: list[str]  # that were loaded before it failed
    is_permanent: bool = False  # the next process would meet the same, whenever it starts


class WorkerProcess:
    """One process, and what it reported."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self.number = number
        self.process = process
        self.started_s = time.monotonic()
        self.is_loaded = asyncio.Event()  # or has ended
        self.loaded: dict[str, Any] | None = None
        self.failure: LoadFailure | None = None
        self.has_ended_itself = False
        self._control = control

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait(self) -> int:
        """Read what it reports until it ends; returns its exit code."""
        reader, writer = await asyncio.open_connection(sock=self._control, limit=LINE_BYTES_MAX)
        try:
            with contextlib.suppress(ConnectionError, ValueError):  # a line that was cut short
                while line := await reader.readline():
                    self._on_report(json.loads(line))
            return await self.process.wait()
        finally:
            self.is_loaded.set()
            writer.close()

    def _on_report(self, report: dict[str, Any]) -> None:
        match report["event"]:
            case "loaded":
                self.loaded = report
                self.is_loaded.set()
            case "failed":
                self.failure = LoadFailure(
                    report["message"], report["detail"], report["code"], report["files"], report["is_permanent"]
                )
            case "ended":
                self.has_ended_itself = True

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Runs `options.processes` copies of `command`. `on_loaded` gets the report of the first process that is loaded,
    also after a reload; `on_failure` why one could not be, if another try follows a change of its files."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        options: SupervisorOptions,
        on_loaded: Callable[[dict[str, Any]], None],
        on_failure: Callable[[LoadFailure], None],
    ) -> None:
        self._command = command
        self._env = env
        self._options = options
        self._on_loaded = on_loaded
        self._on_failure = on_failure
        self._running: dict[int, WorkerProcess] = {}  # by number
        self._watch = FileWatch() if options.reload else None
        self._stop = asyncio.Event()
        self._turn = asyncio.Lock()  # processes load one after the other
        self._loaded_s: float | None = None  # when the first process was, since the start or the last change of a file
        self._changed = asyncio.Event()  # set when files change, and then replaced
        self._failure: LoadFailure | None = None
        self._forced = False

    async def run(self) -> int:
        """Until every process has ended by itself, or a signal ended them. Returns the exit code."""
        with signals_handled(self._on_signal, self._on_second_signal):
            watching = asyncio.create_task(self._watch_files())
            slots = [asyncio.create_task(self._keep(number)) for number in range(1, self._options.processes + 1)]
            try:
                await asyncio.gather(*slots)
            finally:
                for task in (watching, *slots):
                    task.cancel()
                await asyncio.gather(watching, *slots, return_exceptions=True)
                for process in self._running.values():
                    process.send(signal.SIGKILL)
        if self._failure is not None:
            return self._failure.code
        return FORCED if self._forced else 0

    @property
    def failure(self) -> LoadFailure | None:
        """Why nothing could be run."""
        return self._failure

    # --- one process after the other ---

    async def _keep(self, number: int) -> None:
        """Keep one process running."""
        failures = 0
        while not self._stop.is_set():
            changed = self._changed
            async with self._turn:
                if self._stop.is_set():
                    return
                process = await self._start(number)
                waiting = asyncio.create_task(process.wait())
                await process.is_loaded.wait()
                self._on_process_loaded(process)
            code = await waiting
            del self._running[number]
            if self._stop.is_set():
                return
            if changed.is_set():
                failures = 0
            elif process.has_ended_itself:
                logger.info("process %d (pid %d) has ended as it was asked to", number, process.pid)
                return
            elif process.failure is not None and self._ends_all(process.failure):
                if self._watch is None:
                    self._failure = process.failure
                    self._end_all()
                    return
                self._watch.add(process.failure.files)
                self._on_failure(process.failure)
                await self._first_of(self._stop, changed)
            else:
                failures = 1 if time.monotonic() - process.started_s > STEADY_S else failures + 1
                await self._back_off(process, code, failures, changed)

    def _ends_all(self, failure: LoadFailure) -> bool:
        """Whether other processes would fail as well. What the broker refuses in the first minute was wrong from the
        start, such as a token; what it refuses later may be mended while the processes are started again."""
        is_early = self._loaded_s is None or time.monotonic() - self._loaded_s < STEADY_S
        return is_early or self._options.burst or failure.is_permanent

    async def _start(self, number: int) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            started = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._env, CONTROL_FD: str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C in a terminal is for the supervisor, which then ends them
            )
        ours.setblocking(False)
        process = self._running[number] = WorkerProcess(number, started, ours)
        return process

    def _on_process_loaded(self, process: WorkerProcess) -> None:
        """It is loaded, or has ended before."""
        if process.loaded is None:
            return
        if self._watch is not None:
            self._watch.add(process.loaded["files"])
        if self._loaded_s is None:
            self._loaded_s = time.monotonic()
            self._on_loaded(process.loaded)
        logger.info("process %d runs with pid %d", process.number, process.pid)

    async def _back_off(self, process: WorkerProcess, code: int, failures: int, changed: asyncio.Event) -> None:
        backoff_s = min(BACKOFF_S_MAX, BACKOFF_S * 2 ** min(failures - 1, 16))
        why = process.failure.message if process.failure is not None else _describe(code)
        logger.error(
            "process %d (pid %d) died: %s; starting another one in %.1f s", process.number, process.pid, why, backoff_s,
            extra={"fields": {"process": process.number, "pid": process.pid, "exit_code": code}},
        )  # fmt: skip
        await self._first_of(self._stop, changed, timeout_s=backoff_s)

    # --- reload ---

    async def _watch_files(self) -> None:
        if self._watch is None:
            return
        while True:
            names = await self._watch.wait()
            logger.warning("%s changed: loading it again, after what runs has ended", ", ".join(names))
            self._loaded_s = None
            self._changed.set()
            self._changed = asyncio.Event()
            for process in self._running.values():
                self._terminate(process)

    # --- the end ---

    def _on_second_signal(self) -> None:
        if self._forced:
            return
        self._forced = True
        logger.warning("a second signal: ending at once; what runs is released")
        for process in self._running.values():
            process.send(ABORT_SIGNAL)
            asyncio.get_running_loop().call_later(ABORT_S, process.send, signal.SIGKILL)

    def _on_signal(self) -> None:
        drain_s = self._options.drain_ms / 1_000
        logger.info("stopping: what runs has %.0f s to end; a second signal ends it at once", drain_s)
        self._end_all()

    def _end_all(self) -> None:
        self._stop.set()
        for process in self._running.values():
            self._terminate(process)

    def _terminate(self, process: WorkerProcess) -> None:
        process.send(DRAIN_SIGNAL)
        limit_s = self._options.drain_ms / 1_000 + GRACE_S
        asyncio.get_running_loop().call_later(limit_s, process.send, signal.SIGKILL)

    async def _first_of(self, *events: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait for one of these events, or until the time is up."""
        waits = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


def _describe(code: int) -> str:
    """How a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def control_socket() -> socket.socket | None:
    """The socket to the supervisor, in a process that it started."""
    number = os.environ.pop(CONTROL_FD, "")
    return socket.socket(fileno=int(number)) if number else None

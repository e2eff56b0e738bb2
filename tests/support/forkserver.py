"""A fork server: starts processes under test without the half second of CPU that their imports take.

    test process                         fork server (one thread)              process under test
    ────────────                         ────────────────────────              ──────────────────
    ForkServer.fork ── order, fds ─────▶ imports the program once, then
                                         fork() ─────────────────────────────▶ dup2 the fds, program()
                    ◀────── pid ──────── waits for the next order
    wait()          ◀────── exit code ── waitpid() ◀────────────────────────── exit, or a signal

Each process is a process like any other, with its own pid, arguments, environment, files and locks, to be stopped or
killed. `ForkedProcess` looks like `subprocess.Popen`, `AsyncForkedProcess` like `asyncio.subprocess.Process`. When the
server's socket is closed, it kills the processes that still run.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

from tests.tidy.sources import ROOT

_STATUS = struct.Struct("<i")
_ORDER_BYTES_MAX = 1 << 20
_FDS_MAX = 4
COMMAND_LINE = ("driftq.cli.main", "driftq.cli.serve", "driftq.server.run")  # the program, and more to import


class ForkedProcess:
    """A process of a fork server, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, stderr: TextIO, status_fd: int) -> None:
        self.pid = pid
        self.stderr: TextIO | None = stderr
        self.returncode: int | None = None
        self._status_fd = status_fd

    def poll(self) -> int | None:
        return self._read_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_status(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("driftq", timeout or 0.0)
        return code

    def _read_status(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status_fd], [], [], timeout_s)[0]:
            (self.returncode,) = _STATUS.unpack(os.read(self._status_fd, _STATUS.size))
            os.close(self._status_fd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its exit code is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class AsyncForkedProcess:
    """A process of a fork server, as `asyncio.subprocess.Process` shows one."""

    def __init__(self, pid: int, status: asyncio.StreamReader, stdin: Any, stdout: Any, stderr: Any) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._status = asyncio.ensure_future(status.readexactly(_STATUS.size))

    async def wait(self) -> int:
        (code,) = _STATUS.unpack(await asyncio.shield(self._status))
        self.stdin.close()
        return int(code)

    def send_signal(self, number: int) -> None:
        if not self._status.done():
            os.kill(self.pid, number)


class ForkServer:
    """Starts the server's process when it is first used. `modules[0].main` is the program that every process runs."""

    def __init__(self, modules: tuple[str, ...] = COMMAND_LINE) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, arguments: list[str], env: dict[str, str]) -> ForkedProcess:
        """A process without standard input; its standard output is ours."""
        stderr, to_stderr = os.pipe()
        pid, status = self._fork(arguments, env, {2: to_stderr})
        return ForkedProcess(pid, os.fdopen(stderr, encoding="utf-8"), status)

    async def start_async(self, *arguments: str) -> AsyncForkedProcess:
        """A process whose standard streams are pipes."""
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        streams = {0: stdin[0], 1: stdout[1], 2: stderr[1]}
        loop = asyncio.get_running_loop()
        pid, status = await loop.run_in_executor(None, self._fork, list(arguments), dict(os.environ), streams)
        return AsyncForkedProcess(
            pid, await _reader(status), await _writer(stdin[1]), await _reader(stdout[0]), await _reader(stderr[0])
        )

    def close(self) -> None:
        """Kill the processes that still run."""
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait()

    def _fork(self, arguments: list[str], env: dict[str, str], streams: dict[int, int]) -> tuple[int, int]:
        """Fork a process with these fds as its streams, and close ours. Returns (pid, fd that gets the exit code)."""
        with self._lock:
            if self._orders is None:
                self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                command = [sys.executable, "-m", "tests.support.forkserver", *self._modules]
                self._process = subprocess.Popen(command, stdin=theirs, cwd=ROOT)
                theirs.close()
            status, to_status = os.pipe()
            order = {"arguments": arguments, "env": env, "cwd": os.getcwd(), "streams": list(streams)}
            fds = [*streams.values(), to_status]
            socket.send_fds(self._orders, [json.dumps(order).encode()], fds)
            for fd in fds:
                os.close(fd)
            return int(self._orders.recv(32)), status


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 24)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    return reader


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


# --- the server's process ---


def main() -> None:
    program, *_ = [importlib.import_module(name) for name in sys.argv[1:]]
    orders = socket.socket(fileno=os.dup(0))
    woken, to_wake = os.pipe()
    os.set_blocking(to_wake, False)
    signal.set_wakeup_fd(to_wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test run
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    children: dict[int, int] = {}  # where to write the exit code of each
    while True:
        for ready in select.select([orders, woken], [], [])[0]:
            if ready is not orders:
                os.read(woken, 1_024)
                _report_ends(children)
                continue
            order, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, _FDS_MAX)
            if not order:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return
            *streams, status = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (orders.fileno(), woken, to_wake, status, *children.values()):
                    os.close(fd)
                _run(program.main, json.loads(order), streams)
            for fd in streams:
                os.close(fd)
            children[pid] = status
            orders.send(str(pid).encode())


def _report_ends(children: dict[int, int]) -> None:
    while children:
        pid, code = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        status = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the test has closed its end
            os.write(status, _STATUS.pack(os.waitstatus_to_exitcode(code)))
        os.close(status)


def _run(program: Callable[[], object], order: dict[str, Any], streams: list[int]) -> NoReturn:
    """In the child: run the program and exit."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for target, fd in zip(order["streams"], streams, strict=True):
            os.dup2(fd, target)
            os.close(fd)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        sys.argv = ["driftq", *order["arguments"]]
        program()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()

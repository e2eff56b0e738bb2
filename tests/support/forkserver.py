"""Servers that are ready sooner: forked from a process that has imported `driftq` already.

Each is a process of its own that runs the program with its arguments and environment, to be killed or stopped like any
other; only the imports, half a second of CPU that hundreds of tests would spend, happened before. The process they are
forked from does nothing else and has one thread. Looks like `subprocess.Popen` to those who use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from typing import NoReturn, TextIO

_STATUS = struct.Struct("<i")
_ORDER_BYTES_MAX = 1 << 20


class Born:
    """A process that a nursery started."""

    def __init__(self, pid: int, stderr: TextIO, status_fd: int) -> None:
        self.pid = pid
        self.stderr: TextIO | None = stderr
        self.returncode: int | None = None
        self._status_fd = status_fd

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("driftq", timeout or 0.0)
        return code

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status_fd], [], [], timeout_s)[0]:
            (self.returncode,) = _STATUS.unpack(os.read(self._status_fd, _STATUS.size))
            os.close(self._status_fd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and the word of that is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """Made once for each process of tests; starts its own process when it is first asked."""

    def __init__(self) -> None:
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Whoever is still alive dies."""
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait()

    def start(self, arguments: list[str], env: dict[str, str]) -> Born:
        if self._orders is None:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = subprocess.Popen([sys.executable, "-m", "tests.support.forkserver"], stdin=theirs)
            theirs.close()
        errors, to_errors = os.pipe()
        status, to_status = os.pipe()
        order = json.dumps({"arguments": arguments, "env": env, "cwd": os.getcwd()}).encode()
        socket.send_fds(self._orders, [order], [to_errors, to_status])
        os.close(to_errors)
        os.close(to_status)
        pid = int(self._orders.recv(32))
        return Born(pid, os.fdopen(errors, encoding="utf-8"), status)


def main() -> None:
    """The process that servers are forked from."""
    from driftq.cli import main as program
    from driftq.cli import serve  # noqa: F401
    from driftq.server import run  # noqa: F401

    orders = socket.socket(fileno=os.dup(0))
    woken, to_wake = os.pipe()
    os.set_blocking(to_wake, False)
    signal.set_wakeup_fd(to_wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for whoever runs the tests
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    children: dict[int, int] = {}
    while True:
        for ready in select.select([orders, woken], [], [])[0]:
            if ready is not orders:
                os.read(woken, 1_024)
                _tell_ends(children)
                continue
            order, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 2)
            if not order:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return
            errors, status = fds
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (orders.fileno(), woken, to_wake, status, *children.values()):
                    os.close(fd)
                _live(program.main, errors, json.loads(order))
            os.close(errors)
            children[pid] = status
            orders.send(str(pid).encode())


def _tell_ends(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know
            os.write(told, _STATUS.pack(os.waitstatus_to_exitcode(status)))
        os.close(told)


def _live(program: object, errors: int, order: dict[str, object]) -> NoReturn:
    """In the child: be what was asked for, and never come back."""
    code = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(errors, 2)
        os.close(errors)
        os.environ.clear()
        os.environ.update(order["env"])  # type: ignore[call-overload]
        os.chdir(str(order["cwd"]))
        sys.argv = ["driftq", *order["arguments"]]  # type: ignore[misc]
        program()  # type: ignore[operator]
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

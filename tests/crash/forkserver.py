"""Broker processes without the wait for imports: a process that has imported everything forks one for every life.

Each is a process like any other, with its own pid, files and locks; only the interpreter's start is shared. `Nursery`
is the parent's side; run as a module, this is the nursery itself. It knows nothing about what the processes do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

from tests.tidy.sources import ROOT


class Forked:
    """A forked process, as `asyncio.subprocess.Process` would show it."""

    def __init__(self, pid: int, link: asyncio.StreamReader, stdin: Any, stdout: Any, stderr: Any) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self._code = asyncio.ensure_future(link.readline())

    async def wait(self) -> int:
        code = int(await asyncio.shield(self._code))
        self.stdin.close()
        return code

    def send_signal(self, number: int) -> None:
        if not self._code.done():
            os.kill(self.pid, number)


class Nursery:
    """Forks `broker_process` on demand. One per event loop."""

    def __init__(self, process: asyncio.subprocess.Process, link: socket.socket) -> None:
        self._process = process
        self._link = link

    @classmethod
    async def open(cls) -> Nursery:
        here, there = socket.socketpair()
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.crash.forkserver", str(there.fileno()),
            pass_fds=(there.fileno(),), cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        there.close()
        return cls(process, here)

    async def fork(self, *arguments: str) -> Forked:
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr, report = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        fds = [stdin[0], stdout[1], stderr[1], report[1]]
        await loop.run_in_executor(None, socket.send_fds, self._link, [json.dumps(arguments).encode()], fds)
        for fd in fds:
            os.close(fd)
        link = await _reader(report[0])
        pid = int(await link.readline())
        return Forked(pid, link, await _writer(stdin[1]), await _reader(stdout[0]), await _reader(stderr[0]))

    async def close(self) -> None:
        self._link.close()
        await self._process.wait()


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=1 << 24)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    return reader


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, None, loop)


# --- the nursery itself ---


def main() -> None:
    from tests.crash import broker_process

    link = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        data, fds, _, _ = socket.recv_fds(link, 1 << 16, 4)
        if not data:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            link.close()
            _keep(broker_process.main, json.loads(data), fds)
        for fd in fds:
            os.close(fd)


def _keep(work: Any, arguments: list[str], fds: list[int]) -> None:
    """Fork the process, say its pid, and say how it ended."""
    report = fds.pop()
    pid = os.fork()
    if pid == 0:
        os.close(report)
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        sys.argv[1:] = arguments
        code = 1
        try:
            work()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    for fd in fds:
        os.close(fd)
    os.write(report, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


if __name__ == "__main__":
    main()

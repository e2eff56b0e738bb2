"""A real `driftq serve` process for tests: started on a free port, called over real sockets, killed or stopped."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from tests.support.forkserver import ForkedProcess

START_S = 20.0
_ADDRESS = re.compile(r"on https?://127\.0\.0\.1:(\d+)")


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(port: int, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
    """One request to a server on this machine. Anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)
    try:
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def from_scratch(arguments: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """Start a new process, as a shell does, without the fork server."""
    command = [sys.executable, "-m", "driftq.cli.main", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


class Server:
    """One process. `folder` None keeps everything in memory."""

    launch: ClassVar[Callable[[list[str], dict[str, str]], subprocess.Popen[str] | ForkedProcess]] = staticmethod(
        from_scratch
    )

    def __init__(self, folder: str | None, *settings: str, port: int = 0, env: dict[str, str] | None = None) -> None:
        where = ["--data", folder] if folder is not None else ["--memory"]
        sets = [part for setting in settings for part in ("--set", setting)]
        arguments = ["serve", *where, "--listen", f"127.0.0.1:{port}", *sets]
        self.process = Server.launch(arguments, {**os.environ, **(env or {})})
        self.folder = folder
        self._reader: threading.Thread | None = None
        self.lines: list[str] = []
        self.port = self._wait_until_ready()

    def _wait_until_ready(self) -> int:
        assert self.process.stderr is not None
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            line = self.process.stderr.readline()
            if not line:
                break
            self.lines.append(line)
            match = _ADDRESS.search(line)
            if match:
                return int(match[1])
        self.kill()
        raise AssertionError("the server did not start:\n" + "".join(self.lines))

    def read_lines(self) -> None:
        """Read what it prints while it runs. A server that logs much would block otherwise."""
        stderr = self.process.stderr
        assert stderr is not None
        self._reader = threading.Thread(target=lambda: self.lines.extend(stderr), daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout_s: float = 20.0) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own. Anything but bytes is sent as JSON."""
        return request(self.port, method, path, body, headers)

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self, timeout_s: float = 20.0) -> int:
        """A clean stop; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self._reap()
        assert self.process.returncode is not None
        return self.process.returncode

    def _reap(self) -> None:
        self.process.wait()
        if self._reader is not None:
            self._reader.join()
        if self.process.stderr is not None:
            self.lines.extend(self.process.stderr.readlines())
            self.process.stderr.close()


@contextmanager
def running(folder: str | None, *settings: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    server = Server(folder, *settings, env=env)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()

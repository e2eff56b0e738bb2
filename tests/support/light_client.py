"""A client that sends one small produce at a time, to see what others cost it.

Its waiting time is measured as the CPU time that the server's threads spend between a request and its response. Unlike
the time on the clock, it does not depend on how busy the machine is. The client is a process of its own: as a thread it
would wait for the interpreter lock of those that flood the server, and what the server does in that time would count.
For the same reason a request counts only if the client did not have to wait for a core in that time.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from tests.support.server import Server

T = TypeVar("T", int, float)
QUANTILE = 0.95
DELAY_MS_MAX = 0.5  # of the client itself, for a request that counts


class Waits(NamedTuple):
    """How long the responses took, in CPU milliseconds of the server and in what it wrote to sockets and files."""

    quantile_ms: float
    longest_ms: float
    quantile_bytes: int
    count: int


def raw_request(method: str, path: str, body: object = None) -> bytes:
    """The bytes of a request. Anything but bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def cpu_ms(pid: int) -> float:
    """CPU time of all threads of a process. One that ends while this looks does not count."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e6


def written_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])


def delay_ms() -> float:
    """How long this process has waited for a core so far."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e6


def resident_mib(server: Server) -> int:
    return _memory_mib(server, "VmRSS")


def highest_mib(server: Server) -> int:
    """The most that was resident at any time."""
    return _memory_mib(server, "VmHWM")


def _memory_mib(server: Server, field: str) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith(field))


def light_waits(server: Server, topic: str, count: int, during: Callable[[], None] = lambda: None) -> Waits:
    """Of a client that sends at least `count` requests, and further ones until `during`, which is called once the
    client is connected, has returned."""
    arguments = [str(server.port), str(server.process.pid), topic, str(count)]
    command = [sys.executable, "-m", "tests.support.light_client", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "connected\n"
        during()
        printed, _ = client.communicate()  # closes its input
    return Waits(*json.loads(printed))


def _is_input_open() -> bool:
    return not select.select([sys.stdin], [], [], 0)[0]


def _main(port: int, pid: int, topic: str, count: int) -> None:
    """The client's process. Each request must succeed."""
    request = raw_request("POST", "/v1/produce", {"topic": topic, "value": "x" * 100})
    waits_ms: list[float] = []
    sizes: list[int] = []
    with connect(port) as sock:
        print("connected", flush=True)
        while len(waits_ms) < count or _is_input_open():
            before_ms, before_bytes, before_delay_ms = cpu_ms(pid), written_bytes(pid), delay_ms()
            sock.sendall(request)
            reply = sock.recv(65_536)
            wait_ms, size = cpu_ms(pid) - before_ms, written_bytes(pid) - before_bytes
            assert reply.startswith(b"HTTP/1.1 200 "), reply
            if delay_ms() - before_delay_ms <= DELAY_MS_MAX:
                waits_ms.append(wait_ms)
                sizes.append(size)
    print(json.dumps(Waits(_quantile(waits_ms), max(waits_ms), _quantile(sizes), len(waits_ms))))


def _quantile(values: list[T]) -> T:
    return sorted(values)[int(len(values) * QUANTILE)]


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))

"""Very many streams and topics: each costs little at a restart after SIGKILL, and has no file of its own.

A thirtieth of the sizes that the benchmarks name. The cost is the CPU time of the new process until it serves, so it
does not depend on how busy the machine is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.growth import cpu_s
from bench.load_client import LoadClient, post
from tests.support.light_client import resident_mib
from tests.support.server import Server

STREAMS = 3_000
TOPICS = 300
START_CPU_S = 0.3  # more than that of an empty server; with a file for each stream it was 1.4 s
RESIDENT_MIB_MAX = 100


async def send_all(port: int, requests: list[bytes]) -> None:
    client = await LoadClient.connect(port)
    for first in range(0, len(requests), 250):
        replies = await asyncio.gather(*map(client.send, requests[first : first + 250]))
        assert all(status < 300 for status, _ in replies), replies
    client.close()


def append(path: str) -> bytes:
    head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\none"
    return f"PUT /v1/stream/{path} {head}".encode()


def test_many_streams_and_topics_are_there_soon_after_a_kill_and_cost_little(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    server = Server(str(tmp_path / "empty"))
    try:
        empty_s = cpu_s(server)
    finally:
        server.kill()
    server = Server(folder)
    try:
        requests = [append(f"s/{number}") for number in range(STREAMS)]
        requests += [post(f"/v1/topics?name=t{number}", b"") for number in range(TOPICS)]
        asyncio.run(send_all(server.port, requests))
    finally:
        server.kill()
    server = Server(folder)
    try:
        assert cpu_s(server) - empty_s < START_CPU_S
        assert server.call("GET", f"/v1/stream/s/{STREAMS - 1}?offset=-1").body == b"one"
        assert server.call("GET", f"/v1/topics/t{TOPICS - 1}").status == 200
        assert resident_mib(server) < RESIDENT_MIB_MAX
        assert server.stop() == 0
    finally:
        server.process.kill()
    files = sum(1 for path in Path(folder).rglob("*") if path.is_file())
    assert files < 100, "small logs share segments"

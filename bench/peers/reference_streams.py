"""The reference server of the Durable Streams protocol (file storage), through its Python client."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bench.peers.installation import node_packages
from bench.peers.peer import LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess

SERVE = """
import { DurableStreamTestServer } from "@durable-streams/server"
const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", dataDir: process.argv[1] })
console.log(await server.start())
"""
TEXT = "text/plain"


class ReferenceStreamsPeer(Peer):
    name = "durable-streams"
    client_package = "durable-streams"
    durability = "file storage: fsync of every append"
    notes = "a batch is 1,000 lines of text in one append; the client joins what concurrent callers append"
    lacks = {"claims": "a stream has no claims and acks; a reader keeps its own offset"}  # noqa: RUF012

    def install(self, *, download: bool) -> None:
        self._packages = node_packages(download=download)

    def version(self) -> str:
        package = self._packages / "node_modules" / "@durable-streams" / "server" / "package.json"
        version: str = json.loads(package.read_text(encoding="utf-8"))["version"]
        return version

    def start(self, folder: Path) -> str:
        from durable_streams import DurableStream

        script = self._packages / "serve-peer.mjs"  # a module finds packages from where its file is
        script.write_text(SERVE.replace("process.argv[1]", "process.argv[2]"), encoding="utf-8")
        process = ServerProcess(["node", script, folder / "data"], folder)
        self.processes.append(process)
        process.wait_until(lambda: process.has_logged("http://"))
        listening = re.search(r"http://\S+", process.log.read_text(encoding="utf-8"))
        assert listening is not None
        for stream in (QUEUE, LIVE):
            DurableStream.create(f"{listening[0]}/{stream}", content_type=TEXT).close()
        return listening[0]


class ReferenceStreamsClient(PeerClient):
    def __init__(self, address: str) -> None:
        from durable_streams import DurableStream

        super().__init__(address)
        self._stream = DurableStream(f"{address}/{QUEUE}", content_type=TEXT)

    def write(self, values: Sequence[bytes]) -> None:
        self._stream.append(b"\n".join(values) + b"\n")

    def send(self, value: bytes) -> None:
        self._stream.append(value + b"\n")

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        from durable_streams import AsyncDurableStream

        async with AsyncDurableStream(f"{self.address}/{queue}", content_type=TEXT) as stream:
            yield [lambda value: stream.append(value + b"\n")] * count

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        from durable_streams import AsyncDurableStream

        async with (
            AsyncDurableStream(f"{self.address}/{LIVE}", content_type=TEXT, timeout=60.0) as stream,
            stream.stream(offset="-1", live="sse") as response,
        ):

            async def values() -> AsyncIterator[bytes]:
                rest = b""
                async for text in response.iter_text():
                    *lines, rest = (rest + text.encode()).split(b"\n")
                    for line in lines:
                        if line:
                            yield line

            yield values()

    def close(self) -> None:
        self._stream.close()

"""beanstalkd, through greenstalk. The client blocks; its async callers are threads with a connection each."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.installation import distribution_packages, library_path
from bench.peers.peer import LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, accepts, free_port

if TYPE_CHECKING:
    import greenstalk


class BeanstalkdPeer(Peer):
    name = "beanstalkd"
    client_package = "greenstalk"
    durability = "binlog with -f0"
    notes = "no batches: one put, one reserve and one delete at a time; async callers are threads"

    def __init__(self) -> None:
        super().__init__()
        self._program = "beanstalkd"
        self._env: dict[str, str] = {}

    def install(self, *, download: bool) -> None:
        root = distribution_packages("beanstalkd", "beanstalkd", download=download)
        if root is not None:
            self._program, self._env = str(root / "usr" / "bin" / "beanstalkd"), library_path(root)

    def version(self) -> str:
        printed = subprocess.run(
            [self._program, "-v"], env=self._env or None, capture_output=True, text=True, check=True
        )
        match = re.search(r"(\d\S+)", printed.stdout)
        return match[1] if match else "unknown"

    def start(self, folder: Path) -> str:
        port = free_port()
        (folder / "binlog").mkdir()
        command = [self._program, "-l", "127.0.0.1", "-p", str(port), "-b", folder / "binlog", "-f0"]
        process = ServerProcess(command, folder, env=self._env)
        self.processes.append(process)
        process.wait_until(lambda: accepts(port))
        return str(port)


def connect(address: str, tube: str) -> greenstalk.Client:
    import greenstalk

    return greenstalk.Client(("127.0.0.1", int(address)), encoding=None, use=tube, watch=tube)


class BeanstalkdClient(PeerClient):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._client = connect(address, QUEUE)

    def write(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._client.put(value)

    def send(self, value: bytes) -> None:
        self._client.put(value)

    def claim_and_ack(self, count_max: int) -> int:
        import greenstalk

        for count in range(count_max):
            try:
                job = self._client.reserve(timeout=0)
            except greenstalk.TimedOutError:
                return count
            self._client.delete(job)
        return count_max

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        loop = asyncio.get_running_loop()
        clients = [connect(self.address, queue) for _ in range(count)]

        def sender(client: greenstalk.Client) -> Send:
            return lambda value: loop.run_in_executor(threads, client.put, value)

        with ThreadPoolExecutor(count) as threads:
            yield [sender(client) for client in clients]
        for client in clients:
            client.close()

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        import greenstalk

        loop = asyncio.get_running_loop()
        with contextlib.closing(connect(self.address, LIVE)) as client, ThreadPoolExecutor(1) as thread:

            async def values() -> AsyncIterator[bytes]:
                while True:
                    with contextlib.suppress(greenstalk.TimedOutError):
                        job = await loop.run_in_executor(thread, client.reserve, 1)
                        yield job.body
                        await loop.run_in_executor(thread, client.delete, job)

            yield values()

    def close(self) -> None:
        self._client.close()

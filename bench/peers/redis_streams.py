"""Redis streams with consumer groups, through redis-py."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bench.peers.installation import distribution_packages, library_path
from bench.peers.peer import GROUP, LIVE, QUEUE, Peer, PeerClient, Send
from bench.peers.server_process import ServerProcess, accepts, free_port


class RedisPeer(Peer):
    name = "Redis"
    client_package = "redis"
    durability = "appendonly yes, appendfsync always"
    notes = "streams with a consumer group; batches are pipelines of XADD; XACK is sent with the next XREADGROUP"

    def __init__(self) -> None:
        super().__init__()
        self._program = "redis-server"
        self._env: dict[str, str] = {}

    def install(self, *, download: bool) -> None:
        root = distribution_packages("redis-server", "redis-server", download=download)
        if root is not None:
            self._program, self._env = str(root / "usr" / "bin" / "redis-server"), library_path(root)

    def version(self) -> str:
        printed = subprocess.run(
            [self._program, "--version"], env=self._env or None, capture_output=True, text=True, check=True
        )
        match = re.search(r"v=(\S+)", printed.stdout)
        return match[1] if match else "unknown"

    def start(self, folder: Path) -> str:
        import redis

        port = free_port()
        options = {
            "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "appendonly": "yes",
            "appendfsync": "always", "daemonize": "no",
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = ServerProcess([self._program, *arguments], folder, env=self._env)
        self.processes.append(process)
        process.wait_until(lambda: accepts(port))
        with redis.Redis(port=port) as client:
            for stream in (QUEUE, LIVE):
                client.xgroup_create(stream, GROUP, id="0", mkstream=True)
        return str(port)


class RedisClient(PeerClient):
    def __init__(self, address: str) -> None:
        import redis

        super().__init__(address)
        self._client = redis.Redis(port=int(address))
        self._unacked: list[bytes] = []

    def write(self, values: Sequence[bytes]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(QUEUE, {"value": value})
        pipeline.execute()

    def send(self, value: bytes) -> None:
        self._client.xadd(QUEUE, {"value": value})

    def claim_and_ack(self, count_max: int) -> int:
        """Acks the last batch and reads the next in one round trip, so that the two share a sync."""
        pipeline = self._client.pipeline(transaction=False)
        if self._unacked:
            pipeline.xack(QUEUE, GROUP, *self._unacked)
        pipeline.xreadgroup(GROUP, "worker", {QUEUE: ">"}, count=count_max)
        replies = pipeline.execute()[-1]
        self._unacked = [identifier for identifier, _ in entries_of(replies)] if replies else []
        return len(self._unacked)

    @contextlib.asynccontextmanager
    async def callers(self, count: int, queue: str) -> AsyncIterator[list[Send]]:
        import redis.asyncio

        async with redis.asyncio.Redis(port=int(self.address)) as client:

            async def send(value: bytes) -> None:
                await client.xadd(queue, {"value": value})

            yield [send] * count

    @contextlib.asynccontextmanager
    async def deliveries(self) -> AsyncIterator[AsyncIterator[bytes]]:
        import redis.asyncio

        async with redis.asyncio.Redis(port=int(self.address), socket_timeout=None) as client:

            async def values() -> AsyncIterator[bytes]:
                while True:
                    replies = await client.xreadgroup(GROUP, "worker", {LIVE: ">"}, count=100, block=10_000)
                    if not replies:
                        continue
                    messages = entries_of(replies)
                    for _, fields in messages:
                        yield fields[b"value"]
                    await client.xack(LIVE, GROUP, *(identifier for identifier, _ in messages))

            yield values()

    def close(self) -> None:
        self._client.close()


def entries_of(replies: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of the one stream that was read; a list of pairs in RESP2, a dictionary in RESP3."""
    if isinstance(replies, dict):
        (batches,) = replies.values()
        return [entry for batch in batches for entry in batch]
    ((_, entries),) = replies  # type: ignore[attr-defined]
    return list(entries)

"""The parent's side of `broker_process`: start it, send it requests, kill it. Does not know the requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from typing import Any

from tests.support.forkserver import AsyncForkedProcess
from tests.tidy.sources import ROOT

START_S = 30.0


class Gone(Exception):
    """The process ended before it replied: the request may have happened, or not."""


class BrokerProcess:
    """One broker process."""

    def __init__(self, process: asyncio.subprocess.Process | AsyncForkedProcess) -> None:
        self.process = process
        self.ready: dict[str, Any] = {}
        self.replies = 0  # so far
        self.ignored = False  # True: replies from now on do not count
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def prepare(
        cls, folder: str, *more: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> BrokerProcess:
        """A process that has imported what it needs and waits for the signal to open the folder."""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        process = await asyncio.create_subprocess_exec(
            *prefix, sys.executable, "-m", "tests.crash.broker_process", folder, *more,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **(env or {})}, limit=1 << 24,
        )  # fmt: skip
        return cls(process)

    async def begin(self) -> BrokerProcess:
        """Let it open the folder; raises `Ended` with what it printed if it ends instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.process.stdin.write(b"go\n")
            await self.process.stdin.drain()
        line = await asyncio.wait_for(self.process.stdout.readline(), START_S)
        if not line:
            raise Ended(await self.process.wait(), await self.errors())
        self.ready = json.loads(line)
        self._listening = asyncio.ensure_future(self._listen())
        return self

    @classmethod
    async def start(
        cls, folder: str, *more: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> BrokerProcess:
        return await (await cls.prepare(folder, *more, prefix=prefix, env=env)).begin()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # cut off by the end of the process: not a reply
            if self.ignored:
                continue
            reply = json.loads(line)
            self.replies += 1
            future = self._waiting.pop(reply["id"], None)
            if future is not None and not future.done():
                future.set_result(reply)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Gone())
        self._waiting.clear()

    async def ask(self, do: str, **more: Any) -> dict[str, Any]:
        number = next(self._numbers)
        if self._listening is None or self._listening.done():
            raise Gone
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"id": number, "do": do, **more}).encode() + b"\n")
            await self.process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            self._waiting.pop(number, None)
            future.cancel()
            raise Gone from None
        return await asyncio.wait_for(future, START_S)

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """Close its input: it replies to what it has received and ends cleanly."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self.ended()

    async def ended(self) -> int:
        code = await asyncio.wait_for(self.process.wait(), START_S)
        if self._listening is not None:
            await self._listening
        return code

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


class Ended(Exception):
    """The process ended instead of starting."""

    def __init__(self, code: int, errors: str) -> None:
        super().__init__(f"ended with {code}: {errors}")
        self.code = code
        self.errors = errors

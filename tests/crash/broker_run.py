"""The parent's side of `broker_process`: start it, ask it, kill it. Knows nothing about what is asked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from typing import Any

from tests.crash.forkserver import Forked
from tests.tidy.sources import ROOT

START_S = 30.0


class Gone(Exception):
    """The process ended before it answered: nobody knows whether it happened."""


class BrokerProcess:
    """One life of a broker process."""

    def __init__(self, process: asyncio.subprocess.Process | Forked) -> None:
        self.process = process
        self.ready: dict[str, Any] = {}
        self.heard = 0  # answers so far
        self.deaf = False  # True: what it says from now on does not count
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def prepare(
        cls, folder: str, *more: str, prefix: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> BrokerProcess:
        """A process that has imported what it needs and waits for the word to open the folder."""
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        process = await asyncio.create_subprocess_exec(
            *prefix, sys.executable, "-m", "tests.crash.broker_process", folder, *more,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **(env or {})}, limit=1 << 24,
        )  # fmt: skip
        return cls(process)

    async def begin(self) -> BrokerProcess:
        """Let it open the folder; raises `Ended` with what it printed if it does not come to that."""
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
                break  # cut off by the end of the process: not an answer
            if self.deaf:
                continue
            said = json.loads(line)
            self.heard += 1
            future = self._waiting.pop(said["id"], None)
            if future is not None and not future.done():
                future.set_result(said)
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
        """Close its input: it answers what was asked and ends cleanly."""
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

"""A broker for tests: the real engine in memory with the real HTTP layer, on a thread of this process.

Its clock stands still until `advance`: leases end and retries become due when the test says so, and no test sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from driftq.client.api import DriftQ
from driftq.client.worker.runner import run_async
from driftq.core.model.replies import Swept
from driftq.core.model.schedules import PlanSchedules
from driftq.engine.engine import Engine
from driftq.engine.schedule_planner import next_plans
from driftq.server.app import App
from driftq.server.handlers.codec import bad_request, internal_error
from driftq.server.handlers.context import Context
from driftq.server.http.listener import serve
from driftq.server.routes import routes
from driftq.server.settings import load
from driftq.testing.chaos import Chaos, Report, run_chaos
from driftq.testing.clock import HandClock as HandClock

if TYPE_CHECKING:
    from driftq.client.worker.options import WorkerCounts
    from driftq.client.worker.worker import Worker
    from driftq.core.model.commands import Command
    from driftq.server.settings import Settings

T = TypeVar("T")

START_S = 10.0


class MemoryBroker(DriftQ):
    """A blocking client with a broker of its own."""

    def __init__(self, *settings: str) -> None:
        checked = load(None, {}, settings).settings  # here, so that the caller gets the error of a wrong setting
        self.clock = HandClock()
        self._engine: Engine | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._serve(checked),), name="driftq-memory", daemon=True
        )
        self._thread.start()
        try:
            port = self._port.result(START_S)
        except TimeoutError:
            raise RuntimeError(f"the broker did not start within {START_S:.0f} seconds") from None
        except Exception:
            self._stop_thread()
            raise
        super().__init__(f"http://127.0.0.1:{port}", owner="test")

    async def _serve(self, settings: Settings) -> None:
        try:
            engine = self._engine = Engine.in_memory(limits=settings.core_limits(), clock=self.clock)
            app = App(routes(Context(engine, settings)))
            listener = await serve(app, "127.0.0.1", 0, on_bad_request=bad_request, on_error=internal_error)
        except Exception as error:
            self._port.set_exception(error)
            return
        self._port.set_result(listener.port)
        try:
            await self._stop.wait()
        finally:
            await listener.stop(0.1)
            await engine.close()

    def _run_on_broker(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def advance(self, ms: int) -> None:
        """Let time pass: leases end, retries and delayed messages become due, schedules fire."""
        self._run_on_broker(self._advance(ms))

    async def _advance(self, ms: int) -> None:
        engine = self._engine
        assert engine is not None
        self.clock.move(ms)
        while (command := self._due(engine)) is not None:
            reply = await engine.submit(command)
            if isinstance(reply, Swept):
                for group_id in reply.group_ids:
                    engine.watch.wake_group(group_id, 1)

    def _due(self, engine: Engine) -> Command | None:
        """What is necessary at this time. Schedules that have used up their times get new ones here."""
        now_ms = self.clock.now_ms()
        command = engine.sequencer.broker.due(now_ms)
        if command is None and (plans := next_plans(engine.latest_state.schedules, now_ms)):
            return PlanSchedules(plans)
        return command

    def drain(self, *workers: Worker[Any, Any]) -> list[WorkerCounts]:
        """Run workers until nothing is left to claim. Messages in backoff stay there: `advance`, then drain again."""
        return self._run(run_async(*workers, broker=self, drain=True))

    def chaos(self, worker: Worker[Any, Any], *, seed: int = 1, chaos: Chaos | None = None, rounds: int = 50) -> Report:
        """Run a worker with bad deliveries until all is settled: see `Chaos`. The same seed gives the same run."""
        return self._run(run_chaos(self, worker, chaos or Chaos(), seed, rounds))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On a loop of its own; on a thread of its own if the caller runs a loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(coroutine)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result()

    def close(self) -> None:
        super().close()
        if not self._loop.is_closed():
            self._stop_thread()

    def _stop_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self


@contextmanager
def memory_broker(*settings: str) -> Iterator[MemoryBroker]:
    """A broker for the duration of a block; settings as on the command line: "queue.in_flight_max=10"."""
    broker = MemoryBroker(*settings)
    try:
        yield broker
    finally:
        broker.close()

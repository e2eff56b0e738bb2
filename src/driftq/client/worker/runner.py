"""The process around workers: event loop, signals, presence, an orderly end. How messages move is in `worker_loop`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from driftq.client.api import AsyncDriftQ, DriftQ, connect_async
from driftq.client.errors import DriftQError, InvalidCall, NotFound, Refused
from driftq.client.event_loop import new_event_loop
from driftq.client.worker.claim_errors import AwaitedTopics, RepeatedErrors
from driftq.client.worker.hooks import RunHooks
from driftq.client.worker.presence import Presence

if TYPE_CHECKING:
    from driftq.client.worker.hooks import Middleware
    from driftq.client.worker.options import WorkerCounts
    from driftq.client.worker.worker import Worker

logger = logging.getLogger("driftq.worker")

Broker = str | DriftQ | AsyncDriftQ

RETRY_S = 1.0  # between two tries to register a schedule
SAME_SIGNAL_S = 0.2  # signals that follow each other within this are one request
DRAIN_QUIET_S = 1.0  # a run that only drains is announced if it takes longer than this


def run(
    *workers: Worker[Any, Any], broker: Broker = "", drain: bool = False, middleware: Sequence[Middleware] = ()
) -> list[WorkerCounts]:
    """Run workers in this process until SIGTERM or SIGINT.

    Parameters:
        workers: Functions made by `driftq.worker` and `driftq.task`.
        broker: A client, or an address (default: DRIFTQ_URL, else the local one).
        drain: End when nothing is left to claim.
        middleware: Hooks around all of them; see `driftq.Middleware`.

    A signal ends the claims and waits for the calls that run. A second one ends them at once: their messages are
    released, without counting an attempt. Returns what each worker did.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_until_signal(workers, broker, drain, middleware))


async def _until_signal(
    workers: Sequence[Worker[Any, Any]], broker: Broker, drain: bool, middleware: Sequence[Middleware]
) -> list[WorkerCounts]:
    stop, abort = asyncio.Event(), asyncio.Event()
    with signals_handled(stop.set, abort.set):
        return await run_async(*workers, broker=broker, drain=drain, stop=stop, abort=abort, middleware=middleware)


@contextlib.contextmanager
def signals_handled(on_first: Callable[[], None], on_second: Callable[[], None]) -> Iterator[None]:
    """Call these at the first SIGTERM or SIGINT, and at every later one. Some programs send one signal twice, to the
    process and to its group: what follows at once is the same request. Outside of the main thread the program handles
    signals itself."""
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    first_s: float | None = None

    def on_signal() -> None:
        nonlocal first_s
        if first_s is None:
            first_s = loop.time()
            on_first()
        elif loop.time() - first_s > SAME_SIGNAL_S:
            on_second()

    with contextlib.suppress(ValueError, RuntimeError):
        for number in numbers:
            _handle_signal(loop, number, on_signal)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, RuntimeError):  # RuntimeError: also Windows
            for number in numbers:
                loop.remove_signal_handler(number)


def _handle_signal(loop: asyncio.AbstractEventLoop, number: int, handler: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, handler)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(handler))


async def run_async(
    *workers: Worker[Any, Any],
    broker: Broker = "",
    drain: bool = False,
    stop: asyncio.Event | None = None,
    abort: asyncio.Event | None = None,
    waits_for_topics: bool = False,
    middleware: Sequence[Middleware] = (),
) -> list[WorkerCounts]:
    """Run workers on the running event loop until `stop` is set; `abort` ends the wait for what runs."""
    if not workers:
        raise InvalidCall("nothing to run: name at least one worker")
    stop, abort = stop or asyncio.Event(), abort or asyncio.Event()
    client = _client(broker)
    try:
        async with RunHooks([*middleware, *(item for worker in workers for item in worker.middleware)]):
            loops = [worker.new_loop(client, middleware) for worker in workers]
            presence = Presence(client, list(zip(workers, loops, strict=True)), stop, abort)
            announcing = asyncio.create_task(presence.run(DRAIN_QUIET_S if drain else 0.0))
            awaited = AwaitedTopics() if waits_for_topics else None
            tasks = [
                asyncio.create_task(loop.run(stop, drain=drain, abort=abort, awaited_topics=awaited)) for loop in loops
            ]
            registering = asyncio.create_task(
                _register_schedules(client, workers, stop, waits_for_topics=waits_for_topics)
            )
            others = (registering, announcing)
            try:
                await asyncio.wait((*tasks, registering), return_when=asyncio.FIRST_EXCEPTION)
                stop.set()  # if one has failed, the others drain
                await registering
                return await asyncio.gather(*tasks)
            finally:
                for task in (*tasks, *others):
                    task.cancel()
                await asyncio.gather(*tasks, *others, return_exceptions=True)
    finally:
        if client is not broker:
            await client.close()


async def _register_schedules(
    client: AsyncDriftQ, workers: Sequence[Worker[Any, Any]], stop: asyncio.Event, *, waits_for_topics: bool = False
) -> None:
    """Register the schedules of tasks: each is created, changed if its decorator has changed, or left as it is. One
    whose decorator is gone stays until it is deleted by hand, since other versions of the program may still run. A
    broker that is away is tried again; a refusal is raised, except for a missing topic that is waited for. One that
    has to wait does not delay the others."""
    errors = RepeatedErrors(client._transport.peer)
    left = [worker for worker in workers if worker.registration() is not None]
    while left and not stop.is_set():
        left = [worker for worker in left if not await _is_registered(client, worker, waits_for_topics, errors)]
        if left:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), RETRY_S)


async def _is_registered(
    client: AsyncDriftQ, worker: Worker[Any, Any], waits_for_topics: bool, errors: RepeatedErrors
) -> bool:
    """Try to register the schedule of a worker. False if it has to be tried again."""
    call = worker.registration()
    assert call is not None
    try:
        await client._transport.execute(call)
    except NotFound:
        if not waits_for_topics:
            raise
        return False  # the worker reports that it waits for its topic
    except DriftQError as error:
        if isinstance(error, Refused) and not error.retryable:
            error.message = f"the schedule of {worker.full_name} is refused: {error.message}"
            raise
        if errors.is_due(error):
            logger.warning("cannot register the schedule of %s, retrying: %s", worker.full_name, error)
        return False
    return True


def _client(broker: Broker) -> AsyncDriftQ:
    """Workers run on an event loop; a blocking client only provides the address."""
    if isinstance(broker, AsyncDriftQ):
        return broker
    if isinstance(broker, DriftQ):
        return broker.asynchronous()
    return connect_async(broker)

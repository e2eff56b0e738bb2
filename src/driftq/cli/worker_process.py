"""One process of `driftq worker`: loads the workers and runs them until it is asked to end. See the supervisor.

The order comes as JSON on the command line, the address and the token of the broker in the environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.cli.exit_codes import Exit
from driftq.client.api import connect_async
from driftq.client.errors import DriftQError, InvalidCall, NotConnected, NotFound
from driftq.client.event_loop import new_event_loop
from driftq.client.worker.discovery import LoadError, load_workers, with_options
from driftq.client.worker.file_watch import loaded_files
from driftq.client.worker.runner import run_async
from driftq.client.worker.supervisor import ABORT_SIGNAL, DRAIN_SIGNAL, control_socket
from driftq.settings.log_lines import capture_all, configure

if TYPE_CHECKING:
    import socket

    from driftq.client.worker.discovery import LoadedWorker
    from driftq.client.worker.options import WorkerCounts

logger = logging.getLogger("driftq.worker")

MODULE = "driftq.cli.worker_process"


class LogFormat(msgspec.Struct, frozen=True):
    """How a process logs."""

    level: str = "info"
    format: str = "text"


class WorkerOrder(msgspec.Struct, frozen=True):
    """What a process is to run."""

    targets: tuple[str, ...]
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    drain_ms: int | None = None
    burst: bool = False
    reload: bool = False
    log: LogFormat = LogFormat()
    trace: bool = False


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=WorkerOrder)
    control = control_socket()
    configure(order.log)
    capture_all()
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        workers = load_workers(order.targets, order.queues)
        workers = with_options(workers, concurrency=order.concurrency, drain_ms=order.drain_ms)
    except (LoadError, InvalidCall) as error:
        detail = error.detail if isinstance(error, LoadError) else ""
        end = Exit.BAD_INPUT if detail else Exit.USAGE
        files = [*(error.files if isinstance(error, LoadError) else ()), *_files(order)]
        _report(control, "failed", message=str(error), detail=detail, code=end, files=files, is_permanent=False)
        sys.exit(end)
    _report(control, "loaded", workers=[_description(loaded) for loaded in workers], files=_files(order))
    code = _traced(order, workers, control) if order.trace else _run(order, workers, control)
    # A plain function that still runs is on a thread that the interpreter would wait for.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _traced(order: WorkerOrder, workers: list[LoadedWorker], control: socket.socket | None) -> int:
    from driftq import telemetry

    provider = telemetry.export("driftq-worker")
    try:
        return _run(order, workers, control)
    finally:
        telemetry.close(provider)


def _run(order: WorkerOrder, workers: list[LoadedWorker], control: socket.socket | None) -> int:
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            counts = runner.run(_until_end(order, workers, control))
    except DriftQError as error:
        code = Exit.REFUSED
        if isinstance(error, NotFound | NotConnected):
            code = Exit.NOTHING_THERE if isinstance(error, NotFound) else Exit.UNREACHABLE
        message, is_permanent = getattr(error, "message", str(error)), isinstance(error, InvalidCall)
        _report(control, "failed", message=message, detail="", code=code, files=[], is_permanent=is_permanent)
        return code
    _report(control, "ended")
    for loaded, count in zip(workers, counts, strict=True):
        if any(getattr(count, name) for name in count.__slots__):
            fields = {name: getattr(count, name) for name in count.__slots__}
            logger.info("%s has ended", loaded.name, extra={"fields": fields})
    return Exit.OK


async def _until_end(
    order: WorkerOrder, workers: list[LoadedWorker], control: socket.socket | None
) -> list[WorkerCounts]:
    stop, abort = asyncio.Event(), asyncio.Event()

    def on_abort() -> None:
        stop.set()
        abort.set()

    def on_control() -> None:
        """The socket is readable: the supervisor is gone."""
        assert control is not None
        asyncio.get_running_loop().remove_reader(control)
        logger.warning("the supervisor is gone: draining")
        stop.set()

    if control is not None:
        asyncio.get_running_loop().add_reader(control, on_control)
    client = connect_async()
    try:
        # The supervisor sends one signal to drain and another to end at once: two of one kind could become one.
        asyncio.get_running_loop().add_signal_handler(DRAIN_SIGNAL, stop.set)
        asyncio.get_running_loop().add_signal_handler(ABORT_SIGNAL, on_abort)
        return await run_async(
            *(loaded.worker for loaded in workers),
            broker=client, drain=order.burst, stop=stop, abort=abort, waits_for_topics=not order.burst,
        )  # fmt: skip
    finally:
        if control is not None:
            asyncio.get_running_loop().remove_reader(control)
        await client.close()


def _files(order: WorkerOrder) -> list[str]:
    """What to watch for changes."""
    return loaded_files() if order.reload else []


def _description(loaded: LoadedWorker) -> dict[str, Any]:
    """A worker in the banner."""
    worker = loaded.worker
    subscription, options = worker.subscription, worker.options
    return {
        "name": loaded.name,
        "topic": subscription.topic,
        "group": subscription.group,
        "task": subscription.task or "",
        "label": subscription.label or "",
        "concurrency": options.concurrency,
        "kind": "async" if worker.is_async else "threads",
    }


def _report(control: socket.socket | None, event: str, **fields: Any) -> None:
    """A line for the supervisor."""
    if control is not None:
        control.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")


if __name__ == "__main__":
    main()

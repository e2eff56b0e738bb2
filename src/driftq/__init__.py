"""DriftQ: queues, jobs and durable streams on one journal.

This is the one door. It stays small on purpose: a user needs about a dozen names, and everything else is reached by the
path of its module or not at all. Names are fetched when they are first used, so `import driftq` costs next to nothing
and never brings in a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from driftq.client import effects as effects
    from driftq.client import errors as errors
    from driftq.client.api import AsyncDriftQ as AsyncDriftQ
    from driftq.client.api import DriftQ as DriftQ
    from driftq.client.api import connect as connect
    from driftq.client.api import connect_async as connect_async
    from driftq.client.message import AsyncMessage as AsyncMessage
    from driftq.client.message import Message as Message
    from driftq.client.transport.sansio import RetryOptions as RetryOptions
    from driftq.client.worker.handler_results import Reject as Reject
    from driftq.client.worker.handler_results import Release as Release
    from driftq.client.worker.handler_results import Retry as Retry
    from driftq.client.worker.tasks import task as task
    from driftq.client.worker.worker import run as run
    from driftq.client.worker.worker import worker as worker
    from driftq.wire.message import Envelope as Envelope
    from driftq.wire.message import RetryPolicy as RetryPolicy
    from driftq.wire.router import RouteDecision as RouteDecision
    from driftq.wire.router import RouteInput as RouteInput

_PLACES = {
    "connect": "api",
    "connect_async": "api",
    "DriftQ": "api",
    "AsyncDriftQ": "api",
    "worker": "worker.worker",
    "run": "worker.worker",
    "task": "worker.tasks",
    "Message": "message",
    "AsyncMessage": "message",
    "Retry": "worker.handler_results",
    "Reject": "worker.handler_results",
    "Release": "worker.handler_results",
    "effects": "",
    "errors": "",
    "Envelope": "driftq.wire.message",
    "RetryPolicy": "driftq.wire.message",
    "RetryOptions": "transport.sansio",
    "RouteDecision": "driftq.wire.router",
    "RouteInput": "driftq.wire.router",
}

__all__ = [
    "__version__",
    "connect",
    "connect_async",
    "DriftQ",
    "AsyncDriftQ",
    "worker",
    "task",
    "run",
    "Message",
    "AsyncMessage",
    "Retry",
    "Reject",
    "Release",
    "Envelope",
    "RetryPolicy",
    "RetryOptions",
    "RouteDecision",
    "RouteInput",
    "effects",
    "errors",
]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'driftq' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    module = place if place.startswith("driftq.") else f"driftq.client.{place or name}"
    found: object = importlib.import_module(module)
    if place:
        found = getattr(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

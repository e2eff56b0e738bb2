"""DriftQ: queues, jobs and durable streams on one journal.

These are the public names, few on purpose: everything else is reached by the path of its module or not at all. A name
is imported when it is first used, so `import driftq` costs next to nothing and never imports a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from driftq import middleware as middleware
    from driftq.client import effects as effects
    from driftq.client import errors as errors
    from driftq.client.api import AsyncDriftQ as AsyncDriftQ
    from driftq.client.api import DriftQ as DriftQ
    from driftq.client.api import connect as connect
    from driftq.client.api import connect_async as connect_async
    from driftq.client.claims import Reject as Reject
    from driftq.client.claims import Release as Release
    from driftq.client.claims import Retry as Retry
    from driftq.client.message import AsyncMessage as AsyncMessage
    from driftq.client.message import Message as Message
    from driftq.client.transport.sansio import RetryOptions as RetryOptions
    from driftq.client.worker.attempt import current_message as current_message
    from driftq.client.worker.composition import chain as chain
    from driftq.client.worker.composition import group as group
    from driftq.client.worker.hooks import Hooks as Hooks
    from driftq.client.worker.hooks import Middleware as Middleware
    from driftq.client.worker.hooks import current_context as current_context
    from driftq.client.worker.runner import run as run
    from driftq.client.worker.tasks import task as task
    from driftq.client.worker.worker import worker as worker
    from driftq.wire.message import Envelope as Envelope
    from driftq.wire.message import RetryPolicy as RetryPolicy
    from driftq.wire.router import RouteDecision as RouteDecision
    from driftq.wire.router import RouteInput as RouteInput

# Relative to driftq.client, unless the whole path is given. Empty: the name is a module itself; a dot: one of driftq.
_MODULES = {
    "connect": "api",
    "connect_async": "api",
    "DriftQ": "api",
    "AsyncDriftQ": "api",
    "worker": "worker.worker",
    "run": "worker.runner",
    "task": "worker.tasks",
    "chain": "worker.composition",
    "group": "worker.composition",
    "current_message": "worker.attempt",
    "current_context": "worker.hooks",
    "Middleware": "worker.hooks",
    "Hooks": "worker.hooks",
    "middleware": ".",
    "Message": "message",
    "AsyncMessage": "message",
    "Retry": "claims",
    "Reject": "claims",
    "Release": "claims",
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
    "chain",
    "group",
    "current_message",
    "current_context",
    "Middleware",
    "Hooks",
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
    "middleware",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'driftq' has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    if module in ("", "."):
        value: object = importlib.import_module(f"driftq.client.{name}" if not module else f"driftq.{name}")
    else:
        value = importlib.import_module(module if module.startswith("driftq.") else f"driftq.client.{module}")
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

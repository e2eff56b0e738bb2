"""Finds workers and tasks by name: `app` means all of a module, `app:charge` or `app:email.send.v1` a single one.

A module is imported as `python -m` would find it. What goes wrong is a `LoadError` with a sentence for the user; its
`detail` is the traceback of a module that raised while it was imported. Nothing here runs a worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import traceback
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client.errors import DriftQError
from driftq.client.worker.hooks import Middleware
from driftq.client.worker.tasks import Task
from driftq.client.worker.worker import Worker
from driftq.settings.suggestions import did_you_mean

if TYPE_CHECKING:
    from driftq.client.worker.options import WorkerOptions

NAMES_SHOWN_MAX = 20


class LoadError(DriftQError):
    """A module or a worker that cannot be loaded. `detail`: the module was found and raised this."""

    def __init__(self, message: str, detail: str = "", files: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.detail = detail
        self.files = files  # that were read before it failed


class LoadedWorker(NamedTuple):
    """A worker and the name by which people know it: `app.charge`."""

    name: str
    worker: Worker[Any, Any]


def load_workers(targets: Sequence[str], queues: Sequence[str] = ()) -> list[LoadedWorker]:
    """The workers that `targets` name, in this order; with `queues` only those of these topics."""
    workers: list[LoadedWorker] = []
    middleware: dict[int, tuple[Middleware, ...]] = {}  # of the module of each worker
    for target in targets:
        module_name, colon, names = target.partition(":")
        module = import_target(module_name)
        known = workers_of(module)
        around = middleware_of(module)
        for loaded in known.values():
            middleware.setdefault(id(loaded.worker), around)
        if not colon:
            if not known:
                raise LoadError(
                    f"{module_name} has no workers: decorate a function with @driftq.task or @driftq.worker, "
                    "or name the module that has them"
                )
            workers += known.values()
            continue
        workers += (_named(module_name, name, known) for name in names.split(","))
    first: dict[int, LoadedWorker] = {}  # a worker may be named twice, or be imported by another module
    for loaded in workers:
        first.setdefault(id(loaded.worker), loaded)
    workers = [*first.values()]
    _refuse_conflicts(workers)
    workers = [
        LoadedWorker(name, worker.changed(worker.options, (*middleware[id(worker)], *worker.middleware)))
        for name, worker in workers
    ]
    return _of_queues(workers, queues) if queues else workers


def import_target(name: str) -> ModuleType:
    """Import a module that a user named."""
    if name.endswith(".py") or "/" in name:
        as_module = name.removeprefix("./").removesuffix(".py").replace("/", ".")
        raise LoadError(f"{name} is a file; name the module: {as_module}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(
                f"there is no module {error.name!r}: run this in the folder that has it, or set PYTHONPATH"
            ) from None
        raise _import_failure(name, error) from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from None


def _import_failure(name: str, error: BaseException) -> LoadError:
    """What a module raised, with the frames of its own files: those of the import system explain nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen ") and frame.filename != __file__]
    own = [frame for frame in own if frame.filename != importlib.__file__]
    error_lines = traceback.format_exception_only(error)
    detail = "".join(["Traceback (most recent call last):\n", *traceback.format_list(own), *error_lines])
    files = [*(frame.filename for frame in own), *([error.filename or ""] if isinstance(error, SyntaxError) else [])]
    return LoadError(f"{name} cannot be imported: {error_lines[-1].strip()}", detail, files)


def workers_of(module: ModuleType) -> dict[str, LoadedWorker]:
    """The workers of a module, by the name of their variable."""
    return {
        name: LoadedWorker(f"{module.__name__}.{name}", value)
        for name, value in vars(module).items()
        if isinstance(value, Worker)
    }


def middleware_of(module: ModuleType) -> tuple[Middleware, ...]:
    """The middleware of all workers of a module: its variable `middleware`."""
    given = getattr(module, "middleware", ())
    if isinstance(given, ModuleType):  # `from driftq import middleware`
        return ()
    if not isinstance(given, list | tuple) or not all(isinstance(item, Middleware) for item in given):
        raise LoadError(f"{module.__name__}.middleware must be a list of driftq.Middleware and driftq.Hooks objects")
    return tuple(given)


def _named(module_name: str, name: str, known: dict[str, LoadedWorker]) -> LoadedWorker:
    """A worker by the name of its variable, or a task by its own name."""
    tasks = {loaded.worker.name: loaded for loaded in known.values() if isinstance(loaded.worker, Task)}
    loaded = known.get(name) or tasks.get(name)
    if loaded is not None:
        return loaded
    names = [*known, *(task for task in tasks if task not in known)]
    there = f"it has {_listed(names)}" if names else "it has none"
    raise LoadError(f"{module_name} has no worker or task {name!r}: {did_you_mean(name, names, there)}")


def _refuse_conflicts(workers: Iterable[LoadedWorker]) -> None:
    """Two functions for the same messages: each message would go to either of them."""
    owners: dict[tuple[object, ...], str] = {}
    for name, worker in workers:
        topic, group, task, label, _ = worker.subscription
        other = owners.setdefault((topic, group, task, label), name)
        if other != name:
            messages = f"task {task!r} of topic {topic!r}" if task else f"messages of topic {topic!r}"
            raise LoadError(f"{other} and {name} both take the {messages} in group {group!r}: give one another name")


def _of_queues(workers: list[LoadedWorker], queues: Sequence[str]) -> list[LoadedWorker]:
    topics = [*dict.fromkeys(loaded.worker.subscription.topic for loaded in workers)]
    for queue in queues:
        if queue not in topics:
            raise LoadError(f"no worker takes topic {queue!r}: {did_you_mean(queue, topics, _listed(topics))}")
    return [loaded for loaded in workers if loaded.worker.subscription.topic in queues]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def with_options(workers: Iterable[LoadedWorker], **changes: int | None) -> list[LoadedWorker]:
    """The workers with some options replaced; None keeps the worker's own."""
    given = {name: value for name, value in changes.items() if value is not None}
    return [
        LoadedWorker(name, worker.changed(_replaced(worker.options, given), worker.middleware))
        for name, worker in workers
    ]


def _replaced(options: WorkerOptions, changes: dict[str, int]) -> WorkerOptions:
    replaced = options._replace(**changes)
    replaced.check()
    return replaced

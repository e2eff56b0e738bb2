"""The reference of the Python client, made from signatures and docstrings: every public name with its parameters."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

FUNCTIONS = ("connect", "connect_async", "worker", "task", "run", "current_message", "current_context")
# What the attributes of a broker are called in programs, and their classes.
RESOURCES = (
    ("broker", "driftq.client.api", "DriftQ"),
    ("broker.topics", "driftq.client.resources", "Topics"),
    ("broker.groups", "driftq.client.resources", "Groups"),
    ("broker.jobs", "driftq.client.resources", "Jobs"),
    ("broker.dead_letters", "driftq.client.resources", "DeadLetters"),
    ("handle", "driftq.client.job_handle", "JobHandle"),
    ("broker.workers", "driftq.client.resources", "Workers"),
    ("broker.streams", "driftq.client.resources", "Streams"),
    ("stream", "driftq.client.streams.stream", "Stream"),
    ("producer", "driftq.client.producer.producer", "Producer"),
    ("tokens", "driftq.client.producer.stream_producer", "IdempotentProducer"),
    ("receipt", "driftq.client.producer.accumulator", "Receipt"),
    ("message", "driftq.client.message", "Message"),
    ("outcome", "driftq.client.outcome", "Outcome"),
    ("effect", "driftq.client.effects", "Effect"),
    ("inbox", "driftq.client.effects", "Inbox"),
    ("task", "driftq.client.worker.tasks", "Task"),
    ("hooks", "driftq.client.worker.hooks", "Middleware"),
)
VALUES = (
    ("driftq.wire.message", "Envelope"),
    ("driftq.wire.message", "RetryPolicy"),
    ("driftq.client.transport.sansio", "RetryOptions"),
    ("driftq.client.claims", "Retry"),
    ("driftq.client.claims", "Reject"),
    ("driftq.client.claims", "Release"),
    ("driftq.middleware", "Logging"),
    ("driftq.middleware", "Timing"),
    ("driftq.middleware", "Capture"),
    ("driftq.middleware", "TimeLimit"),
)
PARAMETER = re.compile(r"^    ([a-z_, ]+): (.+)$")


class Entry(NamedTuple):
    """One public name, as it is written in a program."""

    name: str
    thing: Any


def rows(module: ModuleType) -> Sequence[Sequence[str]]:
    """The lines of the page."""
    lines: list[str] = ["", "## Functions", ""]
    for name in FUNCTIONS:
        lines += entry(Entry(f"driftq.{name}", getattr(module, name)))
    for owner, path, class_name in RESOURCES:
        kind = getattr(importlib.import_module(path), class_name)
        lines += [f"## `{owner}`", "", summary(kind), ""]
        for member in members(owner, kind):
            lines += entry(member)
    lines += ["## Values, results and middleware", ""]
    for path, name in VALUES:
        kind = getattr(importlib.import_module(path), name)
        prefix = "driftq.middleware." if path == "driftq.middleware" else "driftq."
        lines += entry(Entry(f"{prefix}{name}", kind))
    return [lines]


def members(owner: str, kind: type) -> Iterator[Entry]:
    """The public methods and properties of a class, by name; those without a docstring need none."""
    for name in sorted(dir(kind)):
        thing = inspect.getattr_static(kind, name)
        is_public = not name.startswith("_") and (
            callable(thing) or isinstance(thing, property) or is_descriptor(thing)
        )
        if is_public and inspect.getdoc(thing) and not inspect.isclass(thing):
            yield Entry(f"{owner}.{name}", thing)


def is_descriptor(thing: Any) -> bool:
    return hasattr(type(thing), "__get__") and hasattr(thing, "__wrapped__")


def entry(shown: Entry) -> list[str]:
    text = inspect.cleandoc(inspect.getdoc(shown.thing) or "")
    lines = [f"### `{shown.name}`", ""]
    if signature := signature_of(shown):
        lines += ["```python", signature, "```", ""]
    return [*lines, *paragraphs(text), ""]


def signature_of(shown: Entry) -> str:
    """As a program would write the call; "" for an attribute."""
    if isinstance(shown.thing, property) or not callable(shown.thing):
        return ""
    parts: list[str] = []
    for parameter in inspect.signature(shown.thing).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        parts.append(_parameter(parameter))
    one_line = f"{shown.name}({', '.join(parts)})"
    if len(one_line) <= 120:
        return one_line
    return f"{shown.name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        text += f": {parameter.annotation}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        text += f" = {json.dumps(default)}" if isinstance(default, str) else f" = {default!r}"
    return text


def paragraphs(text: str) -> Iterator[str]:
    """A docstring as Markdown: its parameters become a list."""
    in_parameters = False
    for line in text.splitlines():
        if line == "Parameters:":
            in_parameters = True
        elif in_parameters and (parameter := PARAMETER.match(line)):
            names = ", ".join(f"`{name}`" for name in parameter[1].split(", "))
            yield f"- {names}: {parameter[2]}"
        elif in_parameters and not line:
            in_parameters = False
            yield ""
        elif line.startswith("    "):
            yield f"    {line}" if not in_parameters else line
        else:
            yield line


def summary(kind: type) -> str:
    text = " ".join((inspect.getdoc(kind) or "").split())
    if issubclass(kind, msgspec.Struct):
        return text
    return text if text and not text.startswith("Base of") else ""

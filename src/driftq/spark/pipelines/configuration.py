"""From a TOML file and a command line to a configuration that can be run, or a sentence that says what is wrong.

    [pipeline]
    name = "metrics"
    [source]
    topics = ["orders"]
    [sink]
    table = "./tables/metrics"
    [metrics]
    window = "10 seconds"

Unknown names are refused with the nearest one that exists. Nothing here needs Spark, so that `list` and `show` work
without it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from driftq.spark.pipelines.settings import Configuration, Section

SHARED_SECTIONS = ("pipeline", "source", "sink")


class PipelineSpec(NamedTuple):
    """A pipeline: a line about it, what it cannot do without, and whether it goes on until it is stopped."""

    summary: str
    needs: tuple[str, ...]
    endless: bool = True


TOPICS = "source.topics"
PIPELINES: Mapping[str, PipelineSpec] = {
    "archive": PipelineSpec("Topics into a table, each message once.", (TOPICS, "sink.table")),
    "audit": PipelineSpec(
        "Prove that a table holds exactly what the log holds.", (TOPICS, "sink.table"), endless=False
    ),
    "dedupe": PipelineSpec("Leave out repeats of an idempotency key.", (TOPICS, "sink.topic")),
    "route": PipelineSpec("Send the messages of a topic where rules or a function say.", (TOPICS,)),
    "runs": PipelineSpec("What happened in each agent run, step by step.", (TOPICS, "sink.table")),
    "metrics": PipelineSpec("Counts, error rates and latencies in windows of time.", (TOPICS, "sink.table")),
    "deadletters": PipelineSpec("Dead letters by kind of error; send them back at a rate.", (TOPICS,), endless=False),
    "replay": PipelineSpec("A table or a range of a topic into a topic again.", ("sink.topic",), endless=False),
    "transform": PipelineSpec("Topic to topic through a function of your own.", (TOPICS, "sink.topic")),
    "compact": PipelineSpec("Put the small files of a table together.", ("sink.table",), endless=False),
}


class BadConfiguration(ValueError):
    """Something in a configuration is unknown, wrong or missing; the message names it."""


def load(
    target: str,
    assignments: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Configuration:
    """The configuration of a pipeline by name, or of a file; then single settings: `values` by dotted name,
    `assignments` as typed (`metrics.window="10 seconds"`), and `defaults` for what nobody has said."""
    tree = _file(target) if target.endswith(".toml") else {"pipeline": {"name": target}}
    origin = target if target.endswith(".toml") else "configuration"
    for name, value in (values or {}).items():
        _put(tree, name, value)
    for assignment in assignments:
        name, found, text = assignment.partition("=")
        if not found:
            raise BadConfiguration(f"--set takes NAME=VALUE, not {assignment!r}")
        _put(tree, name.strip(), _value(text.strip()))
    for name, value in (defaults or {}).items():
        section, _, field = name.partition(".")
        tree.setdefault(section, {}).setdefault(field, value)
    return checked(tree, origin)


def checked(tree: Mapping[str, Any], origin: str = "configuration") -> Configuration:
    """A tree as it comes from TOML, as a configuration that can be run."""
    _refuse_unknown(tree, Configuration, "", origin)
    try:
        found = msgspec.convert(tree, Configuration)
    except msgspec.ValidationError as error:
        raise BadConfiguration(f"{origin}: {_explained(str(error))}") from None
    _refuse_missing(tree, found, origin)
    return found


def identity(configuration: Configuration) -> str:
    """What this pipeline is called in progress lines, checkpoints and commits."""
    run = configuration.pipeline
    read = "+".join(configuration.source.topics) or configuration.source.pattern
    parts = [run.name, *(name for name in (read, configuration.sink.topic) if name)]
    return run.id or re.sub(r"[^\w.+-]", "_", "-".join(parts), flags=re.ASCII)


def checkpoint(configuration: Configuration) -> str:
    """Where a pipeline keeps its progress: beside the table, so that both are moved and deleted together."""
    run = configuration.pipeline
    if run.checkpoint:
        return run.checkpoint
    table = configuration.sink.table.rstrip("/")
    return f"{table}.checkpoints/{identity(configuration)}" if table else f"checkpoints/{identity(configuration)}"


def shown(configuration: Configuration) -> Iterator[str]:
    """The lines of a TOML file that says the same, with a sentence beside each setting."""
    name = configuration.pipeline.name
    for title in (*SHARED_SECTIONS, name):
        section = getattr(configuration, title, None)
        if section is None:
            continue
        yield f"[{title}]"
        for field, kind in get_type_hints(type(section), include_extras=True).items():
            value = getattr(section, field)
            if (title, field) == ("source", "token"):
                value = ""
            if title == "pipeline" and field in ("id", "checkpoint"):
                value = identity(configuration) if field == "id" else checkpoint(configuration)
            yield f"{field} = {_toml(value)}  # {description(kind)}"
        yield ""


def description(kind: Any) -> str:
    for meta in reversed(get_args(kind)[1:] if get_origin(kind) is Annotated else ()):
        if isinstance(meta, Meta) and meta.description:
            return meta.description
    return ""


def _file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfiguration(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path}: {error}") from None


def _put(tree: dict[str, Any], name: str, value: Any) -> None:
    section, found, field = name.partition(".")
    if not found:
        raise BadConfiguration(f"{name!r} is not a setting: section.name, for example source.max_offsets")
    part = tree.setdefault(section, {})
    if not isinstance(part, dict):
        raise BadConfiguration(f"{section!r} is a section, not a value")
    part[field] = value


def _value(text: str) -> Any:
    """As TOML where it is TOML, otherwise the text as it was typed."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _refuse_unknown(tree: Mapping[str, Any], section: type[Section], path: str, origin: str) -> None:
    known = section.__struct_fields__
    for name, value in tree.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {path}{near[0]}?" if near else f"there is: {', '.join(known)}"
            raise BadConfiguration(f"{origin}: {path}{name} is not a setting; {hint}")
        kind = get_type_hints(section)[name]
        if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, dict):
            _refuse_unknown(value, kind, f"{name}.", origin)


def _refuse_missing(tree: Mapping[str, Any], found: Configuration, origin: str) -> None:
    name = found.pipeline.name
    if not name:
        raise BadConfiguration(f"{origin}: [pipeline] name is missing: one of {', '.join(PIPELINES)}")
    if name not in PIPELINES:
        near = get_close_matches(name, PIPELINES, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is: {', '.join(PIPELINES)}"
        raise BadConfiguration(f"{origin}: there is no pipeline {name!r}; {hint}")
    stray = [title for title in tree if title not in SHARED_SECTIONS and title != name]
    if stray:
        raise BadConfiguration(f"{origin}: [{stray[0]}] has no meaning for {name}; it takes [{name}]")
    for need in PIPELINES[name].needs:
        section, field = need.split(".")
        if not getattr(getattr(found, section), field) and not (need == TOPICS and found.source.pattern):
            raise BadConfiguration(f"{origin}: {name} needs {need} ({_FLAGS.get(need, f'--set {need}=…')})")


_FLAGS = {TOPICS: "--topic NAME", "sink.table": "--table DIR", "sink.topic": "--to TOPIC"}


def _explained(message: str) -> str:
    """msgspec names the place as `$.source.topics` at the end; people read it first."""
    text, found, place = message.partition(" - at `$.")
    if "regex" in text:
        text = "an interval is expected, such as '10 seconds'"
    return f"{place.rstrip('`')}: {text}" if found else text


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

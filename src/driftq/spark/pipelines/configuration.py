"""Loads the configuration of a pipeline from a TOML file and the command line.

    [pipeline]
    name = "metrics"
    [source]
    topics = ["orders"]
    [sink]
    table = "./tables/metrics"
    [metrics]
    window = "10 seconds"

Unknown names are refused with the nearest known one. Needs no Spark, so that `list` and `show` work without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from driftq.settings.loader import SettingsError, SettingsLoader, settings_of
from driftq.settings.suggestions import did_you_mean
from driftq.spark.pipelines.settings import Configuration

SHARED_SECTIONS = ("pipeline", "source", "sink")


class PipelineSpec(NamedTuple):
    """A pipeline: a one-line summary, and the settings that it requires."""

    summary: str
    required: tuple[str, ...]


TOPICS = "source.topics"
PIPELINES: Mapping[str, PipelineSpec] = {
    "archive": PipelineSpec("Archive topics to a table, each message once.", (TOPICS, "sink.table")),
    "audit": PipelineSpec("Prove that a table holds exactly what the log holds.", (TOPICS, "sink.table")),
    "dedupe": PipelineSpec("Copy topics to a topic without repeats of an idempotency key.", (TOPICS, "sink.topic")),
    "route": PipelineSpec("Route the messages of topics by rules or a function.", (TOPICS,)),
    "runs": PipelineSpec("Record what happened in each agent run, step by step.", (TOPICS, "sink.table")),
    "metrics": PipelineSpec("Compute counts, error rates and latencies in windows of time.", (TOPICS, "sink.table")),
    "deadletters": PipelineSpec("Count dead letters by kind of error, and redrive them at a rate.", (TOPICS,)),
    "replay": PipelineSpec("Write a table or a range of a topic to a topic again.", ("sink.topic",)),
    "transform": PipelineSpec("Copy topics to a topic through a function of yours.", (TOPICS, "sink.topic")),
    "compact": PipelineSpec("Rewrite the small files of a table as larger ones.", ("sink.table",)),
}


def load(
    target: str,
    assignments: Sequence[str] = (),
    values: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Configuration:
    """The configuration of a pipeline by name, or of a file; then single settings: `values` by dotted name,
    `assignments` as typed (`metrics.window="10 seconds"`), and `defaults` for what is not set otherwise."""
    loader = SettingsLoader(Configuration)
    is_file = target.endswith(".toml")
    origin = target if is_file else "configuration"
    if is_file:
        loader.add_file(target)
    else:
        loader.add("pipeline.name", target, origin)
    for name, value in (values or {}).items():
        loader.add(name, value, origin)
    loader.add_assignments(assignments)
    for name, value in (defaults or {}).items():
        loader.add_default(name, value, origin)
    return _checked(loader, origin)


def from_tree(tree: Mapping[str, Mapping[str, Any]], origin: str = "configuration") -> Configuration:
    """The configuration of a tree as TOML yields it."""
    loader = SettingsLoader(Configuration)
    for section, entries in tree.items():
        for key, value in entries.items():
            loader.add(f"{section}.{key}", value, origin)
    return _checked(loader, origin)


def identity(configuration: Configuration) -> str:
    """The name of this pipeline in progress lines, checkpoints and commits."""
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


def toml_lines(configuration: Configuration) -> Iterator[str]:
    """The configuration as the lines of a TOML file, with a comment for each setting."""
    sections = (*SHARED_SECTIONS, configuration.pipeline.name)
    for title, settings in groupby(settings_of(configuration), key=attrgetter("section")):
        if title not in sections:
            continue
        yield f"[{title}]"
        for _, key, value, description in settings:
            if (title, key) == ("source", "token"):
                value = ""
            if title == "pipeline" and key in ("id", "checkpoint"):
                value = identity(configuration) if key == "id" else checkpoint(configuration)
            yield f"{key} = {_toml(value)}  # {description}"
        yield ""


def _checked(loader: SettingsLoader[Configuration], origin: str) -> Configuration:
    configuration = loader.load()
    name = configuration.pipeline.name
    if not name:
        raise SettingsError(f"{origin}: [pipeline] name is missing: one of {', '.join(PIPELINES)}")
    if name not in PIPELINES:
        hint = did_you_mean(name, PIPELINES, f"there are {', '.join(PIPELINES)}")
        raise SettingsError(f"{origin}: there is no pipeline {name!r}; {hint}")
    stray = [title for title in loader.values if title not in SHARED_SECTIONS and title != name]
    if stray:
        raise SettingsError(f"{origin}: [{stray[0]}] does not apply to {name}; use [{name}]")
    for need in PIPELINES[name].required:
        section, key = need.split(".")
        if not getattr(getattr(configuration, section), key) and not (need == TOPICS and configuration.source.pattern):
            raise SettingsError(f"{origin}: {name} needs {need} ({_FLAGS.get(need, f'--set {need}=…')})")
    return configuration


_FLAGS = {TOPICS: "--topic NAME", "sink.table": "--table DIR", "sink.topic": "--to TOPIC"}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

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
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from driftq.settings.loader import SettingsError, SettingsLoader, settings_of
from driftq.settings.suggestions import did_you_mean
from driftq.spark.pipelines.settings import Configuration

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
        raise SettingsError(f"{origin}: [{stray[0]}] has no meaning for {name}; it takes [{name}]")
    for need in PIPELINES[name].needs:
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

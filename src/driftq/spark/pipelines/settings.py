"""The settings of pipelines: every setting as frozen data with a sentence beside it, and how they are loaded.

    [pipeline]
    name = "metrics"
    [source]
    topics = ["orders"]
    [sink]
    table = "./tables/metrics"
    [metrics]
    window = "10 seconds"

Settings come from a TOML file and the command line; unknown names are refused with the nearest known one. The
sentences are what `driftq pipeline show` prints and what the guide lists. Needs no Spark, so that `list` and `show`
work without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from driftq.settings.loader import SettingsError, SettingsLoader, about, settings_of
from driftq.settings.quantities import DURATION_MS, parse_quantity
from driftq.settings.suggestions import did_you_mean

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]
Every = Annotated[str, Meta(pattern=r"^([1-9][0-9]*(s|m|h|d))?$", examples=["10m"])]
Interval = Annotated[
    str, Meta(pattern=r"^[1-9][0-9]* (millisecond|second|minute|hour|day)s?$", examples=["10 seconds"])
]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a configuration. Texts that are empty mean: as if it were not there."""


class RunSettings(Section, frozen=True):
    name: Annotated[str, about("the pipeline; `driftq pipeline list` lists them")] = ""
    id: Annotated[str, about("name in progress lines, checkpoint and commits (default: name and topics)")] = ""
    trigger: Annotated[Interval, about("the shortest time between two micro-batches")] = "2 seconds"
    once: Annotated[bool, about("process the available messages, then stop")] = False
    checkpoint: Annotated[str, about("folder for the progress (default: beside the table, else ./checkpoints/ID)")] = ""
    master: Annotated[str, about("the Spark master; empty: that of spark-submit, else local[*]")] = ""
    spark: Annotated[dict[str, str], about("settings for the Spark session")] = {}


class SourceSettings(Section, frozen=True):
    url: Annotated[str, about("the broker (default: DRIFTQ_URL, else http://127.0.0.1:8080)")] = ""
    token: Annotated[str, about("bearer token (better: set DRIFTQ_TOKEN)")] = ""
    token_file: Annotated[str, about("file with the token, read again when it changes")] = ""
    ca: Annotated[str, about("PEM file: whom to trust (default: DRIFTQ_CA, else the system's authorities)")] = ""
    certificate: Annotated[str, about("PEM file of the client's certificate (default: DRIFTQ_CERTIFICATE)")] = ""
    key: Annotated[str, about("PEM file of its key (default: DRIFTQ_KEY)")] = ""
    topics: Annotated[tuple[str, ...], about("the topics to read")] = ()
    pattern: Annotated[str, about("a regular expression for topic names, instead of topics")] = ""
    starting: Annotated[str, about("where the first run starts: earliest, latest, or JSON of offsets")] = "earliest"
    max_offsets: Annotated[Amount, about("maximum number of messages in a micro-batch; 0: the pipeline's default")] = 0
    max_bytes: Annotated[Amount, about("about the maximum size of a micro-batch; 0: no limit")] = 0
    min_partitions: Annotated[Amount, about("minimum number of tasks that read; 0: one per partition")] = 0
    fail_on_data_loss: Annotated[bool, about("fail if retention removed unread messages")] = True
    options: Annotated[dict[str, str], about("more options of the driftq source")] = {}


class SinkSettings(Section, frozen=True):
    table: Annotated[str, about("the folder or URL of the table: ./tables/orders, s3://bucket/orders")] = ""
    storage: Annotated[dict[str, str], about('options of the object store: {AWS_ENDPOINT_URL = "…"}')] = {}
    topic: Annotated[str, about("the topic to write to")] = ""
    mode: Annotated[
        Literal["", "staged", "direct"],
        about("staged: a micro-batch is visible whole; direct: immediately, with labels and tasks; empty: the default"),
    ] = ""


class ArchiveSettings(Section, frozen=True):
    schema: Annotated[str, about("columns to parse from JSON values, as in CREATE TABLE: id BIGINT, total DOUBLE")] = ""
    quarantine: Annotated[str, about("the folder for rows that do not fit the schema (default: TABLE.quarantine)")] = ""
    compact_files: Annotated[Amount, about("compact a partition when it has this many small files; 0: never")] = 64
    audit_every: Annotated[Every, about("audit the table at this interval, and with once at the end; empty: never")] = (
        ""
    )


class DedupeSettings(Section, frozen=True):
    watermark: Annotated[Interval, about("a repeat within this time of the first is dropped")] = "10 minutes"


class RouteSettings(Section, frozen=True):
    rules: Annotated[str, about("a file of rules for the broker's router")] = ""
    router: Annotated[str, about("module:function from Message to Decision, instead of rules")] = ""
    frames: Annotated[str, about("module:function from a pandas frame to a frame of decisions, instead of rules")] = ""
    unrouted: Annotated[str, about("the topic for messages without a decision; empty: they are dropped")] = ""


class RunsSettings(Section, frozen=True):
    history: Annotated[bool, about("also read TOPIC.history: deliveries, failures, ends")] = True
    keep: Annotated[Interval, about("forget a message this long after its last event")] = "24 hours"


class MetricsSettings(Section, frozen=True):
    window: Annotated[Interval, about("the length of a window")] = "1 minute"
    watermark: Annotated[Interval, about("how late a message may be and still count")] = "1 minute"
    history: Annotated[bool, about("count ends and failures from TOPIC.history, and how long messages took")] = False
    latency_max: Annotated[Interval, about("with history: ends later than this do not count; windows wait so long")] = (
        "1 minute"
    )


class DeadLettersSettings(Section, frozen=True):
    examples: Annotated[Count, about("number of example offsets of each kind")] = 3
    redrive: Annotated[bool, about("redrive the letters")] = False
    fingerprint: Annotated[str, about("only letters of this kind of error")] = ""
    group: Annotated[str, about("only letters that this group gave up")] = ""
    rate_per_s: Annotated[Count, about("letters to redrive per second")] = 50
    limit: Annotated[Count, about("maximum number of letters to redrive")] = 100_000
    dry_run: Annotated[bool, about("only count what would be redriven")] = False


class ReplaySettings(Section, frozen=True):
    table: Annotated[str, about("replay the rows of this table instead of a topic")] = ""
    from_offset: Annotated[Amount, about("first offset, in every partition")] = 0
    to_offset: Annotated[Amount, about("end offset (exclusive); 0: the end")] = 0
    from_time: Annotated[str, about("start time: 2030-01-01T00:00:00Z")] = ""
    to_time: Annotated[str, about("end time (exclusive)")] = ""
    dry_run: Annotated[bool, about("only print what would be written")] = False


class TransformSettings(Section, frozen=True):
    function: Annotated[str, about("module:function from DataFrame to DataFrame")] = ""
    each: Annotated[str, about("module:function from a value to a value, or None to drop it")] = ""


class BacklogSettings(Section, frozen=True):
    table: Annotated[str, about("read an archive of the topics and their history instead of the broker")] = ""
    at: Annotated[str, about("the time to look at: 2030-01-01T00:00:00Z; empty: now")] = ""


class CostsSettings(Section, frozen=True):
    prices: Annotated[str, about("a file of prices: [[price]] model, input, output for a million tokens, call")] = ""
    model: Annotated[str, about("where the model is in a JSON value")] = "$.model"
    input_tokens: Annotated[str, about("where the number of tokens read is")] = "$.usage.input_tokens"
    output_tokens: Annotated[str, about("where the number of tokens written is")] = "$.usage.output_tokens"
    window: Annotated[Interval, about("the length of a window")] = "1 hour"
    watermark: Annotated[Interval, about("how late a message may be and still count")] = "1 minute"


class QualitySettings(Section, frozen=True):
    rules: Annotated[str, about("a file of rules: [[rule]] name, check (SQL), reason")] = ""
    schema: Annotated[str, about("columns to parse from JSON values, as in CREATE TABLE; rules name them body.…")] = ""
    rejected: Annotated[
        str, about("the topic for rows that break a rule (default: the target's name and .rejected)")
    ] = ""


class AuditSettings(Section, frozen=True):
    mismatches: Annotated[Count, about("maximum number of differences to list")] = 20


class CompactSettings(Section, frozen=True):
    files_min: Annotated[Count, about("compact a partition that has this many small files")] = 2


class Configuration(Section, frozen=True):
    """A whole file."""

    pipeline: RunSettings = RunSettings()
    source: SourceSettings = SourceSettings()
    sink: SinkSettings = SinkSettings()
    archive: ArchiveSettings = ArchiveSettings()
    dedupe: DedupeSettings = DedupeSettings()
    route: RouteSettings = RouteSettings()
    runs: RunsSettings = RunsSettings()
    metrics: MetricsSettings = MetricsSettings()
    deadletters: DeadLettersSettings = DeadLettersSettings()
    replay: ReplaySettings = ReplaySettings()
    transform: TransformSettings = TransformSettings()
    backlog: BacklogSettings = BacklogSettings()
    costs: CostsSettings = CostsSettings()
    quality: QualitySettings = QualitySettings()
    audit: AuditSettings = AuditSettings()
    compact: CompactSettings = CompactSettings()


# --- the pipelines, and loading their settings ---

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
    "quality": PipelineSpec(
        "Copy topics to a topic, and rows that break a rule to another one, with the reason.",
        (TOPICS, "sink.topic", "quality.rules"),
    ),
    "costs": PipelineSpec("Add up tokens and cost by tenant, model and run.", (TOPICS, "sink.table", "costs.prices")),
    "backlog": PipelineSpec("Show the state of a queue as of any time, from its history.", (TOPICS,)),
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


def archive_checkpoint(configuration: Configuration) -> str:
    """Where the archive of these topics and this table keeps its progress."""
    return checkpoint(replace(configuration, pipeline=replace(configuration.pipeline, name="archive")))


def audit_every_ms(configuration: Configuration) -> int:
    """0: never."""
    return parse_quantity(configuration.archive.audit_every, DURATION_MS) or 0


class ArchiveTarget(Struct, frozen=True):
    """Where an archive writes. `schema` is that of JSON values, as in CREATE TABLE; empty: values are not parsed."""

    table: str
    storage: Mapping[str, str] = {}
    schema: str = ""
    quarantine: str = ""
    compact_files: int = 0

    @property
    def quarantine_path(self) -> str:
        return self.quarantine or self.table.rstrip("/") + ".quarantine"


def archive_target(configuration: Configuration) -> ArchiveTarget:
    settings = configuration.archive
    return ArchiveTarget(
        configuration.sink.table,
        configuration.sink.storage,
        settings.schema,
        settings.quarantine,
        settings.compact_files,
    )


def toml_lines(configuration: Configuration) -> Iterator[str]:
    """The configuration as the lines of a TOML file, with a comment for each setting."""
    sections = (*SHARED_SECTIONS, configuration.pipeline.name)
    for title, settings in groupby(settings_of(configuration), key=attrgetter("section")):
        if title not in sections:
            continue
        yield f"[{title}]"
        for _, key, value, description in settings:
            if (title, key) in (("source", "token"), ("sink", "storage")):
                value = type(value)()  # secrets
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

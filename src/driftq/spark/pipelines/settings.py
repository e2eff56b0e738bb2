"""Every setting of every pipeline, as frozen data: units in the names or in the value, a sentence beside each.

The sentences are what `driftq pipeline show` prints and what the guide lists. `configuration`
loads them. Nothing here needs Spark.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.settings.loader import about

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]
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
    topics: Annotated[tuple[str, ...], about("the topics to read")] = ()
    pattern: Annotated[str, about("a regular expression for topic names, instead of topics")] = ""
    starting: Annotated[str, about("where the first run starts: earliest, latest, or JSON of offsets")] = "earliest"
    max_offsets: Annotated[Amount, about("maximum number of messages in a micro-batch; 0: the pipeline's default")] = 0
    max_bytes: Annotated[Amount, about("about the maximum size of a micro-batch; 0: no limit")] = 0
    min_partitions: Annotated[Amount, about("minimum number of tasks that read; 0: one per partition")] = 0
    fail_on_data_loss: Annotated[bool, about("fail if retention removed unread messages")] = True
    options: Annotated[dict[str, str], about("more options of the driftq source")] = {}


class SinkSettings(Section, frozen=True):
    table: Annotated[str, about("the folder of the table")] = ""
    format: Annotated[Literal["parquet", "delta"], about("parquet is built in; delta needs its jars")] = "parquet"
    topic: Annotated[str, about("the topic to write to")] = ""
    mode: Annotated[
        Literal["", "staged", "direct"],
        about("staged: a micro-batch is visible whole; direct: immediately, with labels and tasks; empty: the default"),
    ] = ""


class ArchiveSettings(Section, frozen=True):
    schema: Annotated[str, about("columns to parse from JSON values, as in CREATE TABLE: id BIGINT, total DOUBLE")] = ""
    quarantine: Annotated[str, about("the folder for rows that do not fit the schema (default: TABLE.quarantine)")] = ""
    compact_files: Annotated[Amount, about("compact a partition when it has this many small files; 0: never")] = 64


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
    audit: AuditSettings = AuditSettings()
    compact: CompactSettings = CompactSettings()

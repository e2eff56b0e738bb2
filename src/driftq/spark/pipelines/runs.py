"""The pipeline `runs`: what happened in each agent run, as a row for every step and group and every change of it.

`steps` turns messages and their history into rows, with state that Spark keeps (RocksDB in DriftQ's sessions). A block
of neighbouring messages shares one state key, so that a call handles many of them. `current`, `summaries` and `story`
are plain queries over the table of these rows. How events change a step is in `history`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

from driftq.spark.pipelines import history
from driftq.spark.pipelines.history import StepEvent, advance, packed, rows, unpacked
from driftq.spark.pipelines.query_monitor import quiet_session
from driftq.spark.tables import NoTable, read_table

BLOCK_MESSAGES = 128
# Not called `offset`: a table treats rows with topic, partition and offset as those of a log, with unique offsets.
_MESSAGE = ("topic", "partition", "message_offset")
_TIMES = ("produced_ms", "started_ms", "ended_ms")
_STEP = (
    "topic STRING, partition INT, message_offset BIGINT, `group` STRING, run_id STRING, step_id STRING, "
    "parent_step_id STRING, tenant_id STRING, task STRING, state STRING, attempts INT, failures INT, "
    "owner STRING, error STRING, produced_ms BIGINT, started_ms BIGINT, ended_ms BIGINT, busy_ms BIGINT, version INT"
)
_NAMES = [part.strip().split(" ")[0].strip("`") for part in _STEP.split(",")]
_EVENT_NAMES = StepEvent.__struct_fields__


def events(source: DataFrame) -> DataFrame:
    """Messages and history events of a source with the envelope, with the same columns."""
    none = F.lit("")
    produced = history.messages(source).select(
        "topic", "partition", F.lit("produced").alias("kind"), "offset", F.unix_millis("timestamp").alias("at_ms"),
        F.col("offset").alias("order"), none.alias("group"), none.alias("owner"), F.lit(0).alias("attempt"),
        none.alias("error"),
        *(F.coalesce(name, none).alias(name) for name in ("run_id", "step_id", "parent_step_id", "tenant_id", "task")),
    )  # fmt: skip
    happened = history.events(source).select(
        "topic", "partition", F.col("event").alias("kind"), "offset", F.unix_millis("at").alias("at_ms"),
        F.col("seen").alias("order"), F.coalesce("group", none).alias("group"),
        F.coalesce("owner", none).alias("owner"), F.coalesce("attempt", F.lit(0)).alias("attempt"),
        F.coalesce("error", "reason", none).alias("error"),
        *(none.alias(name) for name in ("run_id", "step_id", "parent_step_id", "tenant_id", "task")),
    )  # fmt: skip
    return produced.unionByName(happened)


def steps(happened: DataFrame, keep: str = "24 hours") -> DataFrame:
    """Step rows from a stream of `events`. Messages without events for `keep` are forgotten, and events that are later
    than that are dropped. Both by the broker's clock: with a timeout by this machine's clock, a run with `--once` would
    never end."""

    def block(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            state.remove()
            return
        states = unpacked(bytes(state.get[0])) if state.exists else {}
        happened = [
            StepEvent(*values) for frame in frames for values in frame[list(_EVENT_NAMES)].itertuples(index=False)
        ]
        changed = rows(states, advance(states, happened))
        state.update((packed(states),))
        last_ms = max((event.at_ms for event in happened), default=0)
        state.setTimeoutTimestamp(max(last_ms, state.getCurrentWatermarkMs()) + 1)
        step_rows = [
            {"topic": key[0], "partition": key[1], "message_offset": row.pop("offset"), **row} for row in changed
        ]
        yield pd.DataFrame(step_rows, columns=_NAMES)

    keyed = happened.withColumn("block", F.floor(F.col("offset") / BLOCK_MESSAGES))
    timed = keyed.withColumn("at", F.timestamp_millis("at_ms")).withWatermark("at", keep)
    updated = timed.groupBy("topic", "partition", "block").applyInPandasWithState(
        block, _STEP, "steps BINARY", "update", "EventTimeTimeout"
    )
    return updated.select(
        *(name for name in _NAMES if name not in _TIMES),
        *(F.timestamp_millis(F.expr(f"nullif({name}, 0)")).alias(f"{name.removesuffix('_ms')}_at") for name in _TIMES),
    )


def current(table: DataFrame) -> DataFrame:
    """The latest version of every step. Once a group has worked on a step, its row without a group is left out."""
    newest = Window.partitionBy(*_MESSAGE, "group").orderBy(F.desc("version"))
    latest = table.withColumn("_rank", F.row_number().over(newest)).where("_rank = 1").drop("_rank")
    touched = F.max(F.col("group") != "").over(Window.partitionBy(*_MESSAGE))
    return latest.withColumn("_touched", touched).where("`group` != '' OR NOT _touched").drop("_touched")


def summaries(table: DataFrame) -> DataFrame:
    """One row for each run: state, steps, attempts, failures, duration and last error."""
    state = (
        F.when(F.max(F.col("state") == "dead"), "dead")
        .when(F.max(F.col("state").isin("running", "retrying")), "running")
        .when(F.max(F.col("state") == "waiting"), "waiting")
        .when(F.max(F.col("state") == "cancelled"), "cancelled")
        .otherwise("succeeded")
    )
    started, ended = F.min("produced_at"), F.max(F.coalesce("ended_at", "started_at", "produced_at"))
    return (
        current(table)
        .where("run_id != ''")
        .groupBy("run_id")
        .agg(
            state.alias("state"),
            F.max("tenant_id").alias("tenant_id"),
            F.count("*").alias("steps"),
            F.sum("attempts").alias("attempts"),
            F.sum("failures").alias("failures"),
            started.alias("began_at"),
            ended.alias("last_at"),
            (F.unix_millis(ended) - F.unix_millis(started)).alias("took_ms"),
            F.sum("busy_ms").alias("busy_ms"),
            F.max_by("error", F.when(F.col("error") != "", F.coalesce("ended_at", "started_at"))).alias("error"),
        )
    )


def story(table: DataFrame, run_id: str) -> list[str]:
    """What happened in a run, as lines of text: parents before their children, in the order in which they started."""
    steps = current(table.where(F.col("run_id") == run_id)).orderBy("produced_at", *_MESSAGE, "group")
    return story_lines(steps.collect())


def story_lines(steps: list[Row]) -> list[str]:
    """The lines of a story for rows of `current`."""
    step_ids = {row["step_id"] for row in steps if row["step_id"]}
    children: dict[str, list[Row]] = {}
    for row in steps:
        parent = row["parent_step_id"] if row["parent_step_id"] in step_ids - {row["step_id"]} else ""
        children.setdefault(parent, []).append(row)
    lines: list[str] = []
    printed: set[tuple[Any, ...]] = set()

    def add(parent: str, depth: int) -> None:
        for row in children.get(parent, []):
            key = (row["topic"], row["partition"], row["message_offset"], row["group"])
            if key in printed:
                continue  # two steps that name each other as parent are printed once
            first = not any(other[:3] == key[:3] for other in printed)
            printed.add(key)
            lines.append(_line(row, depth))
            if row["step_id"] and first:
                add(row["step_id"], depth + 1)

    add("", 0)
    for parent in list(children):
        add(parent, 0)
    return lines


def _line(row: Row, depth: int) -> str:
    name = row["step_id"] or f"{row['topic']}/{row['partition']}/{row['message_offset']}"
    parts = [row["state"], row["topic"]]
    if row["group"]:
        parts.append(f"by {row['group']}")
    if row["attempts"]:
        parts.append(f"{row['attempts']} attempt{'s' if row['attempts'] > 1 else ''}")
    if row["ended_at"] is not None and row["produced_at"] is not None:
        took_ms = (row["ended_at"] - row["produced_at"]).total_seconds() * 1_000
        parts.append(f"{took_ms:,.0f} ms, {row['busy_ms']:,} of them at work")
    if row["error"]:
        parts.append(f"error: {row['error'].splitlines()[0][:120]}")
    return f"{'  ' * depth}{name}: {', '.join(parts)}"


# --- the command `driftq pipeline story` ------------------------------------------------------------------------------


class NoStory(Exception):
    """There is no table of runs at this path."""


def read_story(run_id: str, table: str) -> list[str]:
    """The story of a run from a table, as lines; none if the run is not in it. Starts Spark."""
    if "://" not in table and not Path(table).is_dir():
        raise NoStory(f"there is no table at {table}")  # without starting Spark
    with quiet_session("local[2]", "driftq-story") as spark:
        try:
            rows = read_table(spark, table)
        except NoTable as error:
            raise NoStory(str(error)) from None
        if "step_id" not in rows.columns:
            raise NoStory(f"{table} is not a table of the pipeline `runs`: its rows are not steps")
        return story(rows, run_id)

"""The pipeline `backlog`: the state of a queue as of any time, and its depth over time, from the history of the topic.

The last event of a message before a time is the state that the message had in the group then:

    no event, released  waiting          acked, cancelled, skipped  settled
    delivered           leased           dead                       dead
    failed, expired     retrying

A group is known from its first event. What has no event is not known: messages that a group skipped because it began at
the end of the topic, or was moved, count as waiting. Knows nothing of sessions and sinks, but for the last part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import history
from driftq.spark.pipelines.io import read_recorded
from driftq.wire.fields import from_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from driftq.spark.pipelines.query_monitor import Echo, Stop
    from driftq.spark.pipelines.settings import Configuration

PLACE = ("topic", "partition", "offset")
WORK = (*PLACE, "group")
OPEN = ("waiting", "leased", "retrying")
STATES = {
    "released": "waiting", "delivered": "leased", "failed": "retrying", "expired": "retrying", "acked": "settled",
    "cancelled": "settled", "skipped": "settled", "dead": "dead",
}  # fmt: skip


def states(rows: DataFrame, at: Column) -> DataFrame:
    """The state of each message in each group at this time, from rows of topics and their histories: `state`, `since`,
    `attempts`, `owner` (of a leased message), `error` (the last one), and what the message says of itself."""
    known = history.events(rows).where(F.col("at") <= at)
    sent = history.messages(rows).where(F.col("timestamp") <= at)
    latest = F.max_by(F.struct("event", "owner", "at"), F.struct("at", "seen"))
    work = known.groupBy(*WORK).agg(
        latest.alias("last"),
        F.max("attempt").alias("attempts"),
        F.max_by("error", F.when(F.col("error") != "", F.struct("at", "seen"))).alias("error"),
    )
    groups = known.select("topic", "group").distinct()
    state = F.coalesce(_state(F.col("last.event")), F.lit("waiting"))
    return (
        sent.join(groups, "topic", "left")
        .join(work, list(WORK), "left")
        .select(
            *WORK,
            state.alias("state"),
            F.coalesce("last.at", "timestamp").alias("since"),
            F.coalesce("attempts", F.lit(0)).alias("attempts"),
            F.when(state == "leased", F.col("last.owner")).alias("owner"),
            F.nullif("error", F.lit("")).alias("error"),
            F.col("timestamp").alias("produced_at"),
            *(name for name in ("tenant_id", "run_id", "task", "priority", "routing_label") if name in sent.columns),
            "key",
        )
    )


def depths(rows: DataFrame, every: str = "1 minute") -> DataFrame:
    """How many messages were in each open state at the end of each interval: `at`, `topic`, `group`, `waiting`,
    `leased`, `retrying`. An interval in which nothing changed has no row: the row before it still holds."""
    events = history.events(rows)
    sent = history.messages(rows)
    groups = events.select("topic", "group").distinct()
    arrivals = sent.join(groups, "topic").select(
        *WORK, F.col("timestamp").alias("at"), F.lit(-1).cast("long").alias("seen"), F.lit("waiting").alias("state")
    )
    changes = arrivals.unionByName(events.select(*WORK, "at", "seen", _state(F.col("event")).alias("state")))
    # An event may have the time of its message, and history topics their own numbers: the arrival comes first.
    before = F.lag("state").over(Window.partitionBy(*WORK).orderBy("seen"))
    entered = changes.withColumn("left", before).select(
        "at", "topic", "group", F.explode(F.array(_step("state", 1), _step("left", -1))).alias("step")
    )
    counted = entered.groupBy("topic", "group", F.window("at", every)).agg(
        *(F.sum(F.when(F.col("step.state") == state, F.col("step.by")).otherwise(0)).alias(state) for state in OPEN)
    )
    so_far = Window.partitionBy("topic", "group").orderBy("window").rowsBetween(Window.unboundedPreceding, 0)
    totals = (F.sum(state).over(so_far).alias(state) for state in OPEN)
    return counted.select(F.col("window.end").alias("at"), "topic", "group", *totals)


def summary(states: DataFrame) -> DataFrame:
    """A row for each topic, group and state: how many messages, and since when the first of them is in it."""
    return (
        states.groupBy("topic", "group", "state")
        .agg(F.count("*").alias("messages"), F.min("since").alias("oldest"))
        .orderBy("topic", "group", "state")
    )


def _state(event: Column) -> Column:
    names = F.create_map(*(F.lit(text) for pair in STATES.items() for text in pair))
    return names[event]


def _step(state: str, by: int) -> Column:
    return F.struct(F.col(state).alias("state"), F.lit(by).alias("by"))


# --- the pipeline -----------------------------------------------------------------------------------------------------


def run_backlog(spark: SparkSession, configuration: Configuration, stop: Stop, echo: Echo) -> int:
    """Print how many messages were in each state. Returns the exit code."""
    settings = configuration.backlog
    try:
        at = F.timestamp_millis(F.lit(from_rfc3339(settings.at))) if settings.at else F.current_timestamp()
    except ValueError:
        text = settings.at
        raise SettingsError(f"backlog.at: a time like 2030-01-01T00:00:00Z is expected, not {text!r}") from None
    for line in summary_lines(summary(states(read_recorded(spark, configuration, settings.table), at)).collect()):
        echo(line)
    return 0


def summary_lines(rows: list[Row]) -> list[str]:
    return [
        f"{row['messages']:>9,}  {row['state']:<8}  {row['topic']}  {row['group'] or '(no group yet)'}  "
        f"since {row['oldest']:%Y-%m-%d %H:%M:%S}"
        for row in rows
    ] or ["no messages"]

"""Ready views of a topic: its history, its dead letters, its jobs, with columns instead of JSON; and of the audit.

    from driftq.spark import views

    views.history(spark, "orders").groupBy("event").count().show()
    views.create(spark, "orders", group="billing")      # orders_history, orders_dead_letters, orders_jobs for SQL

Each takes the options of the source by their names (`url`, `startingTimestamp`, …). With `stream=True` the frame is a
stream. Reads only; the pipelines that build on the same frames are in `pipelines`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from driftq.spark.pipelines import deadletters
from driftq.spark.pipelines import history as events
from driftq.spark.source.options import BadOption
from driftq.wire.audit import AUDIT_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_AUDIT = (
    "at TIMESTAMP, action STRING, result STRING, name STRING, who STRING, token_id STRING, tenant STRING, "
    "address STRING, request_id STRING, route STRING, reason STRING, count BIGINT"
)
_JOB = "job STRUCT<id: STRING, task: STRING, priority: INT, not_before_ms: BIGINT, timeout_ms: BIGINT>"


def history(spark: SparkSession, topic: str, *, stream: bool = False, **options: str) -> DataFrame:
    """What happened to the messages of a topic, a row for each event: `event`, the place of the message, `group`,
    `owner`, `attempt`, `at`, `error`, `reason`, and `seen`, the position of the event in its log. The topic must keep a
    history."""
    return events.events(_read(spark, stream, options, subscribe=topic + events.SUFFIX))


def dead_letters(spark: SparkSession, topic: str, *, stream: bool = False, **options: str) -> DataFrame:
    """The dead letters of a topic: key and value, where each came from, why and when it died, and the `fingerprint` of
    its error. Letters that were redriven are still in the log, so they are rows here too."""
    rows = _read(spark, stream, options, subscribe=deadletters.DEAD_PREFIX + topic, includeHead="true")
    return deadletters.letters(rows)


def jobs(spark: SparkSession, topic: str, *, group: str = "", stream: bool = False, **options: str) -> DataFrame:
    """The jobs of a topic: `id`, `task`, `priority`, `not_before`, `timeout_ms`, tenant, run and step, key and value.
    With a group also the state that each has there now: `queue_state`, `attempts`, `last_error`."""
    if group and stream:
        raise BadOption("the state of a job is read once, with its row: use a batch, or the view of the history")
    state = {"queueState": group} if group else {}
    rows = _read(spark, stream, options, subscribe=topic, includeHead="true", includeEnvelope="true", **state)
    place = F.concat_ws(":", "topic", "partition", "offset")  # the id of a job that was given none
    job = F.col("job")
    parsed = rows.withColumn("job", F.from_json("head", _JOB)["job"]).where("job IS NOT NULL")
    return parsed.select(
        F.coalesce(F.nullif(job["id"], F.lit("")), place).alias("id"),
        F.coalesce(job["task"], F.lit("")).alias("task"),
        F.coalesce(job["priority"], F.lit(0)).alias("priority"),
        F.when(job["not_before_ms"] > 0, F.timestamp_millis(job["not_before_ms"])).alias("not_before"),
        F.nullif(job["timeout_ms"], F.lit(0)).alias("timeout_ms"),
        "topic", "partition", "offset", "timestamp", "tenant_id", "run_id", "step_id", "deadline", "key", "value",
        *(("queue_state", "attempts", "last_error") if group else ()),
    )  # fmt: skip


def audit(spark: SparkSession, *, stream: bool = False, **options: str) -> DataFrame:
    """The audit of the broker, a row for each record: who changed what, from where, with which result, and how often a
    caller was refused. The token needs the grants `read:_audit` and `observe`."""
    rows = _read(spark, stream, options, subscribe=AUDIT_TOPIC)
    value = F.col("value").cast("string")
    record = F.from_json(value, _AUDIT).alias("record")
    details = F.get_json_object(value, "$.details").alias("details")
    return rows.select(record, details, "offset").select("record.*", "details", "offset")


def create(spark: SparkSession, topic: str, *, group: str = "", prefix: str = "", **options: str) -> tuple[str, ...]:
    """Create the temporary views `<prefix>_history`, `<prefix>_dead_letters` and `<prefix>_jobs`, and return their
    names. The prefix is the topic, with `_` for what SQL does not allow in a name. Each query reads what is there
    then."""
    name = prefix or "".join(letter if letter.isalnum() else "_" for letter in topic)
    frames = {
        f"{name}_history": history(spark, topic, stream=False, **options),
        f"{name}_dead_letters": dead_letters(spark, topic, stream=False, **options),
        f"{name}_jobs": jobs(spark, topic, group=group, stream=False, **options),
    }
    for view, frame in frames.items():
        frame.createOrReplaceTempView(view)
    return tuple(frames)


def _read(spark: SparkSession, stream: bool, options: dict[str, str], **required: str) -> DataFrame:
    reader = spark.readStream if stream else spark.read
    return reader.format("driftq").options(**options, **required).load()

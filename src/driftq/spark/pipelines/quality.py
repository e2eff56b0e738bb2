"""The pipeline `quality`: rules that rows must keep. Rows that break one become dead letters, with the reason.

    [[rule]]
    name = "total"
    check = "body.total >= 0"               # SQL; the row is good if it is true
    reason = "the total is negative"        # default: the check itself

A check may use every column of the source and, with a schema, `body`: the parsed JSON value. Null is not true. All
broken rules of a row are named. Good and bad rows are published in one write, so each row is in one of the two topics,
once. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import json_values
from driftq.spark.pipelines.transform import without_origin

SCHEMA_RULE = "schema"
SUFFIX = ".rejected"
# The labels of a rejected row.
RULE, REASON, ORIGIN = "quality.rule", "quality.reason", "quality.origin"
_LABEL_MAX = 1_000


class QualityRule(Struct, frozen=True, forbid_unknown_fields=True):
    """A condition that every row must keep."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    check: Annotated[str, Meta(min_length=1)]
    reason: str = ""


class QualityRules(Struct, frozen=True, forbid_unknown_fields=True):
    rule: Annotated[list[QualityRule], Meta(min_length=1, max_length=200)]


def load_quality_rules(path: str) -> list[QualityRule]:
    """Raises `SettingsError`."""
    try:
        return msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), QualityRules).rule
    except OSError as error:
        raise SettingsError(f"quality.rules: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise SettingsError(f"quality.rules: {path}: {error}") from None


def judged(messages: DataFrame, rules: list[QualityRule], schema: str = "") -> DataFrame:
    """Messages with `broken`: an array of (rule, reason), empty for a good row. With a schema, a value that does not
    fit breaks the rule `schema`, and no other one is asked."""
    parsed = json_values.parsed(messages, schema) if schema else messages
    broken = F.filter(F.array(*map(_verdict, rules)), lambda verdict: verdict.isNotNull())
    if schema:
        misfit = F.struct(F.lit(SCHEMA_RULE).alias("rule"), F.col(json_values.REASON).alias("reason"))
        broken = F.when(F.col(json_values.REASON).isNotNull(), F.array(misfit)).otherwise(broken)
    return parsed.withColumn("broken", broken).drop(json_values.BODY, json_values.REASON)


def divided(judged: DataFrame, target: str, rejected: str) -> DataFrame:
    """The rows to write, with the topic of each. A rejected row has labels that name the rules that it broke, the
    reasons, and where it was read."""
    is_bad = F.size("broken") > 0
    labels = F.map_from_arrays(
        F.array(F.lit(RULE), F.lit(REASON), F.lit(ORIGIN)),
        F.array(_joined("broken.rule"), _joined("broken.reason"), F.concat_ws("/", "topic", "partition", "offset")),
    )
    all_labels = F.map_concat(
        F.map_filter(F.coalesce("labels", F.create_map().cast("map<string,string>")), _is_other), labels
    )
    marked = judged.withColumn("labels", F.when(is_bad, all_labels).otherwise(F.col("labels")))
    target_topic = F.when(is_bad, F.lit(rejected)).otherwise(F.lit(target))
    return without_origin(marked.withColumn("target", target_topic)).withColumnRenamed("target", "topic").drop("broken")


def counts(judged: DataFrame) -> DataFrame:
    """How many rows broke each rule, the most frequent first."""
    verdicts = judged.select(F.explode("broken").alias("broken")).select("broken.*")
    return verdicts.groupBy("rule", "reason").agg(F.count("*").alias("rows")).orderBy(F.desc("rows"), "rule", "reason")


def _verdict(rule: QualityRule) -> Column:
    """Null if the row keeps the rule."""
    broken = F.struct(F.lit(rule.name).alias("rule"), F.lit(rule.reason or rule.check).alias("reason"))
    return F.when(~F.coalesce(F.expr(rule.check).cast("boolean"), F.lit(False)), broken)


def _joined(texts: str) -> Column:
    return F.substring(F.array_join(texts, "; "), 1, _LABEL_MAX // 4)  # a character has at most four bytes


def _is_other(name: Column, _: Column) -> Column:
    return ~name.isin(RULE, REASON, ORIGIN)

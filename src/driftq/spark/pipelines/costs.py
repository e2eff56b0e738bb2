"""The pipeline `costs`: tokens and cost by window of time, topic, tenant, model and run.

A message with the usage of a model is a JSON value. Where model and tokens are in it is a setting, and prices are a
file; the first price whose model matches counts:

    [[price]]
    model = "large-*"
    input = 2.50            # for a million tokens
    output = 10.00
    [[price]]
    model = "*"
    call = 0.002            # for each message

Costs are decimals with twelve places, so that sums are exact. Usage without a price is counted as `unpriced`, not as
free. Knows nothing of sessions and sinks.
"""

from __future__ import annotations

import fnmatch
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import history

Price = Annotated[float, Meta(ge=0, le=1e9)]
_MILLION = Decimal(1_000_000)
_MONEY = "decimal(38,12)"


class ModelPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs: for a million tokens read and written, and for each call."""

    model: Annotated[str, Meta(min_length=1)]
    input: Price = 0.0
    output: Price = 0.0
    call: Price = 0.0


class PriceList(Struct, frozen=True, forbid_unknown_fields=True):
    price: Annotated[list[ModelPrice], Meta(min_length=1, max_length=1_000)]


def load_prices(path: str) -> list[ModelPrice]:
    """Raises `SettingsError`."""
    try:
        return msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), PriceList).price
    except OSError as error:
        raise SettingsError(f"costs.prices: {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise SettingsError(f"costs.prices: {path}: {error}") from None


def usage(source: DataFrame, model: str, input_tokens: str, output_tokens: str) -> DataFrame:
    """The messages that name a model, with their tokens. The places are JSON paths: `$.usage.input_tokens`."""
    value = F.col("value").cast("string")
    tokens = (
        F.greatest(F.lit(0), F.coalesce(F.get_json_object(value, path).try_cast("bigint"), F.lit(0))).alias(name)
        for name, path in (("input_tokens", input_tokens), ("output_tokens", output_tokens))
    )
    used = history.messages(source).select(
        F.col("timestamp").alias("at"),
        "topic",
        F.coalesce("tenant_id", F.lit("")).alias("tenant_id"),
        F.coalesce("run_id", F.lit("")).alias("run_id"),
        F.get_json_object(value, model).alias("model"),
        *tokens,
    )
    return used.where("model IS NOT NULL")


def priced(used: DataFrame, prices: list[ModelPrice]) -> DataFrame:
    """Usage with its `cost`, which is null if no price matches."""
    cost: Column = F.lit(None)
    for price in reversed(prices):
        cost = F.when(F.col("model").rlike(fnmatch.translate(price.model)), _cost(price)).otherwise(cost)
    return used.withColumn("cost", cost.cast(_MONEY))


def summed(costs: DataFrame, window: str = "1 hour", watermark: str = "1 minute") -> DataFrame:
    """A row for each window, topic, tenant, model and run. On a stream it is written when its window has ended."""
    rows = costs.withWatermark("at", watermark) if costs.isStreaming else costs
    groups = rows.groupBy(F.window("at", window), "topic", "tenant_id", "model", "run_id").agg(
        F.count("*").alias("calls"),
        F.sum("input_tokens").alias("input_tokens"),
        F.sum("output_tokens").alias("output_tokens"),
        F.coalesce(F.sum("cost"), F.lit(0)).cast(_MONEY).alias("cost"),
        F.count_if(F.col("cost").isNull()).alias("unpriced"),
    )
    ends = (F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"))
    return groups.select(*ends, *(name for name in groups.columns if name != "window"))


def _cost(price: ModelPrice) -> Column:
    """In decimals from the start: a price is what its text says, not the nearest binary fraction."""
    terms = (
        F.col(f"{side}_tokens").cast("decimal(20,0)") * F.lit(Decimal(str(unit_price)) / _MILLION)
        for side, unit_price in (("input", price.input), ("output", price.output))
    )
    total = F.lit(Decimal(str(price.call)))
    for term in terms:
        total = total + term
    return total.cast(_MONEY)

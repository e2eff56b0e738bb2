"""JSON values parsed by a declared schema, with the reason if one does not fit. Functions from frame to frame."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from driftq.settings.loader import SettingsError

BODY = "body"
REASON = "quarantine_reason"
_CORRUPT = "_driftq_corrupt_record"


def parsed(rows: DataFrame, schema: str) -> DataFrame:
    """Adds the columns `body`, the JSON value parsed by the schema, and `quarantine_reason`, null if the value matches.
    A field that is NOT NULL in the schema is required; fields that are not in the schema are ignored."""
    kind = schema_of(schema)
    text = F.col("value").cast("string")
    raw = F.from_json(
        F.when(F.is_valid_utf8(text), text),
        StructType([*kind.fields, StructField(_CORRUPT, StringType())]),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    with_raw = rows.withColumn("_raw", raw)
    reason = F.when(~F.is_valid_utf8(text), F.lit("the value is not UTF-8 text")).when(
        F.col("_raw").isNull() | F.col(f"_raw.{_CORRUPT}").isNotNull(), F.lit("the value does not fit the schema")
    )
    for field in kind.fields:
        if not field.nullable:
            reason = reason.when(_field(field.name).isNull(), F.lit(f"{field.name} is missing"))
    body = F.struct(*(_field(field.name).alias(field.name) for field in kind.fields))
    return with_raw.withColumn(REASON, reason).withColumn(BODY, F.when(F.col(REASON).isNull(), body)).drop("_raw")


def schema_of(text: str, setting: str = "archive.schema") -> StructType:
    """A schema as in CREATE TABLE. Raises `SettingsError`."""
    try:
        kind = StructType.fromDDL(text)
    except PySparkException as error:
        raise SettingsError(f"{setting}: {str(error).strip().splitlines()[0]}") from None
    if not isinstance(kind, StructType):
        raise SettingsError(f"{setting} is a list of columns such as 'id BIGINT, total DOUBLE', not {text!r}")
    return kind


def _field(name: str) -> Column:
    return F.col("_raw").getField(name)

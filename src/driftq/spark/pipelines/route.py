"""The pipeline `route`: the broker's router applied to a whole topic, by rules, a function of messages, or of frames.

A decision means the same as when a message is produced: the same `RouteInput`, the same `RouteDecision`, the same
rules. `routed` adds the target topic, partition, label and metadata; the sink writes. Deciders are pickled and sent to
the executors, so they hold only text and load rules and functions there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from driftq.spark.pipelines.transform import ORIGIN_COLUMNS, NoFunction, load_function
from driftq.wire.message import Envelope
from driftq.wire.router import RouteDecision, RouteInput, Rules, checked, parse_rules

_TEXTS = ("tenant_id", "run_id", "step_id", "parent_step_id", "idempotency_key")
_INPUT_COLUMNS = ("topic", "value", "key", *_TEXTS, "labels", "task")
_DECIDED = [
    T.StructField("topic", T.StringType()),
    T.StructField("partition", T.IntegerType()),
    T.StructField("routing_label", T.StringType()),
    T.StructField("routing_meta", T.MapType(T.StringType(), T.StringType())),
]
_ARROW = [pa.string(), pa.int32(), pa.string(), pa.map_(pa.string(), pa.string())]


class Decider(Protocol):
    """Decides for the messages of one batch, in their order. Must be picklable."""

    def decisions(self, batch: pa.RecordBatch) -> Sequence[RouteDecision | None]: ...


@dataclass(frozen=True)
class ByRules:
    """The rules of a file, as the broker's router applies them."""

    text: str
    path: str = "rules"

    @cached_property
    def _rules(self) -> Rules:
        return parse_rules(self.text, self.path)

    def decisions(self, batch: pa.RecordBatch) -> list[RouteDecision | None]:
        return [self._rules.decide(message) for message in messages_of(batch)]

    def __getstate__(self) -> dict[str, str]:
        return {"text": self.text, "path": self.path}  # parsed rules hold closures, which cannot be pickled


@dataclass(frozen=True)
class ByFunction:
    """A function from `RouteInput` to `RouteDecision`, a mapping like one, or None: a router written for the broker."""

    target: str

    def decisions(self, batch: pa.RecordBatch) -> list[RouteDecision | None]:
        function = _function(self.target)
        return [checked(function(message)) for message in messages_of(batch)]


@dataclass(frozen=True)
class ByFrames:
    """A function from a pandas frame of messages to one with any of the columns target_topic, label,
    partition_override and meta, row for row."""

    target: str

    def decisions(self, batch: pa.RecordBatch) -> list[RouteDecision | None]:
        frame = load_function(self.target)(batch.to_pandas())
        if len(frame) != batch.num_rows:
            raise NoFunction(f"{self.target} returned {len(frame)} rows for {batch.num_rows} messages")
        rows = pa.RecordBatch.from_pandas(frame, preserve_index=False).to_pylist()
        decisions = [{name: value for name, value in row.items() if value not in (None, "")} for row in rows]
        return [checked(decision) if decision else None for decision in decisions]


def routed(messages: DataFrame, decider: Decider, *, default: str = "", unrouted: str = "") -> DataFrame:
    """Messages with their target topic and partition. A decision without a target goes to `default`, a message without
    a decision to `unrouted`; messages that then have no topic are dropped."""
    missing = [name for name in ("topic", "value", "key") if name not in messages.columns]
    if missing:
        raise NoFunction(f"there is no column {', '.join(missing)}: read with includeEnvelope=true")
    kept = [
        field
        for field in messages.schema.fields
        if field.name not in (*ORIGIN_COLUMNS, "routing_label", "routing_meta")
    ]
    schema = T.StructType([*kept, *_DECIDED])
    names = [field.name for field in kept]

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _applied(batch, decider.decisions(batch), names, default, unrouted)

    return messages.mapInArrow(each_batch, schema).where(F.col("topic").isNotNull())


def messages_of(batch: pa.RecordBatch) -> Iterator[RouteInput]:
    """The rows of a batch as input for a router."""
    present = [name for name in _INPUT_COLUMNS if name in batch.schema.names]
    columns = [batch.column(batch.schema.names.index(name)).to_pylist() for name in present]
    for values in zip(*columns):
        row: dict[str, Any] = {name: value for name, value in zip(present, values) if value is not None}
        labels = dict(row["labels"]) if row.get("labels") else None
        envelope = Envelope(**{name: row.get(name, "") for name in _TEXTS}, labels=labels)
        key = row.get("key", b"").decode("utf-8", "replace")
        yield RouteInput(row["topic"], row.get("value", b""), key, envelope, row.get("task", ""))


def _function(target: str) -> Callable[[RouteInput], Any]:
    """A function, or a class or object with a method `route`, as the broker accepts them."""
    loaded = load_function(target)
    if isinstance(loaded, type):
        loaded = loaded()
    route: Callable[[RouteInput], Any] = getattr(loaded, "route", loaded)
    return route


def _applied(
    batch: pa.RecordBatch, decisions: Sequence[RouteDecision | None], names: list[str], default: str, unrouted: str
) -> pa.RecordBatch:
    origins = batch.column(batch.schema.names.index("topic")).to_pylist()
    columns: list[list[Any]] = [[], [], [], []]
    for origin, decision in zip(origins, decisions):
        if decision is None:
            target: tuple[Any, ...] = (unrouted or None, None, None, None)
        else:
            meta = list(decision.meta.items()) if decision.meta else None
            target = (
                decision.target_topic or default or None,
                decision.partition_override,
                decision.label or None,
                meta,
            )
        if target[0] == origin:
            raise NoFunction(f"a message of topic {origin!r} is routed to its own topic, which would never end")
        for column, value in zip(columns, target):
            column.append(value)
    kept = [batch.column(batch.schema.names.index(name)) for name in names]
    added = [pa.array(column, kind) for column, kind in zip(columns, _ARROW)]
    return pa.RecordBatch.from_arrays([*kept, *added], names=[*names, *(field.name for field in _DECIDED)])

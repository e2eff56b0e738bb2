"""The router hook over a whole topic: rules, a function of single messages, or a function of pandas frames decides.

What a decision means is what it means at produce: the same `RouteInput`, the same `RouteDecision`, the same rules. A
message gets its target topic, partition, label and meta; who writes it there is the sink's business. Deciders travel to
the executors, so they are made of texts and get ready where they are asked.
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

from driftq.spark.pipelines.dedupe import PLACE, NoFunction, named
from driftq.wire import router_rules
from driftq.wire.message import Envelope
from driftq.wire.router import RouteDecision, RouteInput, checked

_TEXTS = ("tenant_id", "run_id", "step_id", "parent_step_id", "idempotency_key")
_SEEN = ("topic", "value", "key", *_TEXTS, "labels", "task")
_DECIDED = [
    T.StructField("topic", T.StringType()),
    T.StructField("partition", T.IntegerType()),
    T.StructField("routing_label", T.StringType()),
    T.StructField("routing_meta", T.MapType(T.StringType(), T.StringType())),
]
_ARROW = [pa.string(), pa.int32(), pa.string(), pa.map_(pa.string(), pa.string())]


class Decider(Protocol):
    """Decides about the messages of one batch, in their order. Must be picklable."""

    def decisions(self, batch: pa.RecordBatch) -> Sequence[RouteDecision | None]: ...


@dataclass(frozen=True)
class ByRules:
    """The rules of a file, as the broker's router asks them."""

    text: str
    path: str = "rules"

    @cached_property
    def _rules(self) -> router_rules.Rules:
        return router_rules.parse(self.text, self.path)

    def decisions(self, batch: pa.RecordBatch) -> list[RouteDecision | None]:
        return [self._rules.decide(message) for message in messages_of(batch)]

    def __getstate__(self) -> dict[str, str]:
        return {"text": self.text, "path": self.path}  # what is parsed holds closures and stays here


@dataclass(frozen=True)
class ByFunction:
    """A function from `RouteInput` to `RouteDecision`, a mapping like one, or None: a router written for the broker
    works."""

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
        made = named(self.target)(batch.to_pandas())
        if len(made) != batch.num_rows:
            raise NoFunction(f"{self.target} gave {len(made)} rows for {batch.num_rows} messages")
        rows = pa.RecordBatch.from_pandas(made, preserve_index=False).to_pylist()
        found = [{name: value for name, value in row.items() if value not in (None, "")} for row in rows]
        return [checked(row) if row else None for row in found]


def routed(messages: DataFrame, decider: Decider, *, default: str = "", unrouted: str = "") -> DataFrame:
    """Messages with the topic and partition they go to. A decision without a target goes to `default`; a message that
    nobody routed goes to `unrouted`; what then has no topic is left out."""
    missing = [name for name in ("topic", "value", "key") if name not in messages.columns]
    if missing:
        raise NoFunction(f"there is no column {', '.join(missing)}: read with includeEnvelope=true")
    kept = [field for field in messages.schema.fields if field.name not in (*PLACE, "routing_label", "routing_meta")]
    schema = T.StructType([*kept, *_DECIDED])
    names = [field.name for field in kept]

    def each_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _applied(batch, decider.decisions(batch), names, default, unrouted)

    return messages.mapInArrow(each_batch, schema).where(F.col("topic").isNotNull())


def messages_of(batch: pa.RecordBatch) -> Iterator[RouteInput]:
    """The rows of a batch as a router sees them."""
    there = [name for name in _SEEN if name in batch.schema.names]
    columns = [batch.column(batch.schema.names.index(name)).to_pylist() for name in there]
    for values in zip(*columns):
        row: dict[str, Any] = {name: value for name, value in zip(there, values) if value is not None}
        labels = dict(row["labels"]) if row.get("labels") else None
        envelope = Envelope(**{name: row.get(name, "") for name in _TEXTS}, labels=labels)
        key = row.get("key", b"").decode("utf-8", "replace")
        yield RouteInput(row["topic"], row.get("value", b""), key, envelope, row.get("task", ""))


def _function(target: str) -> Callable[[RouteInput], Any]:
    """A function, or a class or object with a method `route`, as the broker takes them."""
    found = named(target)
    if isinstance(found, type):
        found = found()
    route: Callable[[RouteInput], Any] = getattr(found, "route", found)
    return route


def _applied(
    batch: pa.RecordBatch, decisions: Sequence[RouteDecision | None], names: list[str], default: str, unrouted: str
) -> pa.RecordBatch:
    froms = batch.column(batch.schema.names.index("topic")).to_pylist()
    columns: list[list[Any]] = [[], [], [], []]
    for origin, decision in zip(froms, decisions):
        if decision is None:
            made: tuple[Any, ...] = (unrouted or None, None, None, None)
        else:
            meta = list(decision.meta.items()) if decision.meta else None
            made = (decision.target_topic or default or None, decision.partition_override, decision.label or None, meta)
        if made[0] == origin:
            raise NoFunction(f"a message of topic {origin!r} is routed to its own topic: it would go round for ever")
        for column, value in zip(columns, made):
            column.append(value)
    kept = [batch.column(batch.schema.names.index(name)) for name in names]
    made_columns = [pa.array(column, kind) for column, kind in zip(columns, _ARROW)]
    return pa.RecordBatch.from_arrays([*kept, *made_columns], names=[*names, *(field.name for field in _DECIDED)])

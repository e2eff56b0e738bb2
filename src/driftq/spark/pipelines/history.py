"""The history of messages: events as rows, and what they make of a step of an agent run.

The events of `TOPIC.history` are deliveries, acks and failures. An event names its message by topic, partition and
offset and does not repeat its content: tenant, run and label are in the message. A message is a step, and each group
that works on it has a state of its own:

    produced --> waiting --delivered--> running --acked--> succeeded
                    ^                    |   |--dead, cancelled--> dead, cancelled
                    |-----released-------+   |
                                             +--failed, expired--> retrying --delivered--> running

Events may arrive before their message (two logs are read at slightly different times), and after a restart a batch of
events is applied again: the result depends on nothing but the state before and the events. Knows nothing of sessions
and sinks; the steps know no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field, msgpack, structs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SUFFIX = ".history"
EVENT = (
    "event STRING, topic STRING, partition INT, offset BIGINT, `group` STRING, owner STRING, attempt INT, "
    "at TIMESTAMP, error STRING, reason STRING"
)
# What counts as a failed attempt: the worker reported a failure, or its lease expired.
FAILED = ("failed", "expired")
ENDS = ("acked", "dead", "cancelled")
ERROR_MAX = 2_000


def events(rows: DataFrame) -> DataFrame:
    """The events in the rows of history topics, without other rows. `seen` orders the events of one history log."""
    parsed = rows.where(F.col("topic").endswith(SUFFIX)).select(
        F.from_json(F.col("value").cast("string"), EVENT).alias("parsed"), F.col("offset").alias("seen")
    )
    return parsed.where("parsed.event IS NOT NULL").select("parsed.*", "seen")


def messages(rows: DataFrame) -> DataFrame:
    """The rows that are messages, without those of history topics."""
    return rows.where(~F.col("topic").endswith(SUFFIX))


# --- steps ---


class StepEvent(Struct, frozen=True, gc=False):
    """Something that happened to a message. `produced` has the fields of the envelope; the others have a group."""

    kind: str
    offset: int
    at_ms: int
    order: int = 0
    group: str = ""
    owner: str = ""
    attempt: int = 0
    error: str = ""
    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    task: str = ""


class Work(Struct, gc=False):
    """The work of one group on a message. Times in milliseconds, 0 for "not yet"."""

    state: str = "waiting"
    attempts: int = 0
    failures: int = 0
    owner: str = ""
    error: str = ""
    started_ms: int = 0
    attempted_ms: int = 0
    ended_ms: int = 0
    busy_ms: int = 0
    version: int = 0


class Step(Struct):
    """A message, and the work of each group on it."""

    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    task: str = ""
    produced_ms: int = 0
    works: dict[str, Work] = field(default_factory=dict)


Steps = dict[int, Step]
_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(Steps)


def packed(steps: Steps) -> bytes:
    return _encoder.encode(steps)


def unpacked(data: bytes) -> Steps:
    return _decoder.decode(data) if data else {}


def advance(steps: Steps, events: Iterable[StepEvent]) -> list[tuple[int, str]]:
    """Apply events; returns the (offset, group) pairs that changed, each once, in order. A message that no group has
    worked on yet has the empty group, which is replaced by the first real one."""
    changed: dict[tuple[int, str], None] = {}
    for event in sorted(events, key=lambda event: (event.at_ms, event.kind != "produced", event.order)):
        step = steps.setdefault(event.offset, Step())
        if event.kind == "produced":
            _produced(step, event)
        else:
            _worked(step, event)
        for group, work in step.works.items():
            if group == event.group or event.kind == "produced":
                work.version += 1
                changed[event.offset, group] = None
    return sorted(changed)


def _produced(step: Step, event: StepEvent) -> None:
    step.run_id, step.step_id, step.parent_step_id = event.run_id, event.step_id, event.parent_step_id
    step.tenant_id, step.task, step.produced_ms = event.tenant_id, event.task, event.at_ms
    if not step.works:
        step.works[""] = Work()


def _worked(step: Step, event: StepEvent) -> None:
    waiting = step.works.pop("", None)
    work = step.works.get(event.group)
    if work is None:
        # Versions continue from those of the empty group, so that the highest version is the latest.
        work = step.works[event.group] = Work(version=waiting.version if waiting is not None else 0)
    if event.kind == "delivered":
        work.state, work.owner, work.attempts = "running", event.owner, max(work.attempts, event.attempt)
        work.attempted_ms = event.at_ms
        work.started_ms = work.started_ms or event.at_ms
        return
    if work.state == "running":
        work.busy_ms += max(0, event.at_ms - work.attempted_ms)
    work.attempts = max(work.attempts, event.attempt)
    if event.kind in FAILED:
        work.state, work.failures = "retrying", work.failures + 1
        work.error = (event.error or "ack_timeout")[:ERROR_MAX]
    elif event.kind == "released":
        work.state = "waiting"
    else:
        work.state = {"acked": "succeeded"}.get(event.kind, event.kind)
        work.ended_ms = event.at_ms
        if event.kind == "dead":
            work.error = (event.error or work.error)[:ERROR_MAX]


def rows(steps: Steps, changed: Iterable[tuple[int, str]]) -> list[dict[str, object]]:
    """The rows of these steps for the table."""
    table_rows: list[dict[str, object]] = []
    for offset, group in changed:
        step = steps[offset]
        work = step.works.get(group)
        if work is None:
            continue  # the empty group, which a real one has replaced
        row: dict[str, object] = {"offset": offset, "group": group, **structs.asdict(work)}
        row.update({name: value for name, value in structs.asdict(step).items() if name != "works"})
        table_rows.append(row)
    return table_rows

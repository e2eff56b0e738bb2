"""Bodies of dead letters: list them, group them by error, send them back, delete and export them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, json
from msgspec.structs import replace

from driftq.wire.fields import Body, Natural, to_rfc3339
from driftq.wire.message import Envelope, StoredMessage, read_head

if TYPE_CHECKING:
    from driftq.wire.records import Record

REDRIVE_GROUP = "driftq.redrive"  # the broker's own group: letters that it has settled were sent back


class LetterFilter(Body, frozen=True, omit_defaults=True):
    """Selects dead letters; all given conditions must hold. `error` is a part of the last error, `kind` a kind of error
    as `GET /v1/dlq/{topic}/errors` names it, `since` and `until` are RFC 3339 times, `offsets` are up to 10,000 pairs
    of partition and offset."""

    group: str = ""
    error: str = ""
    reason: str = ""
    since: str = ""
    until: str = ""
    offsets: list[tuple[Natural, Natural]] | None = None
    kind: str | None = None


class RedriveRequest(LetterFilter, frozen=True, omit_defaults=True):
    """Send dead letters back, each to the group in which it died, or with `all_groups` to every group of its topic, or
    with `to_topic` to another topic. A deadline that has passed is removed unless `keep_deadline` is set. `value` and
    `key` replace those of each message. `after` continues where an earlier call stopped.
    """

    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    rate_per_s: Natural = 0
    value: str | None = None
    key: str | None = None
    all_groups: bool = False
    keep_deadline: bool = False
    to_topic: str = ""
    after: str = ""


class RedriveFailure(Struct, frozen=True):
    """A dead letter that was not sent back, and why."""

    partition: int
    offset: int
    message: str


class RedriveReply(Struct, frozen=True, omit_defaults=True):
    """`status` is "redriven" or "dry run". With `after` there may be more letters; it continues after those that were
    looked at."""

    status: str
    matched: int
    redriven: int
    failed: list[RedriveFailure]
    after: str | None = None


class DeleteLettersRequest(LetterFilter, frozen=True, omit_defaults=True):
    """Dead letters to delete. `dry_run` only counts. `after` continues where an earlier call stopped."""

    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    after: str = ""


class DeleteLettersReply(Struct, frozen=True, omit_defaults=True):
    """`status` is "deleted" or "dry run". With `after` there may be more letters; it continues after those that were
    looked at."""

    status: str
    matched: int
    deleted: int
    after: str | None = None


class LettersReply(Struct, frozen=True, omit_defaults=True):
    """`after` starts the next page; it is missing on the last page."""

    messages: list[StoredMessage]
    after: str | None = None


class ErrorKind(Struct, frozen=True):
    """Dead letters with the same group, reason and error. Numbers, ids and quoted parts of `error` are replaced by an
    ellipsis; of a traceback the last line counts. `example` is one whole text; `tenants` are at most 100."""

    group: str
    reason: str
    error: str
    example: str
    count: int
    last_at: str
    first_at: str = ""
    tenants: list[str] = []


class ErrorKindsReply(Struct, frozen=True, omit_defaults=True):
    """`complete` is false if only `counted` of `total` letters were counted so far. `after` starts the next page; it is
    missing on the last page."""

    errors: list[ErrorKind]
    complete: bool
    counted: int
    total: int
    after: str | None = None


class DeadLetterCount(Struct, frozen=True):
    """The dead letters of a topic that were not redriven. `last_at` is when the last one died."""

    topic: str
    dead_letters: int
    last_at: str | None


class DeadLetterCounts(Struct, frozen=True, omit_defaults=True):
    """The topics with dead letters, the one with the most first. `total` counts the letters of all of them. `after`
    starts the next page; it is missing on the last page."""

    topics: list[DeadLetterCount]
    total: int
    after: str | None = None


# --- as lines of NDJSON ---


def line_of(offset: int, at_ms: int, record: Record, partition: int | None = None) -> bytes:
    """A record as one line of JSON, to go back into this partition if one is given. It has the fields of
    `wire.produce.ProduceItem`, and beside them what `driftq produce --ndjson` ignores: offset, timestamp_ms,
    key_base64, routing and dlq."""
    line: dict[str, Any] = {"offset": offset, "timestamp_ms": at_ms}
    if record.key:
        line["key"] = record.key.decode("utf-8", "replace")
        if line["key"].encode() != record.key:
            line["key_base64"] = base64.b64encode(record.key).decode()
    try:
        line["value"] = record.value.decode()
    except UnicodeDecodeError:
        line["value_base64"] = base64.b64encode(record.value).decode()
    head = read_head(record.head)
    if partition is not None:
        line["envelope"] = replace(head.envelope or Envelope(), partition_override=partition)
    elif head.envelope is not None:
        line["envelope"] = head.envelope
    if head.job is not None:
        job = {"id": head.job.id, "task": head.job.task, "priority": head.job.priority}
        line |= {name: value for name, value in job.items() if value}
        if head.job.not_before_ms:
            line["not_before"] = to_rfc3339(head.job.not_before_ms)
        if head.job.timeout_ms:
            line["timeout_ms"] = head.job.timeout_ms
    if head.routing is not None:
        line["routing"] = head.routing
    if head.dlq is not None:
        line["dlq"] = head.dlq
    return json.encode(line) + b"\n"

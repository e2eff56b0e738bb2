"""Bodies of dead letters: list them, group them by error, send them back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Natural
from driftq.wire.message import StoredMessage

REDRIVE_GROUP = "driftq.redrive"  # the broker's own group: letters that it has settled were sent back


class LetterFilter(Body, frozen=True, omit_defaults=True):
    """Selects dead letters; all given conditions must hold. `error` is a part of the last error, `since` and `until`
    are RFC 3339 times, `offsets` are pairs of partition and offset."""

    group: str = ""
    error: str = ""
    reason: str = ""
    since: str = ""
    until: str = ""
    offsets: list[tuple[Natural, Natural]] | None = None


class RedriveRequest(LetterFilter, frozen=True, omit_defaults=True):
    """Send dead letters back, each to the group in which it died, or with `all_groups` to every group of its topic. A
    deadline that has passed is removed unless `keep_deadline` is set. `value` and `key` replace those of each message.
    """

    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    rate_per_s: Natural = 0
    value: str | None = None
    key: str | None = None
    all_groups: bool = False
    keep_deadline: bool = False


class RedriveFailure(Struct, frozen=True):
    """A dead letter that was not sent back, and why."""

    partition: int
    offset: int
    message: str


class RedriveReply(Struct, frozen=True):
    """`status` is "redriven" or "dry run"."""

    status: str
    matched: int
    redriven: int
    failed: list[RedriveFailure]


class LettersReply(Struct, frozen=True, omit_defaults=True):
    """`after` starts the next page; it is missing on the last page."""

    messages: list[StoredMessage]
    after: str | None = None


class ErrorKind(Struct, frozen=True):
    """Dead letters with the same group, reason and error. Numbers, ids and quoted parts of `error` are replaced by an
    ellipsis; `example` is one whole text."""

    group: str
    reason: str
    error: str
    example: str
    count: int
    last_at: str


class ErrorKindsReply(Struct, frozen=True, omit_defaults=True):
    """`after` starts the next page; it is missing on the last page."""

    errors: list[ErrorKind]
    after: str | None = None

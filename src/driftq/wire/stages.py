"""Bodies of staged appends: batches that are durable and invisible until their writer publishes them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from driftq.wire.fields import ID_LENGTH_MAX, Body, Natural, Owner

ContentId = Annotated[str, Meta(max_length=ID_LENGTH_MAX)]


class StagedInfo(Struct, frozen=True):
    """`duplicate`: the batch was staged before."""

    handle: str
    count: int
    expires_at: str
    duplicate: bool


class PublishRequest(Body, frozen=True):
    """`batch` numbers the publications of a writer. Each number is published once, in ascending order. `content`
    identifies what is published, such as a digest: the same number with another one is refused. Empty: not compared."""

    writer: Owner
    batch: Natural
    handles: tuple[str, ...] = ()
    content: ContentId = ""


class PublishedPartInfo(Struct, frozen=True, omit_defaults=True):
    """Where a staged batch was published. A part of a stream has no topic and no partition."""

    offset: int
    count: int
    topic: str = ""
    partition: int | None = None


class PublishedInfo(Struct, frozen=True):
    """`duplicate`: this number was published before, and these are its parts."""

    batch: int
    duplicate: bool
    parts: list[PublishedPartInfo]


class ForgetRequest(Body, frozen=True):
    """Staged batches that will not be published."""

    writer: Owner
    handles: list[str]


class ForgottenInfo(Struct, frozen=True):
    """`forgotten` is false if none of the handles was staged."""

    forgotten: bool

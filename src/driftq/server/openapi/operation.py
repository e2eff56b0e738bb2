"""The words in which a route is documented: an operation with its parameters, its body and its answers."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
NDJSON = "application/x-ndjson"
BATCH = "application/x-driftq-batch"
BATCHES = "application/x-driftq-batches"
PLAIN = "text/plain"
ANY = "*/*"
BYTES = "application/octet-stream"

READ_ERRORS = (400, 404)
WRITE_ERRORS = (400, 404, 409, 429)


class Query(NamedTuple):
    """A query parameter."""

    name: str
    kind: Any
    meaning: str
    required: bool = False


class ReplyDoc(NamedTuple):
    """A good answer: what it means, its type (or none), and its media type."""

    meaning: str
    kind: Any = None
    media: str = "application/json"
    headers: tuple[str, ...] = ()


class Operation(NamedTuple):
    """One method of one path. `either` names a struct whose fields may come as query parameters instead of a body."""

    summary: str
    tag: str
    replies: dict[int, ReplyDoc]
    body: dict[str, Any] | None = None
    query: tuple[Query, ...] = ()
    either: bool = False
    body_optional: bool = False
    errors: tuple[int, ...] = ()
    headers: tuple[str, ...] = ()


def as_json(kind: Any) -> dict[str, Any]:
    return {"application/json": kind}

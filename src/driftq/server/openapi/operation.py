"""The types in which a route is documented: an operation with its parameters, its body and its replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

Text = Annotated[str, Meta(min_length=1)]
JSON = "application/json"
NDJSON = "application/x-ndjson"
PLAIN = "text/plain"
ANY_TYPE = "*/*"
BYTES = "application/octet-stream"
TAR = "application/x-tar"

READ_ERRORS = (400, 404)
WRITE_ERRORS = (400, 404, 409, 429)


class Query(NamedTuple):
    """A query parameter."""

    name: str
    type: Any
    description: str
    required: bool = False


class ReplyDoc(NamedTuple):
    """A successful reply: its meaning, its type (None: no body), its media type and its headers. `otherwise` are other
    media types that it may have, with their types."""

    description: str
    type: Any = None
    media: str = JSON
    headers: tuple[str, ...] = ()
    otherwise: tuple[tuple[str, Any], ...] = ()

    def media_types(self) -> dict[str, Any]:
        """Each media type of its body, with the type of what is in it."""
        return {self.media: self.type, **dict(self.otherwise)} if self.type is not None else {}


class Operation(NamedTuple):
    """One method of one path."""

    summary: str
    description: str
    tag: str
    replies: dict[int, ReplyDoc]
    body: dict[str, Any] | None = None  # media type to type
    query: tuple[Query, ...] = ()
    either: bool = False  # the fields of the body may come as query parameters instead
    body_optional: bool = False
    errors: tuple[int, ...] = ()  # beside those that every operation has
    headers: tuple[str, ...] = ()  # request headers


Operations = dict[tuple[str, str], Operation]

DONE = {204: ReplyDoc("Done. Repeating the call has no further effect.")}
LIMIT = Query("limit", Annotated[int, Meta(ge=1, le=1_000)], "Entries per page.")
_AFTER = "The `after` of the previous page."
PAGE = (Query("after", str, _AFTER), LIMIT)
NUMBERED_PAGE = (Query("after", Annotated[str, Meta(pattern="^[0-9]{1,16}$")], _AFTER), LIMIT)
PLACE_PAGE = (Query("after", Annotated[str, Meta(pattern="^[0-9]{1,9}:[0-9]{1,18}$")], _AFTER), LIMIT)
DETAILS = Query("details", Literal["true", "false"], "With figures.")


def sorted_by(*names: str) -> tuple[Query, ...]:
    """The parameters of a list that can be sorted. They hold with `details=true`."""
    choices = Literal["name", *names]  # type: ignore[valid-type]
    return (
        DETAILS,
        Query("sort", choices, "By this; with `details`."),
        Query("order", Literal["asc", "desc"], "Largest first by default, except by name; with `details`."),
        Query("search", str, "Only names that contain this; with `details`."),
    )


TOPIC = Query("topic", Annotated[str, Meta(min_length=1, max_length=249)], "The topic.", True)


def as_json(body: Any) -> dict[str, Any]:
    return {JSON: body}

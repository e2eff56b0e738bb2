"""The OpenAPI 3.1 document, made from the route table, the operations and the types that bodies are read with.

Nothing is written twice: schemas are what msgspec makes of the types, paths are those of the routes. A route without
an operation is an error here, so it cannot be served undocumented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

import driftq
from driftq.server.openapi import (
    produce_operations,
    stream_operations,
)
from driftq.server.openapi.operation import Operation, Query, ReplyDoc
from driftq.server.openapi.operations import OPERATIONS
from driftq.server.openapi.shapes import Error, Overload
from driftq.server.openapi.stream_operations import SubscriptionError

DOCUMENTED = {
    **OPERATIONS,
    **produce_operations.CLOCK_OPERATIONS,
    **produce_operations.OPERATIONS,
    **stream_operations.OPERATIONS,
}
_REF = "#/components/schemas/{name}"
# What cannot be read, a foreign Host or Origin, a body too large, a bug, recovery, a full disk.
ALWAYS = (400, 403, 413, 500, 503, 507)
_MEANINGS = {
    400: "The request cannot be understood, or asks for something that cannot be.",
    401: "The token of the wake is missing or wrong.",
    403: "From a foreign Host or Origin, or with an epoch that is over.",
    404: "There is no such thing.",
    405: "Not with this method; `Allow` says which.",
    409: "Somebody else holds it, or it is different from what the request assumes.",
    410: "It was there, and is gone.",
    412: "The end has moved.",
    413: "Too large, for ever.",
    422: "The same number was used with other bytes.",
    429: "Too much at the moment; `Retry-After` says when to come back.",
    500: "A bug, or damage on disk; the log of the server says more.",
    503: "Not ready: recovering, stopping, or the disk does not keep up.",
    507: "The disk is full; reading and settling go on.",
}
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,249}$"}
_PATH_SCHEMAS = {"topic": _NAME, "group": _NAME, "partition": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}}
# The empty schema in other words: some generators cannot tell a body of no type from the other bodies.
_ANY_JSON = {"type": ["array", "object", "string", "number", "boolean", "null"]}
_RETRY = frozenset({429, 503, 507})
_HEADERS = {
    "X-Request-Id": "Names this answer in the server's log; yours, if the request had one.",
    "Retry-After": "Seconds, at least 1.",
    "Allow": "The methods that are served here.",
}


class RouteEntry(NamedTuple):
    """A documented method of a path."""

    method: str
    path: str
    operation: Operation
    errors: str = "Error"  # the family of its refusals among the shared responses


class Undocumented(Exception):
    """A route has no operation."""


def entries(routes: Iterable[tuple[str, str]]) -> list[RouteEntry]:
    """(method, path) of every route with its operation. Raises `Undocumented`."""
    found: list[RouteEntry] = []
    for method, path in routes:
        if (method, path) == stream_operations.ROUTE:
            found += (
                RouteEntry(m, stream_operations.PATH, o, "Stream")
                for m, o in stream_operations.STREAM_OPERATIONS.items()
            )
            found += (
                RouteEntry(m, p, o, "Subscription") for (m, p), o in stream_operations.SUBSCRIPTION_OPERATIONS.items()
            )
        elif (method, path) in DOCUMENTED:
            found.append(RouteEntry(method, path, DOCUMENTED[method, path]))
        else:
            raise Undocumented(f"{method} {path}")
    return found


def document(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The whole document as plain values."""
    table = entries(routes)
    kinds = _Kinds(table)
    paths: dict[str, dict[str, Any]] = {}
    for entry in table:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry, kinds)
    tags = dict.fromkeys(entry.operation.tag for entry in table)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DriftQ",
            "version": driftq.__version__,
            "description": "Queues, jobs and durable streams on one journal. A 2xx means that it is on disk.",
        },
        "servers": [{"url": "/", "description": "The server that this document came from."}],
        "security": [],  # no operation asks who is calling
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": kinds.schemas,
            "responses": _errors(kinds),
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()},
        },
    }


class _Kinds:
    """The schema of every type that the operations mention."""

    def __init__(self, table: Sequence[RouteEntry]) -> None:
        mentioned: dict[Any, None] = dict.fromkeys((Error, Overload, SubscriptionError))
        for _, _, operation, _ in table:
            mentioned.update(dict.fromkeys((operation.body or {}).values()))
            mentioned.update(dict.fromkeys(reply.kind for reply in operation.replies.values()))
            mentioned.update(dict.fromkeys(query.kind for query in _query(operation)))
        kinds = [kind for kind in mentioned if kind is not None and kind is not bytes]
        made, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._made = dict(zip(kinds, made, strict=True))
        self.schemas = {_plain(name): _renamed(schema) for name, schema in components.items()}

    def schema(self, kind: Any) -> dict[str, Any]:
        if kind is bytes:
            return {"type": "string", "format": "binary"}
        schema: dict[str, Any] = _renamed(self._made[kind])
        return schema


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", name)


def _renamed(schema: Any) -> Any:
    """Names of components without brackets, in every reference. No `items: false`: `maxItems` says the same of a tuple,
    and generators of clients stumble over a schema that is not an object."""
    if isinstance(schema, dict):
        prefix = _REF.format(name="")
        return {
            key: prefix + _plain(value.removeprefix(prefix)) if key == "$ref" else _renamed(value)
            for key, value in schema.items()
            if (key, value) != ("items", False)
        }
    return [_renamed(part) for part in schema] if isinstance(schema, list) else schema


def _query(operation: Operation) -> tuple[Query, ...]:
    """The query parameters, with the simple fields of the body if they may come as such."""
    if not operation.either or operation.body is None:
        return operation.query
    named = {query.name for query in operation.query}
    (kind,) = operation.body.values()
    fields = msgspec.structs.fields(kind)
    if named:  # written out by hand
        return operation.query
    return tuple(
        Query(field.encode_name, field.type, "As in the body.") for field in fields if field.encode_name not in named
    )


def _operation(entry: RouteEntry, kinds: _Kinds) -> dict[str, Any]:
    operation = entry.operation
    shown: dict[str, Any] = {
        "operationId": _name(entry),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(entry.path), *_query_parameters(operation, kinds), *_headers(operation)],
        "responses": _responses(entry, kinds),
    }
    if operation.body is not None:
        content = {media: {"schema": kinds.schema(kind) or _ANY_JSON} for media, kind in operation.body.items()}
        shown["requestBody"] = {"required": not (operation.either or operation.body_optional), "content": content}
    return shown


def _name(entry: RouteEntry) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", entry.path.removeprefix("/v1/").lower()) if word]
    return "_".join([entry.method.lower(), *words])


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _PATH_SCHEMAS.get(name, {"type": "string", "minLength": 1}),
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(operation: Operation, kinds: _Kinds) -> list[dict[str, Any]]:
    return [
        {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "description": query.meaning,
            "schema": _without_null(kinds.schema(query.kind)),
        }
        for query in _query(operation)
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what is not there is absent."""
    kept = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    return dict(kept[0]) if len(kept) == 1 else schema


def _headers(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in operation.headers
    ]


def _responses(entry: RouteEntry, kinds: _Kinds) -> dict[str, Any]:
    shown = {str(status): _good(reply, kinds) for status, reply in entry.operation.replies.items()}
    family = "Head" if entry.method == "HEAD" else entry.errors
    for status in {*entry.operation.errors, *ALWAYS}:
        shown[str(status)] = {"$ref": f"#/components/responses/{family}{status}"}
    return dict(sorted(shown.items()))


def _errors(kinds: _Kinds) -> dict[str, Any]:
    """The bad answers, which all operations share: with a JSON body, with text or JSON (streams), with none (HEAD), and
    with an error object (subscriptions)."""
    shown: dict[str, Any] = {}
    for status, meaning in _MEANINGS.items():
        as_json = {"application/json": {"schema": kinds.schema(Overload if status in _RETRY else Error)}}
        as_text = {"text/plain": {"schema": {"type": "string"}}}
        names = [*(["Retry-After"] if status == 429 else []), *(["Allow"] if status == 405 else [])]
        head = {"description": meaning, "headers": _header_map(names)}
        shown[f"Error{status}"] = {**head, "content": as_json}
        shown[f"Stream{status}"] = {**head, "content": {**as_json, **as_text}}
        shown[f"Head{status}"] = head
        either = {"anyOf": [kinds.schema(SubscriptionError), kinds.schema(Error)]}
        shown[f"Subscription{status}"] = {**head, "content": {"application/json": {"schema": either}}}
    return shown


def _good(reply: ReplyDoc, kinds: _Kinds) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": reply.meaning, "headers": _header_map(reply.headers)}
    if reply.kind is not None:
        shown["content"] = {reply.media: {"schema": kinds.schema(reply.kind)}}
    return shown


def _header_map(names: Sequence[str]) -> dict[str, Any]:
    return {
        name: {"$ref": f"#/components/headers/{name}"} if name in _HEADERS else {"schema": {"type": "string"}}
        for name in ("X-Request-Id", *names)
    }

"""The OpenAPI 3.1 document, made from the route table, the operations and the types of `driftq.wire`.

Schemas are what msgspec makes of the types that bodies are encoded and decoded with; paths are those of the routes. A
route without an operation is an error, so none can be served undocumented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

import driftq
from driftq.server.openapi import (
    access_operations,
    observation_operations,
    queue_operations,
    schedule_operations,
    stream_operations,
    topic_operations,
    work_operations,
)
from driftq.server.openapi.operation import JSON, PLAIN, Operation, Operations, Query, ReplyDoc
from driftq.wire.claims import DELIVERED_ALWAYS, Delivered
from driftq.wire.errors import ErrorBody, OverloadBody
from driftq.wire.subscriptions import SubscriptionError

DOCUMENTED: Operations = {
    **topic_operations.OPERATIONS,
    **queue_operations.OPERATIONS,
    **work_operations.OPERATIONS,
    **schedule_operations.OPERATIONS,
    **stream_operations.OPERATIONS,
    **access_operations.OPERATIONS,
    **observation_operations.OPERATIONS,
}
_REF = "#/components/schemas/{name}"
# Errors of every operation: invalid request, no valid credential, no grant or a foreign Host or Origin, large body, too
# many wrong credentials, bug, not ready, full disk.
ALWAYS = (400, 401, 403, 413, 429, 500, 503, 507)
_STATUS_DESCRIPTIONS = {
    400: "The request is invalid.",
    401: "A credential is required, or this one is not valid; see `WWW-Authenticate`.",
    403: "The credential has no grant for this, the Host or Origin is not allowed, or the producer's epoch is stale.",
    404: "Not found.",
    405: "The method is not allowed; see `Allow`.",
    409: "Conflict with the current state: another owner, other properties, a producer out of step.",
    410: "It existed and is gone.",
    412: "The stream has grown since the offset of `If-Match`.",
    413: "Above a size limit. Retrying does not help.",
    422: "The sequence number was used with other bytes.",
    429: "Too many requests or too much data. Retry after `Retry-After`.",
    500: "A bug, or damaged data on disk. The server's log has details.",
    503: "Not ready: recovering, stopping, or the disk does not keep up.",
    507: "The disk is full. Reading and settling still work.",
}
_TOKEN = "An access token. `driftq tokens create` makes one; a server with `auth.mode=none` needs none."
_NAME = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,249}$"}
_PATH_SCHEMAS = {"topic": _NAME, "group": _NAME, "partition": {"type": "integer", "minimum": 0, "maximum": 2**53 - 1}}
# Equal to the empty schema. Some generators of clients cannot handle a body without a type.
_ANY_JSON = {"type": ["array", "object", "string", "number", "boolean", "null"]}
_RETRY = frozenset({429, 503, 507})
_HEADERS = {
    "X-Request-Id": "The id of this request in the server's log. The client's own, if it sent one.",
    "Retry-After": "Seconds to wait before a retry, at least 1.",
    "Allow": "The allowed methods.",
}


class RouteEntry(NamedTuple):
    """A documented method of a path."""

    method: str
    path: str
    operation: Operation
    errors: str = "Error"  # the prefix of its errors among the shared responses: Error, Stream or Subscription


class Undocumented(Exception):
    """A route has no operation."""


def entries(routes: Iterable[tuple[str, str]]) -> list[RouteEntry]:
    """(method, path) of every route with its operation. Raises `Undocumented`."""
    documented: list[RouteEntry] = []
    for method, path in routes:
        if (method, path) == stream_operations.ROUTE:  # one route, served by the handlers of streams and subscriptions
            documented += (
                RouteEntry(m, stream_operations.PATH, o, "Stream")
                for m, o in stream_operations.STREAM_OPERATIONS.items()
            )
            documented += (
                RouteEntry(m, p, o, "Subscription") for (m, p), o in stream_operations.SUBSCRIPTION_OPERATIONS.items()
            )
        elif (method, path) in DOCUMENTED:
            documented.append(RouteEntry(method, path, DOCUMENTED[method, path]))
        else:
            raise Undocumented(f"{method} {path}")
    return documented


def document(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The whole document as plain values."""
    table = entries(routes)
    schemas = _Schemas(table)
    paths: dict[str, dict[str, Any]] = {}
    for entry in table:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry, schemas)
    tags = dict.fromkeys(entry.operation.tag for entry in table)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "DriftQ",
            "version": driftq.__version__,
            "description": "Queues, jobs and durable streams on one journal. After a 2xx the change is on disk.",
        },
        "servers": [{"url": "/", "description": "The server that this document came from."}],
        "security": [{"token": []}, {}],  # a server on loopback may need none
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": _errors(schemas),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": _TOKEN}},
            "headers": {name: {"description": text, "schema": {"type": "string"}} for name, text in _HEADERS.items()},
        },
    }


class _Schemas:
    """The schema of every type that the operations use."""

    def __init__(self, table: Sequence[RouteEntry]) -> None:
        used: dict[Any, None] = dict.fromkeys((ErrorBody, OverloadBody, SubscriptionError))
        for _, _, operation, _ in table:
            used.update(dict.fromkeys((operation.body or {}).values()))
            for reply in operation.replies.values():
                used.update(dict.fromkeys(reply.media_types().values()))
            used.update(dict.fromkeys(query.type for query in _query(operation)))
        types = [body for body in used if body is not None and body is not bytes]
        schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._by_type = dict(zip(types, schemas, strict=True))
        self.components = {_plain(name): _renamed(schema) for name, schema in components.items()}
        if Delivered.__name__ in self.components:
            self.components[Delivered.__name__]["required"] = list(DELIVERED_ALWAYS)

    def of(self, body: Any) -> dict[str, Any]:
        if body is bytes:
            return {"type": "string", "format": "binary"}
        schema: dict[str, Any] = _renamed(self._by_type[body])
        return schema


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", name)


def _renamed(schema: Any) -> Any:
    """Remove brackets from the names of components in every reference, and `items: false` from tuples: `maxItems` has
    the same meaning, and some generators of clients expect every schema to be an object."""
    if isinstance(schema, dict):
        prefix = _REF.format(name="")
        return {
            key: prefix + _plain(value.removeprefix(prefix)) if key == "$ref" else _renamed(value)
            for key, value in schema.items()
            if (key, value) != ("items", False)
        }
    return [_renamed(part) for part in schema] if isinstance(schema, list) else schema


def _query(operation: Operation) -> tuple[Query, ...]:
    """The query parameters: those of the operation, or the fields of the body if they may come as such."""
    if not operation.either or operation.body is None:
        return operation.query
    if operation.query:  # written out by hand
        return operation.query
    (body,) = operation.body.values()
    return tuple(Query(field.encode_name, field.type, "As in the body.") for field in msgspec.structs.fields(body))


def _operation(entry: RouteEntry, schemas: _Schemas) -> dict[str, Any]:
    operation = entry.operation
    shown: dict[str, Any] = {
        "operationId": _name(entry),
        "summary": operation.summary,
        "description": operation.description,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(entry.path), *_query_parameters(operation, schemas), *_headers(operation)],
        "responses": _responses(entry, schemas),
    }
    if operation.body is not None:
        content = {media: {"schema": schemas.of(body) or _ANY_JSON} for media, body in operation.body.items()}
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


def _query_parameters(operation: Operation, schemas: _Schemas) -> list[dict[str, Any]]:
    return [
        {
            "name": query.name,
            "in": "query",
            "required": query.required,
            "description": query.description,
            "schema": _without_null(schemas.of(query.type)),
        }
        for query in _query(operation)
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter cannot be null, only absent."""
    kept = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    return dict(kept[0]) if len(kept) == 1 else schema


def _headers(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in operation.headers
    ]


def _responses(entry: RouteEntry, schemas: _Schemas) -> dict[str, Any]:
    shown = {str(status): _good(reply, schemas) for status, reply in entry.operation.replies.items()}
    family = "Head" if entry.method == "HEAD" else entry.errors
    for status in {*entry.operation.errors, *ALWAYS}:
        shown[str(status)] = {"$ref": f"#/components/responses/{family}{status}"}
    return dict(sorted(shown.items()))


def _errors(schemas: _Schemas) -> dict[str, Any]:
    """The error responses that operations share: with a JSON body, with text or JSON (streams), without a body (HEAD),
    and with an error object (subscriptions)."""
    shown: dict[str, Any] = {}
    for status, description in _STATUS_DESCRIPTIONS.items():
        as_json = {JSON: {"schema": schemas.of(OverloadBody if status in _RETRY else ErrorBody)}}
        as_text = {PLAIN: {"schema": {"type": "string"}}}
        names = [*(["Retry-After"] if status == 429 else []), *(["Allow"] if status == 405 else [])]
        head = {"description": description, "headers": _header_map(names)}
        shown[f"Error{status}"] = {**head, "content": as_json}
        shown[f"Stream{status}"] = {**head, "content": {**as_json, **as_text}}
        shown[f"Head{status}"] = head
        either = {"anyOf": [schemas.of(SubscriptionError), schemas.of(ErrorBody)]}
        shown[f"Subscription{status}"] = {**head, "content": {JSON: {"schema": either}}}
    return shown


def _good(reply: ReplyDoc, schemas: _Schemas) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": reply.description, "headers": _header_map(reply.headers)}
    if reply.type is not None:
        shown["content"] = {media: {"schema": schemas.of(kind)} for media, kind in reply.media_types().items()}
    return shown


def _header_map(names: Sequence[str]) -> dict[str, Any]:
    return {
        name: {"$ref": f"#/components/headers/{name}"} if name in _HEADERS else {"schema": {"type": "string"}}
        for name in ("X-Request-Id", *names)
    }

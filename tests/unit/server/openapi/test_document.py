"""The OpenAPI document: complete and consistent."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from driftq.server.openapi.document import DOCUMENTED, Undocumented, document, entries
from tests.support.access import PAGES
from tests.support.handler_fixture import handler_fixture


def fetch_document() -> tuple[dict, list[tuple[str, str]]]:
    async def fetch():
        async with handler_fixture() as at:
            body = (await at.call("GET", "/v1/openapi.json")).body
            # The route table of the app: exact paths, patterns and prefixes.
            app = at.app
            exact = [(method, path.decode()) for path, methods in app._exact.items() for method in methods]
            patterns = [(method, "/" + "/".join(parts)) for parts, methods in app._patterns for method in methods]
            return body, [(method, path) for method, path in (*exact, *patterns) if f"{method} {path}" not in PAGES]

    return asyncio.run(fetch())


def test_every_route_is_documented_and_nothing_else_is():
    api, routes = fetch_document()
    documented = {(m.upper(), path) for path, methods in api["paths"].items() for m in methods}
    streams = {route for route in documented if route[1].startswith("/v1/stream/")}  # all of them are one route
    assert documented - streams == {route for route in routes if route[0] != "HEAD"}, "HEAD is GET without its body"
    assert {method for method, path in streams if path == "/v1/stream/{path}"} == {
        "PUT",
        "POST",
        "GET",
        "HEAD",
        "DELETE",
    }
    assert set(DOCUMENTED) == {route for route in routes if route[0] != "HEAD"}, (
        "an operation without a route is a leftover"
    )


def test_a_route_without_documentation_is_an_error():
    with pytest.raises(Undocumented, match="GET /v1/new"):
        entries([("GET", "/v1/new")])


def test_every_operation_has_a_summary_parameters_and_responses():
    api, _ = fetch_document()
    names = []
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            names.append(operation["operationId"])
            assert operation["summary"], where
            assert operation["tags"], where
            assert any(status.startswith("2") for status in operation["responses"]), where
            assert {"400", "500", "503"} <= set(operation["responses"]), where
            in_path = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert in_path == set(re.findall(r"{(\w+)}", path)), where
            assert all("schema" in p for p in operation["parameters"]), where
    assert len(names) == len(set(names))


def test_every_reference_resolves_and_every_component_is_used():
    api, _ = fetch_document()
    text = json.dumps(api)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        part = api
        for step in reference.split("/"):
            assert step in part, reference
            part = part[step]
    unused = [name for name in api["components"]["schemas"] if f'#/components/schemas/{name}"' not in text]
    assert not unused


def test_the_document_is_the_same_every_time():
    routes = [*DOCUMENTED, ("*", "/v1/stream/*")]
    assert document(routes) == document(routes)

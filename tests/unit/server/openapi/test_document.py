"""The API's own description: complete, consistent, and safe to show."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re

import pytest

from driftq.server.openapi import page
from driftq.server.openapi.document import DOCUMENTED, Undocumented, document, entries
from tests.support.handler_fixture import handler_fixture


def fetched() -> tuple[dict, list[tuple[str, str]]]:
    async def fetch():
        async with handler_fixture() as at:
            found = (await at.call("GET", "/v1/openapi.json")).body
            # The table behind the app: exact paths, patterns and prefixes.
            app = at.app
            exact = [(method, path.decode()) for path, methods in app._exact.items() for method in methods]
            patterns = [(method, "/" + "/".join(parts)) for parts, methods in app._patterns for method in methods]
            return found, [*exact, *patterns]

    return asyncio.run(fetch())


def test_every_route_is_documented_and_nothing_else_is():
    found, routes = fetched()
    documented = {(m.upper(), path) for path, methods in found["paths"].items() for m in methods}
    streams = {each for each in documented if each[1].startswith("/v1/stream/")}  # all of them are one route
    assert documented - streams == {each for each in routes if each[0] != "HEAD"}, "HEAD is GET without its body"
    assert {method for method, path in streams if path == "/v1/stream/{path}"} == {
        "PUT",
        "POST",
        "GET",
        "HEAD",
        "DELETE",
    }
    assert set(DOCUMENTED) == {each for each in routes if each[0] != "HEAD"}, (
        "an operation without a route is a leftover"
    )


def test_a_route_without_documentation_is_an_error():
    with pytest.raises(Undocumented, match="GET /v1/new"):
        entries([("GET", "/v1/new")])


def test_every_operation_says_what_it_is_takes_and_gives():
    found, _ = fetched()
    names = []
    for path, methods in found["paths"].items():
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


def test_every_reference_leads_somewhere_and_every_component_is_used():
    found, _ = fetched()
    text = json.dumps(found)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        part = found
        for step in reference.split("/"):
            assert step in part, reference
            part = part[step]
    unused = [name for name in found["components"]["schemas"] if f'#/components/schemas/{name}"' not in text]
    assert not unused


def test_the_document_is_the_same_every_time():
    routes = [*DOCUMENTED, ("*", "/v1/stream/*")]
    assert document(routes) == document(routes)


def test_the_page_needs_nothing_from_elsewhere_and_its_policy_fits_it():
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page.PAGE)
    assert "innerHTML" not in page.SCRIPT
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.PAGE, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page.POLICY
    assert page.POLICY.startswith("default-src 'none';")
    assert "unsafe" not in page.POLICY

"""Requests as browsers send them: pages of other origins are refused, listed origins and programs are served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Reply, Server, running

EVIL = "https://evil.example"
APP = "https://app.example"
TEXT = {"Content-Type": "text/plain"}
EVERYTHING = [
    ("GET", "/v1/topics"),
    ("GET", "/v1/healthz"),
    ("GET", "/v1/metrics"),
    ("GET", "/v1/consume?topic=t&group=g&owner=x"),
    ("GET", "/v1/topics/t/partitions/0/messages"),
    ("GET", "/v1/stream/__topics/t/0?offset=-1"),
    ("GET", "/v1/stream/s?offset=-1"),
    ("HEAD", "/v1/stream/s"),
    ("PUT", "/v1/stream/new"),
    ("POST", "/v1/stream/s"),
    ("DELETE", "/v1/stream/s"),
    ("PUT", "/v1/stream/__ds/subscriptions/x"),
    ("GET", "/v1/stream/__ds/jwks.json"),
    ("POST", "/v1/produce?topic=t&value=x"),
    ("POST", "/v1/topics?name=made"),
    ("POST", "/v1/claim?topic=t&group=g&owner=x"),
    ("DELETE", "/v1/topics/t"),
    ("OPTIONS", "/v1/topics"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(
        None,
        f"listen.allowed_origins={APP}",
        "streams.cors_prefixes=public/,__topics/prices/",
        "streams.cors_origins=*",
    ) as started:
        for topic in ("t", "prices"):
            started.call("POST", "/v1/topics", {"name": topic})
        for path in ("s", "public/a", "private"):
            started.call("PUT", f"/v1/stream/{path}", b"hello", TEXT)
        yield started


def allowed(reply: Reply) -> str | None:
    return reply.headers.get("access-control-allow-origin")


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
@pytest.mark.parametrize(
    "marks",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
    ids=lambda marks: " ".join(marks.values()),
)
def test_another_origin_is_refused_on_every_route(server, method, path, marks):
    reply = server.call(method, path, b"{}" if method in ("PUT", "POST") else None, {**TEXT, **marks})
    assert reply.status == 403
    assert allowed(reply) is None


def test_the_refused_requests_had_no_effect(server):
    assert server.call("GET", "/v1/topics").json()["topics"] == ["prices", "t"]
    assert server.call("GET", "/v1/stream/s?offset=-1").body == b"hello"
    assert server.call("GET", "/v1/stream/new?offset=-1").status == 404
    assert server.call("GET", "/v1/groups").json()["groups"] == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/topics"), ("GET", "/v1/stream/s?offset=-1"), ("POST", "/v1/produce?topic=t&value=x")],
)
def test_a_program_and_the_brokers_own_page_are_served(server, method, path):
    own = f"http://127.0.0.1:{server.port}"
    for marks in (
        {},
        {"Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
    ):
        reply = server.call(method, path, None, marks)
        assert reply.status == 200
        assert allowed(reply) is None


def test_a_listed_origin_may_do_everything_and_read_the_answers(server):
    marks = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "empty"}
    for method, path, status in [
        ("GET", "/v1/topics", 200),
        ("PUT", "/v1/stream/app", 201),
        ("GET", "/v1/stream/app?offset=-1", 200),
        ("GET", "/v1/stream/none?offset=-1", 404),
        ("DELETE", "/v1/stream/app", 204),
        ("POST", "/v1/produce?topic=t&value=x", 200),
        ("GET", "/v1/stream/__topics/t/0?offset=-1", 200),
    ]:
        reply = server.call(method, path, None, marks)
        assert (reply.status, allowed(reply), reply.headers["vary"]) == (status, APP, "Origin")
    connection = server.connect()
    connection.request("GET", "/v1/consume?topic=t&group=app&owner=x", headers=marks)
    response = connection.getresponse()
    assert (response.status, response.getheader("Access-Control-Allow-Origin")) == (200, APP)
    connection.close()


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/topics/t", "/v1/stream/s", "/v1/stream/__ds/subscriptions/x"])
def test_the_preflight_of_a_listed_origin_is_answered(server, path):
    marks = {"Origin": APP, "Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "if-match"}
    reply = server.call("OPTIONS", path, None, marks)
    assert (reply.status, allowed(reply)) == (204, APP)
    assert "DELETE" in reply.headers["access-control-allow-methods"]
    assert "If-Match" in reply.headers["access-control-allow-headers"]


def test_the_preflight_of_another_origin_allows_nothing(server):
    marks = {"Origin": EVIL, "Access-Control-Request-Method": "PUT"}
    assert allowed(server.call("OPTIONS", "/v1/stream/s", None, marks)) is None
    assert server.call("OPTIONS", "/v1/topics", None, marks).status == 403
    marks["Access-Control-Request-Method"] = "DELETE"
    assert allowed(server.call("OPTIONS", "/v1/stream/public/a", None, marks)) is None


def test_reads_of_chosen_streams_are_open_to_every_origin_and_nothing_else_is(server):
    marks = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
    for path in ("public/a", "public%2Fa", "__topics/prices/0"):
        reply = server.call("GET", f"/v1/stream/{path}?offset=-1", None, marks)
        assert (reply.status, allowed(reply)) == (200, "*")
    asked = {**marks, "Access-Control-Request-Method": "GET"}
    reply = server.call("OPTIONS", "/v1/stream/public/a", None, asked)
    assert (reply.status, allowed(reply), reply.headers["access-control-allow-methods"]) == (
        204,
        "*",
        "GET, HEAD, OPTIONS",
    )
    for method, path in [
        ("GET", "private?offset=-1"), ("GET", "publicity?offset=-1"), ("GET", "__topics/t/0?offset=-1"),
        ("POST", "public/a"), ("PUT", "public/b"), ("DELETE", "public/a"), ("GET", "__ds/jwks.json"),
    ]:  # fmt: skip
        reply = server.call(
            method, f"/v1/stream/{path}", b"x" if method in ("POST", "PUT") else None, {**TEXT, **marks}
        )
        assert (reply.status, allowed(reply)) == (403, None), path


def test_no_page_or_image_of_any_origin_consumes(server):
    for dest in ("image", "document", "script", "iframe", "Image"):
        for marks in ({}, {"Origin": APP}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            path = "/v1/consume?topic=t&group=image&owner=x"
            assert server.call("GET", path, None, {**marks, "Sec-Fetch-Dest": dest}).status == 403
    assert "image" not in [group["group"] for group in server.call("GET", "/v1/groups").json()["groups"]]


def test_the_host_is_compared_without_case(server):
    for host in ("LOCALHOST", f"LocalHost:{server.port}", f"127.0.0.1:{server.port}"):
        assert server.call("GET", "/v1/topics", None, {"Host": host}).status == 200
    for host in ("evil.example", "localhost.evil.example", "localhost:80:80", ""):
        assert server.call("GET", "/v1/topics", None, {"Host": host}).status == 403

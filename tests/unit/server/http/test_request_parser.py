"""Bytes to requests, without a socket: however the bytes are cut, the requests are the same."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from driftq.server.http import HttpLimits, Request
from driftq.server.http.limits import BODY, HEAD, IDLE, PIECE_BYTES
from driftq.server.http.request_body import BodyBudget
from driftq.server.http.request_head import HEADS_MAX, HeadCache
from driftq.server.http.request_parser import RequestParser
from tests.unit.server.http.listener_fixture import chunked, get, post

SMALL = HttpLimits(target_bytes=64, header_block_bytes=256, header_count=8, body_bytes=1000)


def read(pieces, limits=SMALL, cache=None, budget=None) -> tuple[list[Request], RequestParser]:
    requests: list[Request] = []
    parser = RequestParser(limits, budget or BodyBudget(10_000_000), cache or HeadCache(), "peer", requests.append)
    for piece in pieces:
        parser.feed(memoryview(piece))
    return requests, parser


def values_of(requests: list[Request]) -> list[tuple]:
    return [(r.method, r.path, dict(r.query), dict(r.headers), r.body, r.version, r.keep_alive) for r in requests]


def refusal_of(data: bytes, limits: HttpLimits = SMALL) -> int | None:
    _, parser = read([data], limits)
    return parser.refusal[0] if parser.refusal else None


MESSAGES = st.one_of(
    st.sampled_from(["/", "/a?x=1", "/b%20c"]).map(get),
    st.binary(max_size=40).map(lambda body: post("/p", body)),
    st.lists(st.binary(min_size=1, max_size=20), max_size=4).map(lambda chunks: chunked("/c", *chunks)),
    st.binary(max_size=40).map(lambda body: post("/u", body, "Connection: upgrade", "Upgrade: h2c")),
    st.just(b"\r\n" + get("/after-an-empty-line")),
    st.just(get("/kept", "Connection: keep-alive")),
    st.just(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
    st.just(get("/last", "Connection: close")),
    st.just(b"GET / HTTP/1.1\r\n\r\n"),
    st.just(b"nonsense\r\n\r\n"),
)


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.data())
@example([b"\r\n\r\n", get("/x")], None)
def test_neither_the_cut_of_the_bytes_nor_the_cache_changes_the_requests(messages, data):
    stream = b"".join(messages)
    every_byte = [stream[i : i + 1] for i in range(len(stream))]
    expected, plain = read(every_byte)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6))) if data else []
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)])]
    cache = HeadCache()
    for _ in range(3):  # the second and third time most heads are cached
        requests, parser = read(pieces, cache=cache)
        assert values_of(requests) == values_of(expected)
        assert (parser.refusal is None) == (plain.refusal is None)
        assert parser.refusal is None or plain.refusal is None or parser.refusal[0] == plain.refusal[0]
        assert parser.phase == plain.phase or parser.ended


def test_the_head_cache_is_used_and_bounded():
    cache = HeadCache()
    first, _ = read([get("/a") + get("/a")], cache=cache)
    second, _ = read([get("/a")], cache=cache)
    assert second[0].head is first[0].head
    for number in range(HEADS_MAX + 10):
        read([get(f"/{number}")], cache=cache)
    assert len(cache.by_bytes) <= HEADS_MAX


def test_pipelined_requests_are_looked_up_however_many_arrive_at_once():
    cache = HeadCache()
    messages = [post("/p", b"%04d" % number) for number in range(1_000)]
    read([messages[0]], cache=cache)
    requests, parser = read([b"".join(messages)], cache=cache)
    assert len(b"".join(messages)) > 2 * PIECE_BYTES
    assert [request.body for request in requests] == [b"%04d" % number for number in range(1_000)]
    assert len({id(request.head) for request in requests}) == 1
    assert parser.phase == IDLE


@pytest.mark.parametrize(
    "message",
    [
        chunked("/", b"x"),
        get("/", "Connection: close"),
        post("/", b"x", "Expect: 100-continue"),
        post("/", b"x", "Connection: upgrade", "Upgrade: h2c"),
        b"\r\n" + get("/"),
        get("/" + "x" * 2000),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
)
def test_heads_that_change_how_the_rest_is_read_are_not_cached(message):
    cache = HeadCache()
    requests, _ = read([message], HttpLimits(), cache)
    assert len(requests) == 1
    assert not cache.by_bytes


def test_the_phase_follows_the_bytes():
    requests, parser = read([b"GE"])
    assert parser.phase == HEAD
    parser.feed(memoryview(b"T / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na"))
    assert (parser.phase, parser.body.received) == (BODY, 1)
    parser.feed(memoryview(b"bc"))
    assert parser.phase == IDLE
    assert requests[0].body == b"abc"


@pytest.mark.parametrize(
    ("name", "make", "limit", "status"),
    [
        ("target", lambda n: get("/" + "x" * (n - 1)), 64, 414),
        ("count", lambda n: get("/", *[f"a{i}: b" for i in range(n - 1)]), 8, 431),
        ("repeated", lambda n: get("/", *["a: b"] * (n - 1)), 8, 431),
        ("block", lambda n: get("/", "a: " + "x" * (n - 17)), 256, 431),
        ("length", lambda n: post("/", b"x" * n), 1000, 413),
        ("chunks", lambda n: chunked("/", b"x" * (n - 500), b"y" * 500), 1000, 413),
        ("tiny chunks", lambda n: chunked("/", *[b"x"] * n), 1000, 413),
    ],
)
def test_a_limit_holds_exactly(name, make, limit, status):
    for pieces in ([make(limit)], [make(limit)[i : i + 1] for i in range(len(make(limit)))]):
        requests, parser = read(pieces)
        assert (len(requests), parser.refusal) == (1, None), name
    assert refusal_of(make(limit + 1)) == status
    assert refusal_of(make(limit * 50)) == status


def test_a_body_that_is_too_long_is_refused_before_it_is_sent():
    assert refusal_of(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n") == 413


def test_many_requests_cut_in_their_heads_do_not_count_as_one_long_head():
    stream = b"".join(get(f"/{number}") for number in range(5_000))
    requests, parser = read([stream[i : i + 1000] for i in range(0, len(stream), 1000)])
    assert (len(requests), parser.refusal) == (5_000, None)


@pytest.mark.parametrize("endless", [b"x", b" ", b"a: b\r\n"])
def test_a_head_without_an_end_is_refused_in_bounded_memory(endless):
    _, parser = read([b"GET / HTTP/1.1\r\nHost: a\r\nX:"])
    fed_bytes = 0
    while not parser.ended:
        fed_bytes += parser.feed(memoryview(endless * 1000))
        assert fed_bytes < 100_000
    assert parser.refusal is not None
    assert parser.refusal[0] == 431


@pytest.mark.parametrize("endless", [b"1;" + b"x" * 3000 + b"\r\na\r\n", b"0\r\n" + b"T: x\r\n" * 9000])
def test_chunk_framing_without_an_end_is_refused(endless):
    _, parser = read([b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"], HttpLimits())
    fed_bytes = 0
    while not parser.ended:
        fed_bytes += parser.feed(memoryview(endless))
        assert fed_bytes < 1_000_000
    assert parser.refusal is not None
    assert parser.refusal[0] in (400, 431)


def test_trailers_are_dropped_and_do_not_leak_into_the_next_request():
    message = chunked("/", b"x").removesuffix(b"\r\n") + b"Host: evil\r\nX: y\r\n\r\n"
    requests, _ = read([message + get("/next")])
    assert [dict(request.headers) for request in requests] == [
        {"host": "test", "transfer-encoding": "chunked"},
        {"host": "test"},
    ]


def test_repeated_fields_are_joined_and_single_ones_refused():
    requests, _ = read([get("/", "Accept: a", "ACCEPT: b")])
    assert requests[0].headers["accept"] == "a, b"
    for line in ("Content-Type: a", "Authorization: a", "Origin: a", "Expect: 100-continue"):
        assert refusal_of(get("/", line, line.lower())) == 400


def test_a_whole_url_is_a_path_when_it_names_the_same_host():
    requests, _ = read([get("http://TEST/a?b"), get("http://test"), b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"])
    assert [(r.raw_path, r.raw_query) for r in requests] == [(b"/a", b"b"), (b"/", b""), (b"*", b"")]
    assert refusal_of(get("http://other/a")) == 400


def test_bodies_of_all_connections_share_one_budget_and_give_it_back():
    budget = BodyBudget(150)
    start = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200\r\n\r\n"
    _, first = read([start, b"x" * 100], budget=budget)
    assert budget.used_bytes == 100
    _, second = read([start, b"x" * 100], budget=budget)
    assert second.refusal is not None
    assert second.refusal[0] == 503
    first.body.release()
    assert budget.used_bytes == 0


def test_a_large_body_arrives_whole_and_leaves_no_debt():
    budget = BodyBudget(10_000_000)
    body = bytes(range(256)) * 20_000
    stream = post("/", body) + get("/next")
    requests, _ = read([stream[i : i + 70_000] for i in range(0, len(stream), 70_000)], HttpLimits(), budget=budget)
    assert [request.body == body for request in requests] == [True, False]
    assert budget.used_bytes == 0

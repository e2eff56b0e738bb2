"""Hostile requests over real sockets: each is refused, its connection closes, and nothing after it is served."""

from __future__ import annotations

import pytest

from driftq.server.http import (
    HttpLimits,
)
from tests.unit.server.http.listener_fixture import (
    echo,
    get,
    post,
    running,
    undated,
)


@pytest.fixture(scope="module")
def plain():
    with running(echo) as server:
        yield server


P = b"POST /p HTTP/1.1\r\nHost: a\r\n"
G = b"GET / HTTP/1.1\r\n"
HOSTILE = {
    "length and chunked": (400, P + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked and length": (400, P + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, P + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "the same length twice": (400, P + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "a list of lengths": (400, P + b"Content-Length: 5, 5\r\n\r\nhello"),
    "a signed length": (400, P + b"Content-Length: +5\r\n\r\nhello"),
    "a negative length": (400, P + b"Content-Length: -5\r\n\r\nhello"),
    "a hexadecimal length": (400, P + b"Content-Length: 0x5\r\n\r\nhello"),
    "an empty length": (400, P + b"Content-Length:\r\n\r\nhello"),
    "a length beyond 64 bits": (400, P + b"Content-Length: 99999999999999999999\r\n\r\nhello"),
    "a huge length": (413, P + b"Content-Length: 9999999999999999\r\n\r\nhello"),
    "gzip before chunked": (400, P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked before gzip": (400, P + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "an unknown encoding": (400, P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "identity": (400, P + b"Transfer-Encoding: identity\r\n\r\n"),
    "two encodings": (400, P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": (400, P.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a folded line": (400, G + b"Host: a\r\nX: a\r\n b\r\n\r\n"),
    "a folded first line": (400, G + b" Host: a\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "one bare line feed": (400, G + b"Host: a\nX: b\r\n\r\n"),
    "a bare line feed at the end": (400, G + b"Host: a\r\n\n"),
    "a bare carriage return": (400, G + b"Host: a\rX: b\r\n\r\n"),
    "a zero in a value": (400, G + b"Host: a\r\nX: a\0b\r\n\r\n"),
    "a zero in a name": (400, G + b"Host: a\r\nX\0: b\r\n\r\n"),
    "a blank before the colon": (400, G + b"Host : a\r\n\r\n"),
    "an empty name": (400, G + b"Host: a\r\n: b\r\n\r\n"),
    "no host": (400, G + b"\r\n"),
    "two hosts": (400, G + b"Host: a\r\nHost: b\r\n\r\n"),
    "the same host twice": (400, G + b"Host: a\r\nhOST: a\r\n\r\n"),
    "a chunk longer than it says": (400, P + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n"),
    "a chunk size beyond 64 bits": (400, P + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
    "a huge chunk": (413, P + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b"x" * 2000),
    "a signed chunk size": (400, P + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with 0x": (400, P + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    "a bare line feed after a chunk size": (400, P + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n"),
    "a long target": (414, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "many headers": (431, G + b"Host: a\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(2_000)) + b"\r\n"),
    "long headers": (431, G + b"Host: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"),
    "a fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "another host's URL": (400, b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a proxy request": (400, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    "bytes beyond ASCII in the target": (400, b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a blank in the target": (400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "HTTP/2": (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    "the HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "a version to come": (400, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    "a made-up method": (400, b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a TLS hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "another expectation": (417, P + b"Expect: a-pony\r\nContent-Length: 1\r\n\r\nx"),
    "an upgrade with chunks": (
        400,
        P + b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_and_nothing_is_smuggled_after_it(name):
    status, data = HOSTILE[name]
    with running(limits=HttpLimits(target_bytes=65536, body_bytes=1000)) as server, server.connect() as wire:
        assert wire.ask(get("/first"))[0] == 200
        wire.send(data + get("/smuggled"))
        answer, headers, _ = wire.response()
        assert (answer, headers["connection"]) == (status, "close")
        assert wire.rest() == b""
        assert [request.raw_path for request in server.seen] == [b"/first"]
        with server.connect() as other:
            assert other.ask(get("/other"))[0] == 200


def test_data_after_the_last_request_is_ignored(plain):
    with plain.connect() as wire:
        wire.send(get("/a", "Connection: close") + get("/b"))
        assert undated(wire.rest()).endswith(b"Connection: close\r\n\r\nGET /a ")


def test_a_refused_client_can_send_to_its_end_and_read_the_answer():
    with running(limits=HttpLimits(body_bytes=1000)) as server, server.connect() as wire:
        wire.sock.sendall(post("/", b"x" * 5_000_000))  # a server that just closed would break this with a reset
        assert wire.response()[0] == 413

"""The client's parser of replies agrees with llhttp, whatever the replies and however they are cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import httptools
from hypothesis import given
from hypothesis import strategies as st

from driftq.client.transport.reply_reader import ReplyReader

Parsed = tuple[int, dict[str, str], bytes]

NAMES = st.sampled_from(["X-One", "x-two", "Retry-After", "ETag", "Driftq-Next-Offset"])
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=4)
BODIES = st.binary(max_size=300)


def chunked(body: bytes, cuts: list[int]) -> bytes:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    parts = [body[start:end] for start, end in pairwise(edges)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    status = draw(st.sampled_from([200, 201, 204, 206, 304, 400, 409, 429, 503]))
    body = b"" if status in (204, 304) else draw(BODIES)
    lines = [f"HTTP/1.1 {status} Text of any kind", *(f"{name}: {value}" for name, value in draw(HEADERS).items())]
    data = body
    if draw(st.booleans()) and status not in (204, 304):
        lines.append("Transfer-Encoding: chunked")
        data = chunked(body, draw(st.lists(st.integers(0, 300), max_size=3)))
    elif status not in (204, 304):
        lines.append(f"Content-Length: {len(body)}")
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" if draw(st.booleans()) else b""
    return interim + "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Reference:
    """What llhttp makes of the bytes."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.parsed: list[Parsed] = []
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() >= 200:
            self.parsed.append((self.parser.get_status_code(), self.headers, self.body))


class Ours(ReplyReader):
    def __init__(self) -> None:
        self.parsed: list[Parsed] = []
        super().__init__()

    def on_complete(self) -> None:
        super().on_complete()
        reply = self.reply()
        self.parsed.append((reply.status, reply.headers, bytes(reply.body)))
        self.reset()


@given(st.lists(replies(), min_size=1, max_size=3), st.lists(st.integers(0, 2_000), max_size=6))
def test_both_parsers_see_the_same_replies(stream, cuts):
    data = b"".join(stream)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reference, ours = Reference(), Ours()
    for start, end in pairwise(edges):
        reference.parser.feed_data(data[start:end])
        ours.feed(data[start:end])
    assert ours.parsed == reference.parsed
    assert len(ours.parsed) == len(stream)

"""Server-sent events as a browser reads them."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from driftq.server.streams.sse import control_event, data_event, data_event_piece


def parsed(raw: bytes) -> list[tuple[str, str]]:
    """Events as a browser reads them: CR, LF and CRLF end a line, one space after the colon is dropped."""
    events, kind, lines = [], "", []
    for line in raw.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, _, value = line.partition(":")
        if not line and (kind or lines):
            events.append((kind, "\n".join(lines)))
            kind, lines = "", []
        elif name == "event":
            kind = value.removeprefix(" ")
        elif name == "data":
            lines.append(value.removeprefix(" "))
    return events


@given(st.text())
@example(" a leading space")
@example("one\r\n two\rthree\n")
@example("x\n\nevent: control\ndata:{}\n\n")
def test_text_keeps_its_lines_and_cannot_inject_an_event(text):
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = data_event(text.encode(), as_base64=False) + control_event(1, "7", up_to_date=True, closed=False)
    events = parsed(raw)
    assert events[0] == ("data", expected)
    assert [kind for kind, _ in events] == ["data", "control"]


@given(st.binary())
def test_bytes_are_sent_as_base64(data):
    ((kind, text),) = parsed(data_event(data, as_base64=True))
    assert (kind, base64.b64decode(text)) == ("data", data)


@given(
    payload=st.lists(st.sampled_from([b"a", b" ", b"\r", b"\n", b"\r\n", b"data:", b"\xff"])).map(b"".join),
    size=st.integers(3, 12),
    as_base64=st.booleans(),
)
def test_the_pieces_of_an_event_are_together_the_event(payload, size, as_base64):
    pieces, position = [], 0
    while position < len(payload) or not pieces:
        piece, position = data_event_piece(payload, position, size, as_base64=as_base64)
        pieces.append(piece)
        assert len(piece) <= 7 * size + 30
    assert b"".join(pieces) == data_event(payload, as_base64=as_base64)


@pytest.mark.serial  # compares times
@pytest.mark.parametrize("text", [b"x" * 2_000_000, (b"y" * 80 + b"\n") * 25_000], ids=["one line", "lines"])
def test_text_is_framed_about_as_fast_as_base64(text):
    """Hundreds of readers that catch up with a stream at once would hold the event loop otherwise."""

    def cost_s(as_base64: bool) -> float:
        position, started_s = 0, time.thread_time()
        while position < len(text):
            _, position = data_event_piece(text, position, 48_000, as_base64=as_base64)
        return time.thread_time() - started_s

    text_s = base64_s = float("inf")
    for _ in range(10):
        text_s, base64_s = min(text_s, cost_s(False)), min(base64_s, cost_s(True))
    assert text_s < 3 * base64_s

"""Server-sent events as a browser reads them."""

from __future__ import annotations

import base64

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

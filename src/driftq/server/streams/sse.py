"""Server-sent events (SSE) as bytes: a data event, and the control event that follows it.

Pure. Text and JSON are sent as they are, one `data:` line per line; other bytes as base64, each event on its own.
"""

from __future__ import annotations

import base64

from msgspec import json

from driftq.wire.streams import token


def data_event(payload: bytes, *, as_base64: bool) -> bytes:
    if as_base64:
        return b"event: data\ndata:%b\n\n" % base64.b64encode(payload)
    return b"event: data\ndata:%b%b\n\n" % (_second_space(payload, 0), _lines(payload))


def data_event_piece(payload: bytes | memoryview, position: int, size: int, *, as_base64: bool) -> tuple[bytes, int]:
    """The piece of a data event that begins at `position` of the payload and covers about `size` bytes of it, and where
    the next piece begins. The pieces of a payload that is not empty are, together, its `data_event`."""
    end = min(len(payload), position + size - size % 3)
    if as_base64:
        piece = base64.b64encode(payload[position:end])
    else:
        if payload[end - 1 : end + 1] == b"\r\n":
            end += 1
        piece = _lines(bytes(payload[position:end]))
        if payload[end - 1 : end] in (b"\r", b"\n"):
            piece += _second_space(payload, end)
    if position == 0:
        piece = b"event: data\ndata:" + (b"" if as_base64 else _second_space(payload, 0)) + piece
    return (piece + b"\n\n" if end == len(payload) else piece), end


def _lines(text: bytes) -> bytes:
    """A `data:` before each line but the first. Everything that a client could take for a line end is one here, so that
    a payload cannot inject events. Streams of events are much of what a server sends, so nothing looks at single
    lines."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\n" in text:
        text = text.replace(b"\n", b"\ndata:").replace(b"\ndata: ", b"\ndata:  ")
    return text


def _second_space(payload: bytes | memoryview, position: int) -> bytes:
    """A client drops one space after the colon, so a line that begins with a space gets another one."""
    return b" " if payload[position : position + 1] == b" " else b""


def control_event(next_offset: int, cursor: str, *, up_to_date: bool, closed: bool) -> bytes:
    fields: dict[str, object] = {"streamNextOffset": token(next_offset)}
    if closed:
        fields["streamClosed"] = True
    else:
        fields["streamCursor"] = cursor
        if up_to_date:
            fields["upToDate"] = True
    return b"event: control\ndata:%b\n\n" % json.encode(fields)

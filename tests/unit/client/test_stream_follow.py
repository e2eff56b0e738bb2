"""A follower of a stream, driven by hand: connections break in the worst places, and nothing is doubled or lost."""

from __future__ import annotations

from typing import Any

from driftq.client.errors import OutcomeUnknown
from driftq.client.streams.stream import Stream
from driftq.client.transport.http import parse_address
from driftq.client.transport.sansio import CloseConnection, Open, ReadMore, Sleep, Yield, resume, start, throw
from driftq.client.transport.sync_transport import Transport


class Arriving:
    """The head of a reply that lasts."""

    status = 200

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}


def control(offset: str, **more: bool) -> bytes:
    extra = "".join(f',"{name}":true' for name in more)
    return f'event: control\ndata:{{"streamNextOffset":"{offset}"{extra}}}\n\n'.encode()


def listened(*happenings: bytes | Exception) -> tuple[list[bytes], list[str]]:
    """What a follower gives, and from where it asked each time, when these bytes and errors come to it."""
    stream = Stream(Transport(parse_address("http://127.0.0.1:1")), "s", "text/plain")
    flow = stream._follow_sse("0", "text/plain")
    rest = list(happenings)
    given: list[bytes] = []
    asked: list[str] = []
    step: Any = start(flow)
    while isinstance(step, Open | ReadMore | Yield | CloseConnection | Sleep):
        match step:
            case Open(call, _):
                asked.append(call.path.rpartition("offset=")[2])
                step = resume(flow, Arriving())
            case ReadMore():
                what = rest.pop(0) if rest else b""
                step = throw(flow, what) if isinstance(what, OutcomeUnknown) else resume(flow, what)
            case Yield(chunk):
                given.append(chunk.data)
                step = resume(flow, None)
            case _:
                step = resume(flow, None)
    return given, asked


def test_data_whose_control_event_was_lost_is_taken_from_the_next_connection_alone():
    given, asked = listened(
        b"event: data\ndata:one\n\n" + control("1"),
        b"event: data\ndata:two\n\n",
        OutcomeUnknown("the broker hung up"),
        b"event: data\ndata:two\n\n" + control("2", streamClosed=True),
    )
    assert given == [b"one", b"two"]
    assert asked == ["0", "1"]


def test_an_event_in_many_pieces_is_one():
    whole = b"event: data\ndata:a\ndata:b\n\n" + control("1", streamClosed=True)
    given, _ = listened(*(whole[at : at + 1] for at in range(len(whole))))
    assert given == [b"a\nb"]

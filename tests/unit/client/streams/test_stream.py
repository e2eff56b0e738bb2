"""Following a stream through broken connections: nothing is duplicated or lost."""

from __future__ import annotations

from typing import Any

from driftq.client.errors import OutcomeUnknown
from driftq.client.streams.stream import Stream
from driftq.client.transport.http import parse_address
from driftq.client.transport.sansio import CloseConnection, Open, ReadMore, Sleep, Yield, resume, start, throw
from driftq.client.transport.sync_transport import Transport


class FakeLiveReply:
    """The head of a live reply."""

    status = 200

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}


def control(offset: str, **more: bool) -> bytes:
    extra = "".join(f',"{name}":true' for name in more)
    return f'event: control\ndata:{{"streamNextOffset":"{offset}"{extra}}}\n\n'.encode()


def follow(*results: bytes | Exception) -> tuple[list[bytes], list[str]]:
    """The chunks of a follower and the offsets it connected at, if its reads have these results."""
    stream = Stream(Transport(parse_address("http://127.0.0.1:1")), "s", "text/plain")
    flow = stream._follow_sse("0", "text/plain")
    rest = list(results)
    chunks: list[bytes] = []
    offsets: list[str] = []
    step: Any = start(flow)
    while isinstance(step, Open | ReadMore | Yield | CloseConnection | Sleep):
        match step:
            case Open(call, _):
                offsets.append(call.path.rpartition("offset=")[2])
                step = resume(flow, FakeLiveReply())
            case ReadMore():
                result = rest.pop(0) if rest else b""
                step = throw(flow, result) if isinstance(result, OutcomeUnknown) else resume(flow, result)
            case Yield(chunk):
                chunks.append(chunk.data)
                step = resume(flow, None)
            case _:
                step = resume(flow, None)
    return chunks, offsets


def test_an_incomplete_chunk_is_taken_from_the_next_connection_only():
    chunks, offsets = follow(
        b"event: data\ndata:one\n\n" + control("1"),
        b"event: data\ndata:two\n\n",
        OutcomeUnknown("reset"),
        b"event: data\ndata:two\n\n" + control("2", streamClosed=True),
    )
    assert chunks == [b"one", b"two"]
    assert offsets == ["0", "1"]


def test_an_event_may_arrive_in_many_pieces():
    whole = b"event: data\ndata:a\ndata:b\n\n" + control("1", streamClosed=True)
    chunks, _ = follow(*(whole[at : at + 1] for at in range(len(whole))))
    assert chunks == [b"a\nb"]

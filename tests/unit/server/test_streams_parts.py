"""The parts of the streams face that need no server: events, cursors, signatures, addresses, and waiting for a turn."""

from __future__ import annotations

import asyncio
import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.model.queries import ReadStream
from driftq.core.model.replies import Rejected, StreamAppended
from driftq.engine.engine import Engine
from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.outbound.client import OutboundClient
from driftq.server.settings import Settings
from driftq.server.streams.reorder_buffer import PER_PRODUCER_MAX, ReorderBuffer
from driftq.server.streams.responses import next_cursor
from driftq.server.streams.sse import control_event, data_event
from driftq.server.streams.stream_body import Form
from driftq.server.streams.tails import Arrival, LiveTails
from driftq.server.streams.webhooks import Signer, check_url
from driftq.wire.records import pack_one

# --- events -----------------------------------------------------------------------------------------------------------


def parsed(raw: bytes) -> list[tuple[str, str]]:
    """Events as a browser reads them: CR, LF and CRLF end a line, one blank behind the colon is dropped."""
    found, kind, lines = [], "", []
    for line in raw.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        name, _, value = line.partition(":")
        if not line and (kind or lines):
            found.append((kind, "\n".join(lines)))
            kind, lines = "", []
        elif name == "event":
            kind = value.removeprefix(" ")
        elif name == "data":
            lines.append(value.removeprefix(" "))
    return found


@given(st.text())
@example(" a blank in front")
@example("one\r\n two\rthree\n")
@example("x\n\nevent: control\ndata:{}\n\n")
def test_text_arrives_with_its_lines_and_cannot_speak_for_the_server(text):
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    raw = data_event(text.encode(), as_base64=False) + control_event(1, "7", up_to_date=True, closed=False)
    events = parsed(raw)
    assert events[0] == ("data", expected)
    assert [kind for kind, _ in events] == ["data", "control"]


@given(st.binary())
def test_bytes_arrive_as_base64_of_their_own(data):
    ((kind, text),) = parsed(data_event(data, as_base64=True))
    assert (kind, base64.b64decode(text)) == ("data", data)


def test_a_cursor_never_stands_still():
    current = next_cursor(None)
    assert next_cursor("0") == current
    assert int(next_cursor(current)) > int(current)
    assert int(next_cursor(str(int(current) + 5))) > int(current) + 5
    assert next_cursor("nonsense") == current


# --- signatures and addresses -----------------------------------------------------------------------------------------


def test_a_signature_can_be_checked_with_the_published_key():
    signer = Signer(b"secret")
    head, kid, signature = signer.signature(b"body", 1_700_000_000).split(",")
    (key,) = signer.jwks["keys"]
    assert (head, kid) == ("t=1700000000", f"kid={key['kid']}")
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(key["x"] + "="))
    public.verify(base64.urlsafe_b64decode(signature.removeprefix("ed25519=") + "=="), b"1700000000.body")
    assert Signer(b"secret").kid == signer.kid
    assert Signer(b"other").kid != signer.kid


def test_a_token_is_good_for_its_subscription_and_tells_its_generation():
    signer = Signer(b"secret")
    token = signer.token("s", 7)
    assert signer.generation_of(token, "s") == 7
    assert signer.generation_of(token, "t") is None
    for forged in ("", "7", "7.", "8." + token.partition(".")[2], token[:-1], "x" + token, token + "é"):
        assert signer.generation_of(forged, "s") is None
    assert Signer(b"other").generation_of(token, "s") is None


@pytest.mark.parametrize(
    "url", ["https://example.org/hook", "http://localhost:9/x", "http://127.0.0.1:9", "https://1.1.1.1/"]
)
def test_a_webhook_may_live_at(url):
    check_url(url, OutboundClient(Settings()))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/", "http://10.0.0.1/", "https://10.0.0.1/", "https://169.254.169.254/latest", "https://[::1]/",
        "https://localhost/", "https://a.localhost/", "ftp://example.org/", "nonsense", "https://", "https://[fe80::1]/",
        "https://u:p@example.org/", "https://example.org:99999/", "http://127.0.0.1.example.org/",
        "http://127.0.0.1:8080/v1/topics", "http://localhost:8080/", "https://example.org/caf\u00e9",
        "https://caf\u00e9.example/", "https://example.org/a b", "https://example.org/\r\nX: y", "http://0.0.0.0:9/",
    ],
)  # fmt: skip
def test_a_webhook_may_not_live_at(url):
    with pytest.raises(AddressRefused):
        check_url(url, OutboundClient(Settings()))


# --- the live end of a log --------------------------------------------------------------------------------------------


class Collecting:
    """A reader that takes everything."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.seen: list[tuple[bytes, bool]] = []
        self.gone = False

    def take(self, arrival: Arrival) -> bool:
        self.seen.append((arrival.chunk.body() if arrival.chunk is not None else b"", arrival.closed))
        self.offset = arrival.end
        return not arrival.closed

    def end(self) -> None:
        self.gone = True


async def followed(commands: list[c.Command], max_bytes: int = 1 << 20) -> Collecting:
    """What a reader at the end of an empty stream gets to see of commands that become durable together."""
    engine = Engine.in_memory()
    tails = LiveTails(engine, max_bytes)
    ready = await engine.submit(c.CreateStream("s", "text/plain"))
    tail = tails.enter(ready.log_id, Form.BYTES)
    tail.know(await engine.submit(ReadStream("s")))
    reader = Collecting(0)
    tail.join(reader)
    await asyncio.gather(*(engine.submit(command) for command in commands))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tails.leave(tail)
    await engine.close()
    return reader


def plain(text: bytes, *, close: bool = False) -> c.AppendStream:
    return c.AppendStream("s", "text/plain", pack_one(text) if text else b"", bool(text), len(text), close=close)


def test_what_became_durable_together_arrives_together():
    reader = asyncio.run(followed([plain(b"a"), plain(b"b"), plain(b"c", close=True)]))
    assert reader.seen == [(b"abc", True)]


def test_the_end_is_told_with_the_last_piece_and_not_before():
    reader = asyncio.run(followed([plain(b"a"), plain(b"b"), plain(b"c"), plain(b"", close=True)], 1))
    assert reader.seen == [(b"a", False), (b"b", False), (b"c", True)]


def test_a_close_without_data_is_told_alone():
    assert asyncio.run(followed([plain(b"", close=True)])).seen == [(b"", True)]


def test_a_log_that_goes_away_ends_its_readers():
    reader = asyncio.run(followed([plain(b"a"), c.DeleteStream("s")]))
    assert reader.gone


# --- waiting for a turn -----------------------------------------------------------------------------------------------


def append(seq: int, producer: str = "p", epoch: int = 0, path: str = "s") -> c.AppendStream:
    value = b"%d" % seq
    return c.AppendStream(
        path, "text/plain", pack_one(value), 1, len(value), ProducerSequence(producer, epoch, seq, seq)
    )


async def parked(sequence: list[c.AppendStream], park_ms: int = 50) -> list[object]:
    """The replies of appends submitted in this order, by order of arrival."""
    engine = Engine.in_memory()
    await engine.submit(c.CreateStream("s", "text/plain"))
    parking = ReorderBuffer(engine, park_ms)
    waiting = []
    for command in sequence:
        reply = asyncio.get_running_loop().create_future()
        parking.submit(command, reply.set_result)
        waiting.append(reply)
    replies = await asyncio.gather(*waiting)
    assert not parking._parked
    assert not parking._bytes
    await engine.close()
    return replies


def test_early_batches_go_when_the_one_before_has_gone():
    replies = asyncio.run(parked([append(seq) for seq in (2, 4, 1, 3, 0)], 60_000))
    assert [reply.first_offset for reply in replies] == [2, 4, 1, 3, 0]


def test_producers_do_not_wait_for_each_other():
    replies = asyncio.run(parked([append(1, "a"), append(0, "b"), append(0, "a")], 60_000))
    assert [reply.first_offset for reply in replies] == [2, 0, 1]


def test_the_second_batch_of_a_new_epoch_waits_for_its_first():
    order = [append(0), append(1, epoch=1), append(0, epoch=1)]
    replies = asyncio.run(parked(order, 60_000))
    assert [reply.first_offset for reply in replies] == [0, 2, 1]


def test_two_copies_of_an_early_batch_are_one_append():
    replies = asyncio.run(parked([append(1), append(1), append(0)], 60_000))
    assert sorted(reply.duplicate for reply in replies) == [False, False, True]


def test_patience_ends_and_so_does_room():
    late = asyncio.run(parked([append(1)], 20))
    assert isinstance(late[0], Rejected)
    crowd = asyncio.run(parked([append(seq) for seq in range(1, PER_PRODUCER_MAX + 3)] + [append(0)], 60_000))
    assert [isinstance(reply, Rejected) for reply in crowd] == [False] * PER_PRODUCER_MAX + [True, True, False]
    assert isinstance(asyncio.run(parked([append(1)], 0))[0], Rejected)


def test_an_append_to_nowhere_is_refused_at_once():
    (reply,) = asyncio.run(parked([append(3, path="none")], 60_000))
    assert isinstance(reply, Rejected)
    assert isinstance(asyncio.run(parked([append(0)]))[0], StreamAppended)

"""The reply to a claim. It is made when the client takes it, so that a client that does not read takes little memory.

    JSON, small      the first piece is all of it: a response with a length
    JSON, large      pieces, each some messages; what was not sent when the client disconnects is released, without
                     counting an attempt
    packed           the batches as they are stored, in one body; without messages if there is no memory for it

Records that cannot be read are skipped and set aside. If no message can be read, the claim gets the error instead,
unless it also acked something.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import json
from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.server.deliveries import DeliveryLines, PackedClaim, give_back, refused_items, set_aside
from driftq.server.handlers.codec import refused
from driftq.server.http import LazyReply, PieceResponse, Response
from driftq.server.http.output_budget import PIECE_BYTES, SMALL_BODY_BYTES
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.core.model.replies import Claimed, Delivery
    from driftq.engine.engine import Engine

logger = logging.getLogger("driftq.claims")


def claim_reply(engine: Engine, claim: c.Claim, claimed: Claimed, bytes_max: int) -> LazyReply:
    """The reply to a claim that is durable, as JSON. What has no room in `bytes_max` is given back: the broker
    estimates the sizes when it decides what is claimed, and JSON may escape."""
    pieces = ClaimPieces(engine, claim, claimed, bytes_max)
    return LazyReply(lambda _: pieces.reply(), pieces.close)


def packed_claim_reply(engine: Engine, claim: c.Claim, claimed: Claimed, body: PackedClaim) -> Response | LazyReply:
    """The packed reply to a claim. If there is no memory for it, it has no messages, and they are given back."""
    response = body.response()
    if response.size_bytes() <= SMALL_BODY_BYTES:
        return response

    def make(size_max: int) -> Response:
        if response.size_bytes() <= size_max:
            return response
        give_all_back()
        return PackedClaim(claimed, 0).response()

    def give_all_back() -> None:
        give_back(engine, claim, claimed.deliveries, claimed.token)

    return LazyReply(make, give_all_back)


def _set_aside(
    engine: Engine, claim: c.Claim, claimed: Claimed, delivery: Delivery, damaged_at: int, error: CorruptLog
) -> int:
    """Set the damaged records at an offset aside. Returns where to continue."""
    logger.error("not delivered: %s", error)
    end = min(delivery.end, max(damaged_at + 1, error.end_offset))
    set_aside(engine, claim, c.Held(delivery.partition, damaged_at, end, claimed.token))
    return end


def corrupt(damage: CorruptLog) -> Response:
    """The error of a claim none of whose messages can be read."""
    return refused(Code.DATA_CORRUPT, f"{damage}; run `driftq inspect verify` on the data folder")


class ClaimPieces:
    """A `ClaimReply`, around messages that are JSON already."""

    def __init__(self, engine: Engine, claim: c.Claim, claimed: Claimed, bytes_max: int) -> None:
        self._engine = engine
        self._claim = claim
        self._claimed = claimed
        self._deliveries = list(reversed(claimed.deliveries))  # not yet sent, the next one last
        self._messages: DeliveryLines | None = None  # of the next delivery
        self._left_bytes = bytes_max  # what the reply has room for; the first message always fits
        self._count = 0  # messages in the pieces up to now
        self._ended = False
        self._damage: CorruptLog | None = None

    @property
    def held_bytes(self) -> int:
        return self._messages.held_bytes if self._messages is not None else 0

    def reply(self) -> Response | PieceResponse:
        first = self.next_piece()
        if not self._ended:
            return PieceResponse(200, _After(first, self))
        if self._damage is not None and not self._count and not self._claim.acks:
            return corrupt(self._damage)
        return Response(200, first)

    def next_piece(self) -> bytes:
        if self._ended:
            return b""
        messages: list[bytes] = []
        size = 0
        while size < PIECE_BYTES and not self._ended:
            if not self._deliveries:
                self._ended = True
                break
            taken = self._take(min(PIECE_BYTES - size, self._left_bytes + 1))
            taken_bytes = sum(map(len, taken))
            if taken_bytes > self._left_bytes and (self._count or messages or len(taken) > 1):
                taken_bytes -= len(taken.pop())
                self._give_back_rest()
            self._left_bytes -= taken_bytes
            messages += taken
            size += taken_bytes
        start = b'{"messages":[' if not self._count else b"," if messages else b""
        self._count += len(messages)
        return start + b",".join(messages) + (self._tail() if self._ended else b"")

    def _tail(self) -> bytes:
        claimed = self._claimed
        until = json.encode(to_rfc3339(claimed.until_ms) if claimed.deliveries else "")
        refused_acks = b',"refused":' + json.encode(refused_items(claimed.refused)) if claimed.refused else b""
        return b'],"token":%b,"lease_until":%b%b}\n' % (json.encode(claimed.token), until, refused_acks)

    def _take(self, size_bytes: int) -> list[bytes]:
        """Messages of the next delivery; none if it has ended."""
        if self._messages is None:
            claimed = self._claimed
            self._messages = DeliveryLines(self._engine, self._deliveries[-1], claimed.token, claimed.until_ms)
        try:
            messages = self._messages.take(size_bytes)
        except CorruptLog as error:
            self._skip(error)
            return []
        except ColdRange:
            self.close()  # its records have left the cache: the rest goes back
            return []
        if not messages:
            self._deliveries.pop()
            self._messages = None
        return messages

    def _give_back_rest(self) -> None:
        """The last message that was taken has no room in the reply."""
        assert self._messages is not None
        self._messages.untake()
        self.close()

    def _skip(self, error: CorruptLog) -> None:
        """The next message cannot be read."""
        assert self._messages is not None
        self._damage = error
        delivery = self._deliveries.pop()
        end = _set_aside(self._engine, self._claim, self._claimed, delivery, self._messages.offset, error)
        if end < delivery.end:
            self._deliveries.append(replace(delivery, first=end))
        self._messages = None

    def drop(self) -> None:
        if self._messages is not None:
            self._messages.drop()

    def close(self) -> None:
        """Release what was claimed and not sent."""
        unsent = self._deliveries[::-1]
        if unsent and self._messages is not None:
            unsent[0] = replace(unsent[0], first=self._messages.offset)
        self._deliveries, self._messages, self._ended = [], None, True
        give_back(self._engine, self._claim, [run for run in unsent if run.first < run.end], self._claimed.token)


class _After:
    """Pieces after a first one that is made already."""

    def __init__(self, first: bytes, rest: ClaimPieces) -> None:
        self._first = first
        self._rest = rest

    @property
    def held_bytes(self) -> int:
        return self._rest.held_bytes

    def next_piece(self) -> bytes:
        first, self._first = self._first, b""
        return first or self._rest.next_piece()

    def drop(self) -> None:
        self._rest.drop()

    def close(self) -> None:
        self._rest.close()

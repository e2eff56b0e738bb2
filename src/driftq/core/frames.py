"""Facts as bytes: one command's facts are one frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from driftq.core import activity as a
from driftq.core import facts as f
from driftq.core import images as i
from driftq.core import outcomes as o
from driftq.core import wakes as w
from driftq.core.timers import ClockSet

AnyFact = (
    f.TopicCreated
    | f.TopicConfigured
    | f.TopicDeleted
    | f.Appended
    | f.Trimmed
    | f.HoleMade
    | f.RecordsLost
    | ClockSet
    | f.StreamCreated
    | f.StreamClosed
    | f.StreamDeleted
    | f.StreamTouched
    | f.GroupCreated
    | f.GroupSought
    | f.GroupPaused
    | f.GroupDeleted
    | a.GroupIdled
    | a.GroupCaughtUp
    | f.Leased
    | f.Extended
    | f.Failed
    | f.FailureExplained
    | f.Released
    | f.Settled
    | f.Cancelled
    | f.FilterNoted
    | f.KeyBegun
    | f.KeyCommitted
    | f.KeyFailed
    | f.KeysSwept
    | o.OutcomeRecorded
    | o.OutcomesForgotten
    | f.Staged
    | f.Published
    | f.StagesForgotten
    | i.NumbersPlaced
    | i.TopicPlaced
    | i.LogPlaced
    | i.ProducerPlaced
    | i.StreamPlaced
    | i.GroupPlaced
    | i.CursorPlaced
    | i.SettledPlaced
    | i.HeldPlaced
    | i.EntryPlaced
    | i.KeyPlaced
    | i.EffectPlaced
    | i.StagePlaced
    | i.WriterPlaced
    | i.HistoryPlaced
    | w.SubscriptionCreated
    | w.SubscriptionDeleted
    | w.SubscriptionLinked
    | w.SubscriptionUnlinked
    | w.WakeMade
    | w.WakeHeld
    | w.WakeEnded
    | w.SigningKeyMade
    | w.SubscriptionPlaced
)


class UnknownFact(Exception):
    """The frame was written by a newer version, or is not a frame."""


encode: Callable[[Sequence[f.Fact]], bytes] = msgspec.msgpack.Encoder().encode
encode_one: Callable[[f.Fact], bytes] = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[AnyFact])


def join(encoded: Sequence[bytes]) -> bytes:
    """A frame of facts that are encoded already."""
    return msgspec.msgpack.encode([msgspec.Raw(fact) for fact in encoded])


def decode(frame: bytes) -> list[AnyFact]:
    try:
        return _decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise UnknownFact(f"not a frame this version can read: {error}") from None

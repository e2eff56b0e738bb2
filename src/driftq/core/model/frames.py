"""Facts as bytes: one command's facts are one frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from driftq.core.model import facts as f
from driftq.core.model import snapshot_facts as i
from driftq.core.model import subscriptions as w
from driftq.core.state import groups as a
from driftq.core.state import outcomes as o
from driftq.core.state.clock_correction import ClockSet

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
    | i.NumbersState
    | i.TopicState
    | i.LogState
    | i.ProducerEntryState
    | i.StreamState
    | i.GroupState
    | i.CursorState
    | i.SettledState
    | i.HeldState
    | i.EntryState
    | i.KeyState
    | i.EffectState
    | i.StageState
    | i.WriterState
    | i.HistoryState
    | w.SubscriptionCreated
    | w.SubscriptionDeleted
    | w.SubscriptionLinked
    | w.SubscriptionUnlinked
    | w.WakeMade
    | w.WakeHeld
    | w.WakeEnded
    | w.SigningKeyMade
    | w.SubscriptionState
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

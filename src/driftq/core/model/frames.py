"""Facts as bytes: the facts of one command are one frame.

`AnyFact` lists every fact that a journal or a snapshot may hold. Frames are msgpack arrays of tagged arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from driftq.core.model import access_facts as a
from driftq.core.model import effect_facts as e
from driftq.core.model import facts as f
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_facts as j
from driftq.core.model import schedule_facts as c
from driftq.core.model import snapshot_facts as i
from driftq.core.model import stream_facts as s
from driftq.core.model import tenant_facts as t

AnyFact = (
    f.TopicCreated
    | f.TopicConfigured
    | f.TopicDeleted
    | f.Appended
    | f.Trimmed
    | f.HoleMade
    | f.RecordsLost
    | f.ClockSet
    | s.StreamCreated
    | s.StreamClosed
    | s.StreamDeleted
    | s.StreamTouched
    | f.GroupCreated
    | f.GroupSought
    | f.GroupPaused
    | f.GroupDeleted
    | f.GroupIdled
    | f.GroupCaughtUp
    | f.Leased
    | f.Extended
    | f.Failed
    | f.FailureExplained
    | f.Released
    | f.Settled
    | f.Cancelled
    | f.FilterNoted
    | e.KeyBegun
    | e.KeyCommitted
    | e.KeyFailed
    | e.EffectsChecked
    | e.KeysSwept
    | e.OutcomeRecorded
    | e.OutcomesForgotten
    | j.ResultStored
    | j.ResultsForgotten
    | j.ProgressReported
    | b.JobBatchCreated
    | b.JobBatchAdded
    | b.JobBatchSealed
    | b.JobBatchCancelled
    | b.JobBatchMembersEnded
    | b.JobBatchStepStarted
    | b.JobBatchEnded
    | b.JobBatchesForgotten
    | b.JobBatchState
    | b.JobBatchMembersState
    | j.MadeDue
    | e.Staged
    | e.Published
    | e.StagesForgotten
    | i.NumbersState
    | i.TopicState
    | i.LogState
    | i.ProducerEntryState
    | i.StreamState
    | i.PlainStreamsState
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
    | s.SubscriptionCreated
    | s.SubscriptionDeleted
    | s.SubscriptionLinked
    | s.SubscriptionUnlinked
    | s.WakeMade
    | s.WakeHeld
    | s.WakeEnded
    | s.SigningKeyMade
    | s.SubscriptionState
    | a.AccessTokenCreated
    | a.AccessTokenNarrowed
    | a.AccessTokenRotated
    | a.AccessTokenRevoked
    | a.AccessTokensUsed
    | a.AccessTokenState
    | t.TenantCreated
    | t.TenantChanged
    | t.TenantDeleted
    | t.TenantSnapshot
    | c.ScheduleCreated
    | c.ScheduleChanged
    | c.SchedulePaused
    | c.ScheduleDeleted
    | c.SchedulePlanned
    | c.SchedulesOverdue
    | c.ScheduleFired
    | c.ScheduleMissed
    | c.ScheduleDelayed
    | c.ScheduleState
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

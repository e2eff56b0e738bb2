"""The outcomes that were carried out, so that one sent again is answered with the first result. The facts (tags 43 and
44) evolve as `core.model.facts` says.

An outcome is recognised by what can happen once only: the lease tokens of its acks, the fences of its commits, the
producers of its appends; or by an idempotency key. The table is a queue in order of time. Entries past their time count
as absent and are dropped by the sweep. Past `BYTES_MAX` the oldest are dropped early, which is safe: the repeat of a
forgotten outcome is refused by its fences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import Struct, msgpack

from driftq.core.model.effect_facts import OutcomeRecorded, OutcomesForgotten
from driftq.core.model.replies import OutcomeReply, Produced, StreamAppended
from driftq.core.state.idempotency import effect_scope

if TYPE_CHECKING:
    from driftq.core.model.commands import CommitOutcome, Held
    from driftq.core.state.deadlines import Deadlines

BYTES_MAX = 256 << 20
ENTRY_BYTES = 250  # what an entry costs beside its result
SWEEP_EVERY_MS = 10_000  # expired outcomes are dropped together, this often
_HASH_BYTES = 16


class KnownOutcome(Struct, frozen=True, gc=False):
    digest: bytes
    expires_ms: int
    at_ms: int
    result: bytes


class Outcomes:
    """Outcomes by identity, the oldest first."""

    __slots__ = ("_deadlines", "_known", "folds", "size_bytes")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._known: OrderedDict[bytes, KnownOutcome] = OrderedDict()
        self.size_bytes = 0
        self.folds: dict[type, Callable[[Any], None]] = {
            OutcomeRecorded: self._remember,
            OutcomesForgotten: lambda fact: self._forget(fact.count),
        }

    def __len__(self) -> int:
        return len(self._known)

    def find(self, outcome: bytes, now_ms: int) -> KnownOutcome | None:
        known = self._known.get(outcome)
        return known if known is not None and known.expires_ms > now_ms else None

    def _remember(self, fact: OutcomeRecorded) -> None:
        expired = self._known.pop(fact.outcome, None)  # an idempotency key may be used again after its time
        self._known[fact.outcome] = KnownOutcome(fact.digest, fact.expires_ms, fact.at_ms, fact.result)
        self.size_bytes += _size(fact.result) - (_size(expired.result) if expired is not None else 0)
        while self.size_bytes > BYTES_MAX and len(self._known) > 1:
            self._forget(1)
        self._deadlines.push(("outcomes", 0, 0), self.next_ms())

    def _forget(self, count: int) -> None:
        """Drop the oldest."""
        for _ in range(count):
            _, known = self._known.popitem(last=False)
            self.size_bytes -= _size(known.result)

    def expired(self, now_ms: int, most: int) -> int:
        """How many of the oldest have expired; at most `most` are counted."""
        count = 0
        for known in self._known.values():
            if count == most or known.expires_ms > now_ms:
                break
            count += 1
        return count

    def next_ms(self) -> int | None:
        """When to look for expired ones."""
        oldest = next(iter(self._known.values()), None)
        return (oldest.expires_ms // SWEEP_EVERY_MS + 1) * SWEEP_EVERY_MS if oldest is not None else None

    def snapshot(self) -> Iterator[OutcomeRecorded]:
        for outcome, known in self._known.items():
            yield OutcomeRecorded(outcome, known.digest, known.expires_ms, known.at_ms, known.result)


def _size(result: bytes) -> int:
    return ENTRY_BYTES + len(result)


# --- identity and result ----------------------------------------------------------------------------------------------


def identity(command: CommitOutcome) -> bytes:
    """What an outcome is recognised by; empty if nothing in it happens once only. An owner's name alone is no proof:
    the same worker may get the same message again."""
    if command.key:
        return _hashed(("key", command.key))
    commits = sorted((effect_scope(commit.key), commit.fence) for commit in command.commits)
    appends = sorted(
        (part.path, by.producer, by.epoch, by.seq) for part in command.appends if (by := part.producer) is not None
    )
    acks = _runs(command)
    if not (commits or appends or any(run[-1] for run in acks)):
        return b""
    return _hashed((acks, commits, appends))


def digest(command: CommitOutcome) -> bytes:
    """Of what an outcome asks for, acks included: under an idempotency key they count as a part of the request."""
    return _hashed((command.digest, _runs(command)))


def _runs(command: CommitOutcome) -> list[tuple[str, str, str, int, int, int, str]]:
    """The acked messages in one order, whichever way they were named."""
    found: list[tuple[str, str, str, int, int, int, str]] = []
    named: list[tuple[str, str, str, Held]] = []
    for ack in command.acks:
        named.extend((ack.topic, ack.group, "" if held.token else ack.owner, held) for held in ack.held)
    named.sort(key=lambda each: (*each[:3], each[3].partition, each[3].first, each[3].end, each[3].token))
    for topic, group, owner, held in named:
        last = found[-1] if found else None
        if last is not None and (*last[:4], last[5], last[6]) == (
            topic, group, owner, held.partition, held.first, held.token,
        ):  # fmt: skip
            found[-1] = (*last[:5], held.end, held.token)
        else:
            found.append((topic, group, owner, held.partition, held.first, held.end, held.token))
    return found


def _hashed(parts: object) -> bytes:
    return blake2b(msgpack.encode(parts), digest_size=_HASH_BYTES).digest()


class _Result(Struct, frozen=True, array_like=True):
    produced: tuple[tuple[str, int, int, int, bool], ...]
    appended: tuple[tuple[int, int, bool, bool, int, int], ...]


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(_Result)


def encode_result(produced: list[Produced], appended: list[StreamAppended]) -> bytes:
    return _encoder.encode(
        _Result(
            tuple((each.topic, each.partition, each.first_offset, each.count, each.duplicate) for each in produced),
            tuple(
                (each.first_offset, each.end_offset, each.closed, each.duplicate, each.epoch, each.seq)
                for each in appended
            ),
        )
    )


def first_reply(known: KnownOutcome) -> OutcomeReply:
    """The reply that an outcome got when it was carried out."""
    result = _decoder.decode(known.result)
    produced = tuple(Produced(*each) for each in result.produced)
    return OutcomeReply(produced, tuple(StreamAppended(*each) for each in result.appended), duplicate=True)

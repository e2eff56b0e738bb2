"""Outcomes that were carried out, so that a repeat is answered with the first result.

An outcome is identified by what can happen only once: the lease tokens of its acks, the fences of its commits and the
producers of its appends; or by an idempotency key. The table is a queue in order of time. Expired entries count as
absent and are dropped by the sweep. Above `BYTES_MAX` the oldest are dropped early. That is safe: the repeat of a
forgotten outcome is refused by its fences."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from msgspec import Struct, msgpack

from driftq.core.model.effect_facts import OutcomeRecorded, OutcomesForgotten
from driftq.core.model.replies import OutcomeReply, Produced, StreamAppended
from driftq.core.state.effects import effect_scope

if TYPE_CHECKING:
    from driftq.core.model.commands import CommitOutcome, Held
    from driftq.core.state.deadlines import Deadlines

BYTES_MAX = 256 << 20
ENTRY_BYTES = 250  # the cost of an entry without its result
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
        expired = self._known.pop(fact.outcome, None)  # an idempotency key may be used again after it expired
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

    def expired(self, now_ms: int, limit: int) -> int:
        """How many of the oldest have expired; at most `limit` are counted."""
        count = 0
        for known in self._known.values():
            if count == limit or known.expires_ms > now_ms:
                break
            count += 1
        return count

    def next_ms(self) -> int | None:
        """When to sweep expired ones."""
        oldest = next(iter(self._known.values()), None)
        return (oldest.expires_ms // SWEEP_EVERY_MS + 1) * SWEEP_EVERY_MS if oldest is not None else None

    def snapshot(self) -> Iterator[OutcomeRecorded]:
        for outcome, known in self._known.items():
            yield OutcomeRecorded(outcome, known.digest, known.expires_ms, known.at_ms, known.result)


def _size(result: bytes) -> int:
    return ENTRY_BYTES + len(result)


# --- identity and result ----------------------------------------------------------------------------------------------


def identity(command: CommitOutcome) -> bytes:
    """A hash of what identifies an outcome; empty if nothing in it can happen only once. The name of an owner does not
    count, because the same worker may get the same message again."""
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
    """A digest of the request, with its acks and their results."""
    results = [held.result for ack in command.acks for held in ack.held if held.result]
    named = (command.digest, _runs(command))
    return _hashed((*named, results) if results else named)


def _runs(command: CommitOutcome) -> list[tuple[str, str, str, int, int, int, str]]:
    """The acked ranges in a canonical order, merged where they touch."""
    runs: list[tuple[str, str, str, int, int, int, str]] = []
    named: list[tuple[str, str, str, Held]] = []
    for ack in command.acks:
        named.extend((ack.topic, ack.group, "" if held.token else ack.owner, held) for held in ack.held)
    named.sort(key=lambda ack: (*ack[:3], ack[3].partition, ack[3].first, ack[3].end, ack[3].token))
    for topic, group, owner, held in named:
        last = runs[-1] if runs else None
        if last is not None and (*last[:4], last[5], last[6]) == (
            topic, group, owner, held.partition, held.first, held.token,
        ):  # fmt: skip
            runs[-1] = (*last[:5], held.end, held.token)
        else:
            runs.append((topic, group, owner, held.partition, held.first, held.end, held.token))
    return runs


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
            tuple((part.topic, part.partition, part.first_offset, part.count, part.duplicate) for part in produced),
            tuple(
                (part.first_offset, part.end_offset, part.closed, part.duplicate, part.epoch, part.seq)
                for part in appended
            ),
        )
    )


def first_reply(known: KnownOutcome) -> OutcomeReply:
    """The reply of the first time, marked as a duplicate."""
    result = _decoder.decode(known.result)
    produced = tuple(Produced(*part) for part in result.produced)
    return OutcomeReply(produced, tuple(StreamAppended(*part) for part in result.appended), duplicate=True)

"""The configuration of a seed: its clients and their weights, the file sizes, which faults and how often.

Every seed leaves something out (swarm testing): a run with every feature rarely reaches the states that an unbalanced
one does. Pure: a seed in, a `Swarm` out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random

import msgspec

from driftq.core.model.facts import KEEP_ALL, KEEP_NONE
from driftq.core.model.limits import BrokerLimits
from driftq.engine.folder_storage import StorageOptions
from driftq.wire.message import RetryPolicy

KINDS = ("plain", "flips", "lies")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which faults, and about how many disk calls or steps lie between them (0: never)."""

    crash_calls: int
    error_calls: int
    full_steps: int
    kill_steps: int  # only the process is killed or stopped cleanly
    label: str  # "" or the one label that faults prefer
    kinds: tuple[str, ...]  # of injected errors: eio, enospc, short
    in_recovery: float
    jumps: bool
    power: float  # chance that a stop takes the power with it


@dataclass(frozen=True, slots=True)
class Swarm:
    """One configuration."""

    seed: int
    kind: str
    operations: int
    commit_chance: float
    slow_commit: float
    pace_ms: int
    long_pause: float
    lease_ms: int
    value_bytes: int
    partitions: int
    topics: int
    weights: dict[str, int]
    options: StorageOptions
    limits: BrokerLimits
    faults: FaultPlan
    checks_folds: bool
    keep_unread: str  # the setting of every topic
    coalesces: bool  # plain producers send single messages, which may share an append; commits are delayed


ACTORS = {
    "plain": 10, "idempotent": 10, "keyed": 5, "jobs": 6, "worker": 30, "stream": 12, "fork": 2, "stager": 9,
    "effects": 4, "admin": 1, "reader": 4, "subscriber": 3, "looker": 2, "redriver": 1, "consumer": 12,
}  # fmt: skip

LABELS = (
    "journal.append", "journal.sync", "journal.allocate", "journal.header", "journal.header.sync", "journal.rename",
    "journal.sync_folder", "journal.watermark.write", "journal.watermark.sync", "journal.trim.remove",
    "journal.trim.sync_folder", "journal.rewrite", "journal.open.sync", "journal.open.sync_folder", "journal.cut",
    "journal.cut.sync", "journal.torn.create", "journal.torn.write", "journal.torn.sync", "journal.leftover.remove",
    "log.folder", "log.create", "log.header", "log.append", "log.sync", "log.sync_folder", "log.root.sync_folder",
    "log.parent.sync_folder", "log.cut", "log.remove", "log.folder.remove", "index.create", "index.write",
    "index.remove", "shared.folder", "shared.create", "shared.append", "shared.remove", "shared.index.remove",
    "snapshot.create", "snapshot.header", "snapshot.write", "snapshot.end", "snapshot.sync",
    "snapshot.rename", "snapshot.sync_folder", "snapshot.parent.sync_folder", "snapshot.remove",
    "snapshot.leftover.remove",
)  # fmt: skip

# Calls that only happen after a crash at another call.
RARE = {
    "journal.cut": "journal.sync", "journal.cut.sync": "journal.sync", "journal.torn.create": "journal.sync",
    "journal.torn.write": "journal.sync", "journal.torn.sync": "journal.sync", "journal.rewrite": "journal.sync",
    "snapshot.leftover.remove": "snapshot.end",
}  # fmt: skip

INFREQUENT = ("log.folder.remove",)  # a few calls in a whole run: strike the first one


def draw(seed: int, operations: int) -> Swarm:
    """The configuration of a seed."""
    chance = Random(f"swarm {seed}")
    kind = {5: "flips", 13: "flips", 11: "lies"}.get(seed % 16, "plain")
    weights = {name: weight for name, weight in ACTORS.items() if chance.random() < 0.8}
    weights.setdefault("plain", 10)
    weights.setdefault("worker", 30)
    for name in weights:
        if chance.random() < 0.2:
            weights[name] *= 4
    segment = chance.choice((12, 16, 16, 24, 48)) << 10
    options = StorageOptions(
        journal_segment_bytes=segment,
        log_segment_bytes=chance.choice((600, 600, 1500, 4000, 20_000)),
        cache_bytes=chance.choice((2_000, 50_000, 1 << 20)),
        open_files=chance.choice((4, 16, 64)),
        **_shares(seed),
    )
    swarm = Swarm(
        seed=seed,
        kind=kind,
        operations=operations,
        commit_chance=chance.choice((0.08, 0.2, 0.4, 0.8)),
        slow_commit=chance.choice((0.0, 0.2, 0.6)),
        pace_ms=chance.choice((2, 10, 40, 150)),
        long_pause=chance.choice((0.0, 0.003, 0.02)),
        lease_ms=chance.choice((100, 400, 3_000, 20_000)),
        value_bytes=chance.choice((20, 60, 60, 300)),
        partitions=chance.choice((1, 1, 2, 3)),
        topics=chance.choice((1, 2, 3)),
        weights=weights,
        options=options,
        limits=_with_idle_groups(_limits(chance, segment), seed),
        keep_unread=Random(f"keep unread {seed}").choice(("", "", KEEP_ALL, KEEP_NONE)),
        faults=_faults(chance, kind, seed),
        checks_folds=chance.random() < 0.3,
        coalesces=_coalesces(seed),
    )
    if kind == "plain" and RARE.get(swarm.faults.label) == "journal.sync":
        # Only a block of several sectors can be torn: commit large batches.
        swarm = dataclasses.replace(swarm, commit_chance=0.08, value_bytes=300)
    if swarm.faults.label in INFREQUENT:
        # A folder is removed two checkpoints after its log was dropped: drop and write a lot.
        swarm = dataclasses.replace(swarm, weights=weights | {"stream": 60, "admin": 15, "plain": 40}, value_bytes=300)
    return swarm


def _limits(chance: Random, segment_bytes: int) -> BrokerLimits:
    retry = chance.choice(
        (
            RetryPolicy(max_attempts=0, backoff_ms=500, max_backoff_ms=30_000, jitter="full"),
            RetryPolicy(max_attempts=3, backoff_ms=40, max_backoff_ms=200, jitter="equal"),
            RetryPolicy(max_attempts=2, backoff_ms=30, max_backoff_ms=0, jitter="none"),
            RetryPolicy(max_attempts=5, backoff_ms=100, max_backoff_ms=1_000, jitter="decorrelated"),
        )
    )
    return BrokerLimits(
        partition_messages=chance.choice((60, 400, 1_000_000)),
        in_flight_max=chance.choice((2, 5, 20, 1_000)),
        retry_ratio=chance.choice((0.2, 0.5)),
        batch_bytes=chance.choice((2_000, segment_bytes // 4)),  # the dead letters of one sweep must fit into a segment
        message_bytes=3_000,
        job_result_ttl_ms=4_000,
        retry=retry,
        retry_floor_ms=20,
        ageing_ms=chance.choice((0, 500, 60_000)),
        key_ttl_ms=chance.choice((300, 5_000, 600_000)),
        effect_ttl_ms=chance.choice((300, 5_000, 600_000)),
        effect_lease_ms=chance.choice((100, 2_000)),
        stage_ttl_ms=chance.choice((500, 60_000, 3_600_000)),
        touch_ms=chance.choice((10, 1_000)),
        sweep_max=chance.choice((3, 1_000)),
        streams_max=chance.choice((6, 1_000)),
        groups_per_topic_max=4,
    )


def _with_idle_groups(limits: BrokerLimits, seed: int) -> BrokerLimits:
    """Drawn apart, so that it changes nothing else of a seed. In every fifth seed there are idle groups and full
    partitions, in every fourth of the others retention waits for groups."""
    small = seed % 5 == 0 and limits.partition_messages <= 400
    choices = (1_500,) if small else (0, 0, 1_500, 10_000)
    waits = seed % 4 == 1 and seed % 5 > 0
    return msgspec.structs.replace(
        limits,
        groups_idle_ms=Random(f"idle {seed}").choice(choices),
        keep_unread_ms=Random(f"keep unread for {seed}").choice((2_000, 60_000)) if waits else 0,
    )


def _shares(seed: int) -> dict[str, int]:
    """Drawn apart, so that it changes nothing else of a seed. Logs share small segments until they have a few batches,
    so that they outgrow their share, and segments are compacted, often."""
    chance = Random(f"shares {seed}")
    share_bytes = chance.choice((0, 2_500, 6_000, 20_000, 1 << 20))
    return {"share_bytes": share_bytes, "shared_segment_bytes": chance.choice((600, 2_000, 8_000))}


def _coalesces(seed: int) -> bool:
    """Drawn apart, so that it changes nothing else of a seed. Not with idle groups and full partitions."""
    return seed % 5 != 0 and Random(f"coalesces {seed}").random() < 0.4


def _label(seed: int) -> str:
    """Three seeds of five prefer a call; the calls take turns, so that a few hundred seeds strike each of them."""
    labels = (*LABELS, *RARE)
    turn, place = divmod(seed, 5)
    return labels[(3 * turn + place) % len(labels)] if place < 3 else ""


def _faults(chance: Random, kind: str, seed: int) -> FaultPlan:
    plain = kind == "plain"
    plan = FaultPlan(
        crash_calls=chance.choice((0, 150, 300, 300, 600, 600, 1_500)) if plain else 600,
        error_calls=chance.choice((0, 300, 1_000)) if plain else 0,
        full_steps=chance.choice((0, 0, 400, 1_200)) if plain else 0,
        kill_steps=chance.choice((0, 300, 800)),
        label=_label(seed),
        kinds=tuple(name for name in ("eio", "enospc", "short") if chance.random() < 0.7) or ("eio",),
        in_recovery=chance.choice((0.0, 0.3, 0.8)),
        jumps=chance.random() < 0.5,
        power=chance.choice((0.3, 0.8, 1.0)),
    )
    if plain and plan.label in RARE:
        # Called only after a crash at another call: make such crashes frequent, and strike in what follows.
        calls = 4 if RARE[plan.label] == "journal.sync" else 2
        plan = dataclasses.replace(plan, crash_calls=calls, in_recovery=1.0, power=1.0)
    return plan

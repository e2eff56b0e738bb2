"""Bodies about the server itself: health, readiness, version, clock; and why a message is not delivered."""

from __future__ import annotations

from msgspec import Struct

from driftq.wire.topics import BacklogInfo


class HealthReply(Struct, frozen=True):
    """`status` is "ok"."""

    status: str


class ArchiveInfo(Struct, frozen=True):
    """How far the archive is. `state` is "starting", "waiting" (another broker may write to it), "shipping", "failing"
    or "superseded". `lag_ms` and `lag_bytes` are what would be lost with this machine."""

    url: str
    mode: str
    state: str
    generation: str
    shipped_lsn: int
    base_lsn: int
    lag_ms: int
    lag_bytes: int
    error: str = ""


class TierInfo(Struct, frozen=True):
    """Closed segments of logs: how many bytes of them are on this disk, and how many only in the archive. `error` is
    why records could not be read from there the last time; empty if they could."""

    local_bytes: int
    archived_bytes: int
    cache_hits: int
    downloads: int
    failures: int
    error: str = ""


class ReadinessReply(Struct, frozen=True, omit_defaults=True):
    """`status` is "ready". `warnings` are for an operator; the broker serves requests in spite of them. `archive` is
    there if the broker has one, `tiers` if some records are only in the archive."""

    status: str
    warnings: list[str] = []
    archive: ArchiveInfo | None = None
    tiers: TierInfo | None = None


class VersionReply(Struct, frozen=True):
    version: str
    commit: str
    wal_enabled: bool
    durability: str


class ClockInfo(Struct, frozen=True):
    """The broker's time and the machine's. `held`: they differ too much, and an operator has to decide."""

    broker_at: str
    machine_at: str
    ahead_ms: int
    held: bool
    advice: str = ""


# --- explain ----------------------------------------------------------------------------------------------------------


NEVER = "never"  # `opens_when` of a gate that stays closed


class Gate(Struct, frozen=True, omit_defaults=True):
    """One reason why a message is not delivered. `opens_at` is the time at which it ends, if that is known;
    `opens_when` is what has to happen."""

    gate: str
    why: str
    opens_when: str
    opens_at: str = ""


class MessageFacts(Struct, frozen=True, omit_defaults=True):
    """What the broker knows of a message without reading its value."""

    produced_at: str = ""
    priority: int = 0
    task: str = ""
    label: str = ""
    tenant: str = ""
    deadline: str = ""
    retained_until: str = ""


class GroupExplanation(Struct, frozen=True, omit_defaults=True):
    """A message as one group sees it. `state` is "ready", "held", "delayed" (by its producer), "resting" (waiting: in
    backoff, or released with a delay) or "settled", or else the first gate that keeps it from the group, like "paused".
    `ahead` counts the messages that are delivered before it, `gaps` the settled ranges above the group's floor."""

    group: str
    state: str
    claimable: bool
    summary: str
    gates: list[Gate] = []
    ahead: int = 0
    attempts: int = 0
    failures: int = 0
    lease_losses: int = 0
    releases: int = 0
    last_error: str = ""
    settled_as: str = ""
    gaps: int = 0


class Explanation(Struct, frozen=True, omit_defaults=True):
    """Why a message is not delivered. `gates` apply to all groups, the gates of `groups` to one group. `backlog` is
    there if the partition is full for producers, or nearly."""

    topic: str
    partition: int
    offset: int
    summary: str
    message: MessageFacts
    gates: list[Gate]
    groups: list[GroupExplanation]
    backlog: BacklogInfo | None = None

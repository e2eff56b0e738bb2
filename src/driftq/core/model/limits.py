"""Limits and defaults of the broker. Settings fill them; the core only reads them."""

from __future__ import annotations

from msgspec import Struct

from driftq.wire.claims import PROGRESS_BYTES_MAX
from driftq.wire.fields import LEASE_MS_MAX, LEASE_MS_MIN
from driftq.wire.message import RetryPolicy

MIB = 1 << 20


class BrokerLimits(Struct, frozen=True):
    """Bounds and defaults of one broker."""

    topics_max: int = 10_000
    partitions_max: int = 1_024
    groups_per_topic_max: int = 1_000
    lanes_per_log_max: int = 1_000
    tenant_lanes_max: int = 500  # beyond this, new tenants share a lane
    message_bytes: int = MIB
    batch_bytes: int = 16 * MIB
    partition_messages: int = 1_000_000
    partition_bytes: int = 1 << 30
    overload_retry_ms: int = 1_000
    groups_idle_ms: int = 0  # a group unused for this long does not count for back-pressure; 0: always counts
    keep_unread_ms: int = 86_400_000  # retention waits for a group that was used within this time; 0: for no group

    in_flight_max: int = 1_000
    claim_max: int = 10_000
    lease_ms: int = 30_000
    lease_ms_min: int = LEASE_MS_MIN
    lease_ms_max: int = LEASE_MS_MAX
    error_bytes: int = 1_024
    retry_ratio: float = 0.2
    ageing_ms: int = 60_000
    retry: RetryPolicy = RetryPolicy(max_attempts=0, backoff_ms=500, max_backoff_ms=30_000, jitter="full")
    job_attempts_max: int = 4
    retry_floor_ms: int = 50

    key_ttl_ms: int = 600_000
    effect_ttl_ms: int = 600_000
    effect_lease_ms: int = 30_000
    result_bytes: int = 64 * 1024
    keys_max: int = 5_000_000

    job_result_bytes: int = 64 * 1024
    job_result_ttl_ms: int = 3_600_000
    progress_bytes: int = PROGRESS_BYTES_MAX
    traceback_bytes: int = 16 * 1024

    job_batches_max: int = 100_000  # that are remembered, ended ones included
    job_batch_jobs_max: int = 100_000  # members of one batch
    job_batch_depth_max: int = 8
    job_batch_ttl_ms: int = 86_400_000
    job_batches_waiting_bytes: int = 512 * MIB  # callbacks and steps of all batches that are not produced yet

    streams_max: int = 1_000_000
    schedules_max: int = 1_000_000
    touch_ms: int = 1_000
    stage_ttl_ms: int = 3_600_000
    stages_bytes_max: int = 4 << 30
    # What one command may do before it leaves the rest to the next one: the event loop serves others in between.
    sweep_max: int = 250  # messages whose lease or deadline has passed
    slice_bytes: int = MIB  # dead letters and history events; one message more may exceed it

"""Every metric by name, with its labels and its meaning. `docs/reference/metrics.md` is generated from it."""

from __future__ import annotations

from driftq.server.metrics.text_format import MetricDefinition

_GROUP = ("topic", "group")
_PARTITION = ("topic", "group", "partition")
_TENANT = ("tenant",)
_QUOTA = ("tenant", "quota")

METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("driftq_messages_produced_total", "counter", ("topic",), "Messages stored in a topic."),
    MetricDefinition(
        "driftq_produced_bytes_total", "counter", ("topic",), "Bytes of keys, values and envelopes stored in a topic."
    ),
    MetricDefinition(
        "driftq_produce_duplicates_total",
        "counter",
        (),
        "Produces answered with the result of an earlier one (duplicates).",
    ),
    MetricDefinition("driftq_produce_rejected_total", "counter", ("reason",), "Produces that were refused."),
    MetricDefinition("driftq_deliveries_total", "counter", _GROUP, "Deliveries of messages, repeated ones included."),
    MetricDefinition(
        "driftq_settled_total",
        "counter",
        ("topic", "group", "how"),
        "Messages settled: acked, dead, cancelled or skipped.",
    ),
    MetricDefinition("driftq_failures_total", "counter", _GROUP, "Attempts that ended with a nack."),
    MetricDefinition(
        "driftq_lease_losses_total", "counter", _GROUP, "Attempts that ended because their lease expired."
    ),
    MetricDefinition("driftq_releases_total", "counter", _GROUP, "Messages released without counting an attempt."),
    MetricDefinition("driftq_lease_extensions_total", "counter", _GROUP, "Messages whose lease was extended."),
    MetricDefinition("driftq_dlq_messages_total", "counter", ("topic", "reason"), "Messages that became dead letters."),
    MetricDefinition("driftq_redriven_total", "counter", ("topic",), "Dead letters that were sent back."),
    MetricDefinition("driftq_refusals_total", "counter", ("code",), "Calls, or messages of a call, that were refused."),
    MetricDefinition(
        "driftq_stale_lease_rejections_total",
        "counter",
        (),
        "Acks, nacks and the like from a client that does not hold the lease.",
    ),
    MetricDefinition("driftq_stream_records_total", "counter", (), "Records appended to durable streams."),
    MetricDefinition("driftq_stream_bytes_total", "counter", (), "Bytes appended to durable streams."),
    MetricDefinition(
        "driftq_events_total", "counter", ("event",), "Topics, groups, streams and effects created, ended or deleted."
    ),
    MetricDefinition("driftq_frames_total", "counter", (), "Frames that became durable."),
    MetricDefinition("driftq_commit_seconds", "histogram", (), "Time from the start of a commit until it is durable."),
    MetricDefinition("driftq_fsync_seconds", "histogram", (), "Time to write and sync one block of the journal."),
    MetricDefinition("driftq_commit_frames", "histogram", (), "Frames that shared one sync."),
    MetricDefinition(
        "driftq_loop_stall_seconds",
        "histogram",
        ("cause",),
        "Turns of the event loop of 20 ms and longer, by what held it: a route, `commit`, `sweep` and so on.",
    ),
    MetricDefinition("driftq_journal_lsn", "gauge", ("state",), "LSN of the last frame: decided, or durable."),
    MetricDefinition("driftq_unsynced_bytes", "gauge", (), "Bytes that are decided and not yet durable."),
    MetricDefinition(
        "driftq_journal_room_bytes", "gauge", (), "Bytes the journal can take before it needs more disk space."
    ),
    MetricDefinition(
        "driftq_archive_lag_seconds", "gauge", (), "Age of the oldest change that is not in the archive yet."
    ),
    MetricDefinition(
        "driftq_archive_lag_bytes", "gauge", (), "Bytes of the journal that are durable and not in the archive yet."
    ),
    MetricDefinition(
        "driftq_archive_lsn", "gauge", ("state",), "LSN of the last frame in the archive: shipped, or base."
    ),
    MetricDefinition(
        "driftq_archive_up",
        "gauge",
        ("state",),
        "1 for the present state of the archive: starting, waiting, shipping, failing or superseded.",
    ),
    MetricDefinition(
        "driftq_tier_bytes", "gauge", ("place",), "Bytes of closed segments: on this disk, or only in the archive."
    ),
    MetricDefinition(
        "driftq_cold_reads_total",
        "counter",
        ("result",),
        "Reads of records that are only in the archive: found in the cache (hit), downloads, and failures.",
    ),
    MetricDefinition("driftq_cold_read_bytes_total", "counter", (), "Bytes that were read back from the archive."),
    MetricDefinition("driftq_disk_bytes", "gauge", ("part",), "Bytes of files: journal, logs, snapshots."),
    MetricDefinition("driftq_disk_free_bytes", "gauge", (), "Free bytes of the file system of the data folder."),
    MetricDefinition("driftq_recovery_seconds", "gauge", (), "How long recovery took at the last start."),
    MetricDefinition(
        "driftq_clock_ahead_seconds", "gauge", (), "How far the machine's clock is ahead of the broker's time."
    ),
    MetricDefinition(
        "driftq_clock_held", "gauge", (), "1 while the two differ so much that an operator has to decide."
    ),
    MetricDefinition(
        "driftq_credentials_refused_total",
        "counter",
        ("reason",),
        "Credentials that were not accepted: wrong, or not looked at after too many wrong ones from an address.",
    ),
    MetricDefinition("driftq_tenant_requests_total", "counter", _TENANT, "Requests of a tenant."),
    MetricDefinition("driftq_tenant_messages_total", "counter", _TENANT, "Messages that a tenant sent."),
    MetricDefinition("driftq_tenant_bytes_total", "counter", _TENANT, "Bytes of these messages."),
    MetricDefinition(
        "driftq_tenant_refused_total", "counter", _QUOTA, "Calls of a tenant that were refused because of a quota."
    ),
    MetricDefinition(
        "driftq_tenant_used", "gauge", _QUOTA, "What a tenant uses: topics, streams, groups, schedules, connections."
    ),
    MetricDefinition("driftq_tenant_quota", "gauge", _QUOTA, "The quotas of a tenant; 0 if it has none of a kind."),
    MetricDefinition("driftq_topics", "gauge", (), "Topics, not counting dead-letter topics."),
    MetricDefinition("driftq_groups", "gauge", (), "Groups of all topics."),
    MetricDefinition("driftq_idle_groups", "gauge", (), "Idle groups, which do not block producers."),
    MetricDefinition("driftq_streams", "gauge", (), "Durable streams."),
    MetricDefinition("driftq_schedules", "gauge", (), "Schedules."),
    MetricDefinition("driftq_schedule_firings_total", "counter", (), "Messages that schedules produced."),
    MetricDefinition(
        "driftq_schedule_missed_total", "counter", (), "Times of schedules that passed without a message."
    ),
    MetricDefinition("driftq_job_batches", "gauge", (), "Job batches that have not ended, also those that are nested."),
    MetricDefinition(
        "driftq_job_batches_ended_total",
        "counter",
        ("state",),
        "Job batches that have ended: succeeded, failed or cancelled.",
    ),
    MetricDefinition(
        "driftq_job_batch_members_ended_total",
        "counter",
        ("state",),
        "Members of job batches that have ended: succeeded, failed, cancelled, or dropped without a run.",
    ),
    MetricDefinition("driftq_idempotency_keys", "gauge", (), "Idempotency keys of produces that are remembered."),
    MetricDefinition("driftq_effect_keys", "gauge", (), "Keys of effects that are remembered."),
    MetricDefinition("driftq_backlog_messages", "gauge", ("topic",), "Messages that a topic holds."),
    MetricDefinition(
        "driftq_backlog_bytes", "gauge", ("topic",), "Bytes of keys, values and envelopes that a topic holds."
    ),
    MetricDefinition(
        "driftq_backlog_used_ratio",
        "gauge",
        _GROUP,
        "Share of the backlog limit in use, by the slowest group in the fullest partition; at 1 produces get 429.",
    ),
    MetricDefinition(
        "driftq_oldest_message_age_seconds", "gauge", ("topic",), "Age of the oldest message that a topic holds."
    ),
    MetricDefinition("driftq_dead_letters", "gauge", ("topic",), "Dead letters that were not sent back."),
    MetricDefinition("driftq_consumer_lag_messages", "gauge", _PARTITION, "Messages that a group has not settled."),
    MetricDefinition(
        "driftq_consumer_lag_seconds", "gauge", _PARTITION, "Age of the oldest message a group has not settled."
    ),
    MetricDefinition("driftq_inflight_messages", "gauge", _PARTITION, "Messages in flight, under a lease."),
    MetricDefinition(
        "driftq_resting_messages", "gauge", _PARTITION, "Waiting messages: in backoff, or delayed until a time."
    ),
    MetricDefinition(
        "driftq_group_gaps",
        "gauge",
        _PARTITION,
        "Settled ranges above the lowest unsettled message; 16 bytes of memory each.",
    ),
    MetricDefinition("driftq_connections", "gauge", (), "Open connections."),
    MetricDefinition("driftq_connections_max", "gauge", (), "Limit of connections; further ones get 503."),
    MetricDefinition("driftq_workers", "gauge", (), "Processes that run workers and announce themselves."),
    MetricDefinition("driftq_open_streams", "gauge", (), "Connections with an open stream: consumers, live tails."),
    MetricDefinition(
        "driftq_tls_certificate_expiry_seconds",
        "gauge",
        (),
        "When the TLS certificate in use expires, as a Unix time; nothing without TLS.",
    ),
    MetricDefinition("driftq_http_responses_total", "counter", ("status",), "Responses by HTTP status."),
    MetricDefinition(
        "driftq_router_decisions_total",
        "counter",
        ("result",),
        "Calls of the router: routed, unrouted, timeout, error, invalid.",
    ),
    MetricDefinition("driftq_router_seconds", "histogram", (), "Time of a router call."),
    MetricDefinition("driftq_build_info", "gauge", ("version", "durability"), "Always 1."),
    MetricDefinition("inflight_messages", "gauge", _PARTITION, "Upstream name of driftq_inflight_messages."),
    MetricDefinition("consumer_lag", "gauge", _PARTITION, "Upstream name of driftq_consumer_lag_messages."),
    MetricDefinition(
        "dlq_messages_total", "counter", ("topic", "reason"), "Upstream name of driftq_dlq_messages_total."
    ),
    MetricDefinition(
        "produce_rejected_total", "counter", ("reason",), "Upstream name of driftq_produce_rejected_total."
    ),
)


def table() -> list[tuple[str, str, str, str]]:
    """The rows of the table in the reference."""
    return [(f"`{name}`", kind, ", ".join(labels), meaning) for name, kind, labels, meaning in METRICS]


DEFINED = {metric.name: metric for metric in METRICS}

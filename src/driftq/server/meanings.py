"""What each setting means, in one sentence: for `docs/reference/settings.md`, which is made from here."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from driftq.server.settings import Settings

MEANINGS = {
    "listen.host": "The address to listen on; anything but loopback needs `listen.insecure_bind`.",
    "listen.port": "The TCP port; 0 picks a free one.",
    "listen.tls_certificate": "A PEM file with the certificate chain; with `listen.tls_key` it turns TLS on.",
    "listen.tls_key": "The PEM file of the certificate's key.",
    "listen.allowed_hosts": "Further values of the Host header that are served.",
    "listen.allowed_origins": "Web origins whose pages may use the broker, all of it.",
    "listen.connections_max": "Connections at the same time, as far as file descriptors allow; further ones get 503.",
    "listen.body_bytes_max": "The largest request body; more is 413.",
    "listen.insecure_bind": "Listen on a public address although nothing checks who calls.",
    "storage.segment_bytes": "The size of a log's segment file; the journal's hold three `limits.batch_bytes`.",
    "storage.cache_bytes": "Memory for recently appended and read batches.",
    "storage.open_files": "Log files that are kept open; fewer where the process may open few files.",
    "clock.downtime_max_ms": "At a start the machine's clock may be this far ahead of the journal's last time.",
    "clock.drift_max_ms": "Further apart than this, the broker's time waits for `driftq clock accept`.",
    "limits.partition_messages": "Messages above the slowest group's floor before a produce gets 429.",
    "limits.partition_bytes": "Key and value bytes above that floor before a 429; a larger message is 413.",
    "limits.message_bytes": "The largest message (key and value).",
    "limits.batch_bytes": "The largest batch, stream append or outcome.",
    "limits.topics_max": "Topics, without their dead-letter topics.",
    "limits.partitions_max": "Partitions of one topic.",
    "limits.groups_per_topic_max": "Groups of one topic.",
    "limits.streams_max": "Streams.",
    "queue.in_flight_max": "Messages of a partition that a group may hold at the same time.",
    "queue.lease_ms": "How long a consumer of `/v1/consume` holds a message, unless it asks for something else.",
    "queue.retry_backoff_ms": "The first retry's window where nobody says otherwise; it doubles each time.",
    "queue.retry_max_backoff_ms": "The longest window.",
    "queue.retry_jitter": "How retries spread over their window: none, full, equal or decorrelated.",
    "queue.retry_floor_ms": "The shortest rest after a failure: a failing message never becomes a hot loop.",
    "queue.retry_ratio": "The share of deliveries that due retries are offered first, carried from claim to claim.",
    "queue.ageing_ms": "A waiting message gains one level of priority for each of these; 0 turns ageing off.",
    "queue.heartbeat_ms": "How often an idle `/v1/consume` stream carries a bare newline.",
    "groups.idle_ms": "A group that is behind and neither claims nor acks for so long holds no producer up; 0: never.",
    "jobs.lease_ms": "How long a claim of `/v1/claim` holds its messages, unless it asks for something else.",
    "jobs.attempts_max": "Deliveries of a job that has no policy of its own, before it is a dead letter.",
    "idempotency.ttl_ms": "How long a produced key is remembered, from its first use.",
    "idempotency.effect_ttl_ms": "How long a committed or failed effect is remembered, at least.",
    "idempotency.effect_lease_ms": "How long a begun effect belongs to whoever began it.",
    "idempotency.strict": "Refuse the same key with another message: other key, value, envelope or schedule (409).",
    "streams.long_poll_ms": "How long a long-poll read waits.",
    "streams.sse_ms": "How long an SSE connection lives before the client is asked to come again.",
    "streams.read_bytes_max": "About how much one catch-up read returns.",
    "streams.park_ms": "How long an early pipelined batch waits for its predecessor before it is refused as a gap.",
    "streams.cors_prefixes": "Streams whose paths begin so may be read by pages of `streams.cors_origins`.",
    "streams.cors_origins": "Web origins that may read those streams; `*` is all of them.",
    "tenants.messages_per_s": "Messages a tenant may produce in a second; 0 means without limit.",
    "tenants.bytes_per_s": "Bytes a tenant may produce in a second; 0 means without limit.",
    "tenants.burst_ms": "How much of its rate a tenant may use at once.",
    "router.kind": "Who is asked at produce where a message goes: none, python, rules or webhook.",
    "router.target": "The router itself: `module:attribute`, a TOML file, or a URL.",
    "router.timeout_ms": "How long a router may take; after that the message goes unrouted.",
    "router.threads": "Threads for routers that are plain functions.",
    "router.inline": "Call a plain function on the loop itself: for routers that take microseconds.",
    "outbound.allow": "Addresses and networks that are not public and that webhooks and a router may call.",
    "outbound.timeout_ms": "How long a call of a webhook may take, from the connection to the end of the answer.",
    "log.level": "What is logged: debug, info, warning or error.",
    "log.format": "Lines of text or of JSON.",
    "log.access": "Log every request.",
}


def table() -> Sequence[Sequence[str]]:
    """(name, default, meaning) of every setting."""
    found = []
    for section in Settings.__struct_fields__:
        part = getattr(Settings(), section)
        for key in part.__struct_fields__:
            name = f"{section}.{key}"
            default = json.encode(getattr(part, key)).decode()
            found.append((f"`{name}`", f"`{default}`", MEANINGS[name]))
    return found

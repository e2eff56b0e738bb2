"""Every setting of the server, as data: one frozen tree, with units in the names and a sentence beside each.

The sentences are the table in `docs/reference/settings.md`. Values come from a TOML file, then the environment
(`DRIFTQ_QUEUE__LEASE_MS=5000`), then `--set queue.lease_ms=5000`. Components such as the clock, the disk or the router
are not settings: they are passed to constructors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Annotated, Literal

from msgspec import Meta, Struct, json

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import DOWNTIME_MAX_MS, DRIFT_MAX_MS
from driftq.server.access.auth_settings import AuditTrailSettings, AuthSettings, JwtSettings
from driftq.server.storage_settings import Amount, ArchiveCopySettings, Bytes, Count, Milliseconds, StorageSettings
from driftq.settings.loader import SettingsError, SettingsLoader, about, settings_of
from driftq.settings.trace_export import TraceSettings, shown
from driftq.wire.message import Jitter, RetryPolicy

ENVIRONMENT_PREFIX = "DRIFTQ_"
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
_WEB_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)

# Settings of earlier versions, and what to do instead.
REMOVED = {
    "jobs.timeout_ms": "it had no effect; give the job a timeout_ms, or the worker (5 minutes by default)",
    "listen.insecure_bind": "callers have to prove who they are: set auth.mode=tokens, and run driftq auth init",
    "queue.fair_tenants": "fair turns are a setting of each topic: driftq topics set TOPIC --fair tenant",
}


class ListenSettings(Struct, frozen=True, forbid_unknown_fields=True):
    host: Annotated[str, about("The address to listen on; anything but loopback needs `auth.mode`.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535), about("The TCP port; 0 picks a free one.")] = 8_080
    tls_certificate: Annotated[
        str, about("A PEM file with the certificate chain; with `listen.tls_key` it turns TLS on.")
    ] = ""
    tls_key: Annotated[
        str, about("The PEM file of the certificate's key. Both files are read again when they change.")
    ] = ""
    tls_version_min: Annotated[
        Literal["1.2", "1.3"], about("The lowest version of TLS that is spoken: 1.2 or 1.3.")
    ] = "1.2"
    tls_client_ca: Annotated[
        str, about("A PEM file with the authorities of client certificates; it turns mutual TLS on.")
    ] = ""
    tls_client_auth: Annotated[
        Literal["required", "optional"],
        about("Whether a client must have a certificate of `listen.tls_client_ca`: required or optional."),
    ] = "required"
    allowed_hosts: Annotated[tuple[str, ...], about("Further values of the Host header that are served.")] = ()
    allowed_origins: Annotated[tuple[str, ...], about("Web origins whose pages may use the whole API.")] = ()
    connections_max: Annotated[
        Count, about("Concurrent connections, as far as file descriptors allow; further ones get 503.")
    ] = 10_000
    body_bytes_max: Annotated[Bytes, about("The largest request body; more is 413.")] = 16 << 20
    output_bytes_max: Annotated[
        int,
        Meta(ge=1 << 20),
        about("Memory for output that clients have not read yet; when it runs short, each of them may hold less."),
    ] = 256 << 20


class ClockSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[clock]`: how far the machine's clock is trusted."""

    downtime_max_ms: Annotated[
        Milliseconds, about("At a start, how far the machine's clock may be ahead of the journal's last time.")
    ] = DOWNTIME_MAX_MS
    drift_max_ms: Annotated[
        Milliseconds,
        about("If the two clocks differ by more than this, the broker keeps its own time until `driftq clock accept`."),
    ] = DRIFT_MAX_MS


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what is refused."""

    partition_messages: Annotated[
        Count, about("Messages above the slowest group's floor before a produce gets 429.")
    ] = 1_000_000
    partition_bytes: Annotated[
        Bytes, about("Key and value bytes above that floor before a produce gets 429; a larger message is 413.")
    ] = 1 << 30
    message_bytes: Annotated[Bytes, about("The largest message: key, value and envelope.")] = 1 << 20
    reply_bytes: Annotated[
        Bytes, about("About how many bytes of messages one reply holds (claim, messages); at least one message.")
    ] = 8 << 20
    batch_bytes: Annotated[Bytes, about("The largest batch, stream append or outcome, uncompressed.")] = 16 << 20
    topics_max: Annotated[Count, about("Topics, not counting their dead-letter topics.")] = 10_000
    partitions_max: Annotated[Count, about("Partitions of one topic.")] = 1_024
    groups_per_topic_max: Annotated[Count, about("Groups of one topic.")] = 1_000
    streams_max: Annotated[Count, about("Durable streams.")] = 1_000_000


class QueueSettings(Struct, frozen=True, forbid_unknown_fields=True):
    in_flight_max: Annotated[Count, about("Messages of a partition that a group may have in flight.")] = 1_000
    lease_ms: Annotated[
        Milliseconds, about("Lease of a message delivered by `/v1/consume`, unless the request sets one.")
    ] = 2_000
    retry_backoff_ms: Annotated[
        Amount,
        about("Backoff window of the first retry, if no retry policy applies; it doubles with each attempt."),
    ] = 500
    retry_max_backoff_ms: Annotated[Amount, about("The longest backoff window.")] = 30_000
    retry_jitter: Annotated[
        Jitter, about("How retries are spread over their backoff window: none, full, equal or decorrelated.")
    ] = "full"
    retry_floor_ms: Annotated[
        Amount, about("Shortest wait after a failure, so that a failing message is never a hot loop.")
    ] = 50
    retry_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        about("Share of deliveries that due retries get before new messages, carried over from claim to claim."),
    ] = 0.2
    ageing_ms: Annotated[
        Amount, about("A waiting message gains one level of priority each time this passes; 0 turns ageing off.")
    ] = 60_000
    heartbeat_ms: Annotated[Milliseconds, about("How often an idle `/v1/consume` stream sends a bare newline.")] = (
        15_000
    )


class GroupSettings(Struct, frozen=True, forbid_unknown_fields=True):
    idle_ms: Annotated[
        Amount,
        about(
            "A group with a backlog that neither claims nor acks for this long no longer blocks producers; 0: never."
        ),
    ] = 0
    keep_unread_ms: Annotated[
        Amount, about("Retention waits for a group (`keep_unread`) that was used within this time; 0: for none.")
    ] = 86_400_000


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    lease_ms: Annotated[
        Milliseconds, about("Lease of messages claimed by `/v1/claim`, unless the request or the topic sets one.")
    ] = 30_000
    attempts_max: Annotated[
        Count, about("Deliveries of a job without a retry policy before it becomes a dead letter.")
    ] = 4
    result_ttl_ms: Annotated[Milliseconds, about("How long the result of a job is kept after its end.")] = 3_600_000
    result_bytes: Annotated[Bytes, about("The largest result of a job, as JSON.")] = 64 << 10
    batch_ttl_ms: Annotated[
        Milliseconds, about("How long a job batch and its results are kept after its end, if it does not say.")
    ] = 86_400_000


class IdempotencySettings(Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: Annotated[
        Milliseconds, about("How long the idempotency key of a produce is remembered, from its first use.")
    ] = 600_000
    effect_ttl_ms: Annotated[Milliseconds, about("How long a committed or failed effect is remembered, at least.")] = (
        600_000
    )
    effect_lease_ms: Annotated[
        Milliseconds, about("Lease of an effect that was begun: how long its owner has to commit it.")
    ] = 30_000
    strict: Annotated[
        bool,
        about("Refuse (409) a repeated idempotency key whose message differs in key, value, envelope or schedule."),
    ] = False


class StreamSettings(Struct, frozen=True, forbid_unknown_fields=True):
    long_poll_ms: Annotated[Milliseconds, about("How long a long-poll read waits.")] = 30_000
    sse_ms: Annotated[Milliseconds, about("How long an SSE connection lives before the client has to reconnect.")] = (
        60_000
    )
    read_bytes_max: Annotated[Bytes, about("About how many bytes one catch-up read returns.")] = 4 << 20
    park_ms: Annotated[
        Amount, about("How long an early pipelined batch waits for its predecessor before it is refused as a gap.")
    ] = 100
    cors_prefixes: Annotated[
        tuple[str, ...], about("Path prefixes of streams that pages of `streams.cors_origins` may read.")
    ] = ()
    cors_origins: Annotated[tuple[str, ...], about("Web origins that may read those streams; `*` allows all.")] = ("*",)


class TenantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tenants]`: what each tenant may produce."""

    messages_per_s: Annotated[Amount, about("Messages a tenant may produce per second; 0 means no limit.")] = 0
    bytes_per_s: Annotated[Amount, about("Bytes a tenant may produce per second; 0 means no limit.")] = 0
    burst_ms: Annotated[Milliseconds, about("Burst: how much of its rate, as a time, a tenant may use at once.")] = (
        1_000
    )


class RouterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[router]`: what decides, at produce, where a message goes."""

    kind: Annotated[
        Literal["none", "python", "rules", "webhook"],
        about("What decides at produce where a message goes: none, python, rules or webhook."),
    ] = "none"
    target: Annotated[str, about("The router: `module:attribute`, a TOML file of rules, or a URL.")] = ""
    timeout_ms: Annotated[
        Milliseconds, about("Time limit of a router; after that the message is produced unrouted.")
    ] = 500
    threads: Annotated[int, Meta(ge=1, le=64), about("Threads for routers that are plain functions.")] = 4
    inline: Annotated[bool, about("Call a plain function on the event loop: for routers that take microseconds.")] = (
        False
    )


class OutboundSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[outbound]`: which addresses webhooks and the router may call, and how long a webhook may take."""

    allow: Annotated[
        tuple[str, ...], about("Private addresses and networks that webhooks and the router may call.")
    ] = ()
    timeout_ms: Annotated[
        Milliseconds, about("Time limit of a webhook call, from connecting to the end of the response.")
    ] = 10_000


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        about("Lowest level that is logged: debug, info, warning or error."),
    ] = "info"
    format: Annotated[Literal["text", "json"], about("Format of log lines: text or JSON.")] = "text"
    access: Annotated[bool, about("Log every request.")] = False


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: ListenSettings = ListenSettings()
    auth: AuthSettings = AuthSettings()
    jwt: JwtSettings = JwtSettings()
    audit: AuditTrailSettings = AuditTrailSettings()
    storage: StorageSettings = StorageSettings()
    archive: ArchiveCopySettings = ArchiveCopySettings()
    clock: ClockSettings = ClockSettings()
    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    groups: GroupSettings = GroupSettings()
    jobs: JobSettings = JobSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    streams: StreamSettings = StreamSettings()
    tenants: TenantSettings = TenantSettings()
    router: RouterSettings = RouterSettings()
    outbound: OutboundSettings = OutboundSettings()
    log: LogSettings = LogSettings()
    trace: TraceSettings = TraceSettings()

    def core_limits(self) -> BrokerLimits:
        bounds, queue = self.limits, self.queue
        return BrokerLimits(
            topics_max=bounds.topics_max,
            partitions_max=bounds.partitions_max,
            groups_per_topic_max=bounds.groups_per_topic_max,
            streams_max=bounds.streams_max,
            message_bytes=bounds.message_bytes,
            batch_bytes=bounds.batch_bytes,
            partition_messages=bounds.partition_messages,
            partition_bytes=bounds.partition_bytes,
            groups_idle_ms=self.groups.idle_ms,
            keep_unread_ms=self.groups.keep_unread_ms,
            in_flight_max=queue.in_flight_max,
            lease_ms=self.jobs.lease_ms,
            retry_ratio=queue.retry_ratio,
            ageing_ms=queue.ageing_ms,
            retry=RetryPolicy(0, queue.retry_backoff_ms, queue.retry_max_backoff_ms, queue.retry_jitter),
            job_attempts_max=self.jobs.attempts_max,
            job_result_ttl_ms=self.jobs.result_ttl_ms,
            job_result_bytes=self.jobs.result_bytes,
            job_batch_ttl_ms=self.jobs.batch_ttl_ms,
            retry_floor_ms=queue.retry_floor_ms,
            key_ttl_ms=self.idempotency.ttl_ms,
            effect_ttl_ms=self.idempotency.effect_ttl_ms,
            effect_lease_ms=self.idempotency.effect_lease_ms,
        )


class Loaded(Struct, frozen=True):
    """The settings and where each value that is not a default came from, by `section.key`."""

    settings: Settings
    origins: dict[str, str]


def load(file: str | None, environment: Mapping[str, str], assignments: Sequence[str]) -> Loaded:
    """Read all sources; raises `SettingsError`."""
    loader = SettingsLoader(Settings, REMOVED)
    if file is not None:
        loader.add_file(file)
    loader.add_environment(environment, ENVIRONMENT_PREFIX)
    loader.add_assignments(assignments)
    settings = loader.load()
    _check(settings)
    return Loaded(settings, loader.origins)


def load_from_environment(file: str | None, assignments: Sequence[str]) -> Loaded:
    return load(file or os.environ.get("DRIFTQ_CONFIG"), os.environ, assignments)


def rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(name, value as JSON, origin) of every setting, for `driftq config show`."""
    return [
        (name, json.encode(shown(name, value)).decode(), loaded.origins.get(name, "default"))
        for section, key, value, _ in settings_of(loaded.settings)
        for name in (f"{section}.{key}",)
    ]


def table() -> list[tuple[str, str, str]]:
    """(name, default, description) of every setting, for the reference."""
    return [
        (f"`{section}.{key}`", f"`{json.encode(default).decode()}`", description)
        for section, key, default, description in settings_of(Settings())
    ]


def _check(settings: Settings) -> None:
    """What the type of a single setting cannot express."""
    if bool(settings.listen.tls_certificate) != bool(settings.listen.tls_key):
        raise SettingsError("listen.tls_certificate and listen.tls_key belong together")
    if settings.listen.tls_client_ca and not settings.listen.tls_certificate:
        raise SettingsError("listen.tls_client_ca needs listen.tls_certificate: client certificates are a part of TLS")
    for name, origins in (
        ("listen.allowed_origins", settings.listen.allowed_origins),
        ("streams.cors_origins", [origin for origin in settings.streams.cors_origins if origin != "*"]),
    ):
        for origin in origins:
            if not _WEB_ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"{name}: {origin!r} is not a web origin, like https://app.example or http://localhost:3000"
                )
    settings.trace.check()
    settings.auth.check(asks_for_certificates=bool(settings.listen.tls_client_ca))
    if settings.auth.has_jwt:
        settings.jwt.check()
    for network in settings.outbound.allow:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise SettingsError(f"outbound.allow: {network!r} is not an address or a network like 10.0.0.0/8") from None

"""What each setting means, in one sentence: for `docs/reference/settings.md`, which is made from here."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct, json

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import DOWNTIME_MAX_MS, DRIFT_MAX_MS
from driftq.engine.recovery import StorageOptions
from driftq.wire.message import Jitter, RetryPolicy

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


# --- Every setting, as data: one frozen tree, units in the names. Components (clock, disk, router) are never in it ---


ENVIRONMENT_PREFIX = "DRIFTQ_"
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it, and where it came from."""


REMOVED = {
    "jobs.timeout_ms": "it had no effect; give the job a timeout_ms, or the worker (5 minutes by default)",
    "queue.fair_tenants": "fair turns are a setting of each topic: driftq topics set TOPIC --fair tenant",
}


class ListenSettings(Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8_080
    tls_certificate: str = ""
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    connections_max: Count = 10_000
    body_bytes_max: Bytes = 16 << 20
    insecure_bind: bool = False


class StorageSettings(Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: Annotated[int, Meta(ge=64 << 10)] = 64 << 20
    cache_bytes: Amount = 64 << 20
    open_files: Count = 256


class ClockSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[clock]`: how far the machine's clock is believed without asking."""

    downtime_max_ms: Milliseconds = DOWNTIME_MAX_MS
    drift_max_ms: Milliseconds = DRIFT_MAX_MS


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what is refused."""

    partition_messages: Count = 1_000_000
    partition_bytes: Bytes = 1 << 30
    message_bytes: Bytes = 1 << 20
    batch_bytes: Bytes = 16 << 20
    topics_max: Count = 10_000
    partitions_max: Count = 1_024
    groups_per_topic_max: Count = 1_000
    streams_max: Count = 1_000_000


class QueueSettings(Struct, frozen=True, forbid_unknown_fields=True):
    in_flight_max: Count = 1_000
    lease_ms: Milliseconds = 2_000
    retry_backoff_ms: Amount = 500
    retry_max_backoff_ms: Amount = 30_000
    retry_jitter: Jitter = "full"
    retry_floor_ms: Amount = 50
    retry_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.2
    ageing_ms: Amount = 60_000
    heartbeat_ms: Milliseconds = 15_000


class Groups(Struct, frozen=True, forbid_unknown_fields=True):
    idle_ms: Amount = 0


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    lease_ms: Milliseconds = 30_000
    attempts_max: Count = 4


class IdempotencySettings(Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: Milliseconds = 600_000
    effect_ttl_ms: Milliseconds = 600_000
    effect_lease_ms: Milliseconds = 30_000
    strict: bool = False


class StreamSettings(Struct, frozen=True, forbid_unknown_fields=True):
    long_poll_ms: Milliseconds = 30_000
    sse_ms: Milliseconds = 60_000
    read_bytes_max: Bytes = 4 << 20
    park_ms: Amount = 100
    cors_prefixes: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ("*",)


class TenantSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What each tenant may produce; 0 means without limit."""

    messages_per_s: Amount = 0
    bytes_per_s: Amount = 0
    burst_ms: Milliseconds = 1_000


class RouterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[router]`: who is asked, at produce, where a message goes. `target` is module:attribute, a file or a URL."""

    kind: Literal["none", "python", "rules", "webhook"] = "none"
    target: str = ""
    timeout_ms: Milliseconds = 500
    threads: Annotated[int, Meta(ge=1, le=64)] = 4
    inline: bool = False


class OutboundSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[outbound]`: where webhooks and a router may be called, and how long a webhook may take."""

    allow: tuple[str, ...] = ()
    timeout_ms: Milliseconds = 10_000


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    access: bool = False


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: ListenSettings = ListenSettings()
    storage: StorageSettings = StorageSettings()
    clock: ClockSettings = ClockSettings()
    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    groups: Groups = Groups()
    jobs: JobSettings = JobSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    streams: StreamSettings = StreamSettings()
    tenants: TenantSettings = TenantSettings()
    router: RouterSettings = RouterSettings()
    outbound: OutboundSettings = OutboundSettings()
    log: LogSettings = LogSettings()

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
            in_flight_max=queue.in_flight_max,
            lease_ms=self.jobs.lease_ms,
            retry_ratio=queue.retry_ratio,
            ageing_ms=queue.ageing_ms,
            retry=RetryPolicy(0, queue.retry_backoff_ms, queue.retry_max_backoff_ms, queue.retry_jitter),
            job_attempts_max=self.jobs.attempts_max,
            retry_floor_ms=queue.retry_floor_ms,
            key_ttl_ms=self.idempotency.ttl_ms,
            effect_ttl_ms=self.idempotency.effect_ttl_ms,
            effect_lease_ms=self.idempotency.effect_lease_ms,
        )

    def storage_options(self) -> StorageOptions:
        size = self.storage.segment_bytes
        # A journal segment always takes the largest frame: room for it is known before a byte of it is written.
        journal_bytes = max(size, 3 * self.limits.batch_bytes)
        return StorageOptions(journal_bytes, size, self.storage.cache_bytes, self.storage.open_files)


class Loaded(Struct, frozen=True):
    """The settings and where each value that is not a default came from, by `section.key`."""

    settings: Settings
    origins: dict[str, str]


def load(file: str | None, environment: Mapping[str, str], assignments: Sequence[str]) -> Loaded:
    """Read all sources; raises `SettingsError`."""
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    if file is not None:
        for section, entries in _read_file(file).items():
            if not isinstance(entries, dict):
                raise SettingsError(f"{file}: {section} is not a section ([{section}] with keys below it)")
            for key, value in entries.items():
                _put(values, origins, section, key, value, file)
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            section, _, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
            _put(values, origins, section, key, _parse(section, key, text), f"environment {name}")
    for assignment in assignments:
        path, found, text = assignment.partition("=")
        section, dot, key = path.partition(".")
        if not (found and dot):
            raise SettingsError(f"--set takes section.key=value, not {assignment!r}")
        _put(values, origins, section, key, _parse(section, key, text), f"--set {path}")
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(_explain(str(error), origins)) from None
    _check(settings)
    return Loaded(settings, origins)


def _read_file(file: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from None


def _put(
    values: dict[str, dict[str, Any]], origins: dict[str, str], section: str, key: str, value: Any, origin: str
) -> None:
    _field_type(section, key, origin)
    values.setdefault(section, {})[key] = value
    origins[f"{section}.{key}"] = origin


def _field_type(section: str, key: str, origin: str) -> Any:
    sections = get_type_hints(Settings, include_extras=True)
    if section not in sections:
        raise SettingsError(f"{origin}: there is no section {section!r}; there are {', '.join(sections)}")
    keys = get_type_hints(sections[section], include_extras=True)
    if f"{section}.{key}" in REMOVED:
        raise SettingsError(f"{origin}: {section}.{key} was removed: {REMOVED[f'{section}.{key}']}")
    if key not in keys:
        raise SettingsError(f"{origin}: [{section}] has no {key!r}; it has {', '.join(keys)}")
    return keys[key]


def _parse(section: str, key: str, text: str) -> Any:
    """Text from the environment or a flag, as the field's type."""
    kind = _field_type(section, key, f"{section}.{key}")
    if kind == tuple[str, ...]:
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{section}.{key}={text}: {error}") from None


def _explain(message: str, origins: dict[str, str]) -> str:
    for path, origin in origins.items():
        if f"$.{path}" in message:
            return f"{path} (from {origin}): {message}"
    return message


def _check(settings: Settings) -> None:
    """What one field's type cannot say."""
    if bool(settings.listen.tls_certificate) != bool(settings.listen.tls_key):
        raise SettingsError("listen.tls_certificate and listen.tls_key belong together")
    for name, origins in (
        ("listen.allowed_origins", settings.listen.allowed_origins),
        ("streams.cors_origins", [each for each in settings.streams.cors_origins if each != "*"]),
    ):
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"{name}: {origin!r} is not a web origin, like https://app.example or http://localhost:3000"
                )
    for network in settings.outbound.allow:
        try:
            ip_network(network, strict=False)
        except ValueError:
            raise SettingsError(f"outbound.allow: {network!r} is not an address or a network like 10.0.0.0/8") from None


def rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(name, value, origin) of every setting, for `driftq config show` and the docs."""
    found: list[tuple[str, str, str]] = []
    for section in Settings.__struct_fields__:
        part = getattr(loaded.settings, section)
        for key in part.__struct_fields__:
            path = f"{section}.{key}"
            found.append((path, msgspec.json.encode(getattr(part, key)).decode(), loaded.origins.get(path, "default")))
    return found


def from_environment(file: str | None, assignments: Sequence[str]) -> Loaded:
    return load(file or os.environ.get("DRIFTQ_CONFIG"), os.environ, assignments)

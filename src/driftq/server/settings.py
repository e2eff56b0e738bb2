"""Every setting, as data: one frozen tree, units in the names. Components (clock, disk, router) are never in it.

Values come from the defaults here, a TOML file, `DRIFTQ_SECTION__KEY` in the environment and `--set
section.key=value`, in this order; `load` remembers where each came from. Unknown keys are refused by name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from driftq.core.limits import Limits
from driftq.engine.clock import DOWNTIME_MAX_MS, DRIFT_MAX_MS
from driftq.engine.recovery import StorageOptions
from driftq.wire.message import Jitter, RetryPolicy

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


class Listen(Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8_080
    tls_certificate: str = ""
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    connections_max: Count = 10_000
    body_bytes_max: Bytes = 16 << 20
    insecure_bind: bool = False


class Storage(Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: Annotated[int, Meta(ge=64 << 10)] = 64 << 20
    cache_bytes: Amount = 64 << 20
    open_files: Count = 256


class ClockSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[clock]`: how far the machine's clock is believed without asking."""

    downtime_max_ms: Milliseconds = DOWNTIME_MAX_MS
    drift_max_ms: Milliseconds = DRIFT_MAX_MS


class Bounds(Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what is refused."""

    partition_messages: Count = 1_000_000
    partition_bytes: Bytes = 1 << 30
    message_bytes: Bytes = 1 << 20
    batch_bytes: Bytes = 16 << 20
    topics_max: Count = 10_000
    partitions_max: Count = 1_024
    groups_per_topic_max: Count = 1_000
    streams_max: Count = 1_000_000


class Queue(Struct, frozen=True, forbid_unknown_fields=True):
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


class Jobs(Struct, frozen=True, forbid_unknown_fields=True):
    lease_ms: Milliseconds = 30_000
    attempts_max: Count = 4


class Idempotency(Struct, frozen=True, forbid_unknown_fields=True):
    ttl_ms: Milliseconds = 600_000
    effect_ttl_ms: Milliseconds = 600_000
    effect_lease_ms: Milliseconds = 30_000
    strict: bool = False


class Streams(Struct, frozen=True, forbid_unknown_fields=True):
    long_poll_ms: Milliseconds = 30_000
    sse_ms: Milliseconds = 60_000
    read_bytes_max: Bytes = 4 << 20
    park_ms: Amount = 100
    cors_prefixes: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ("*",)


class Tenants(Struct, frozen=True, forbid_unknown_fields=True):
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


class Log(Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    access: bool = False


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: Listen = Listen()
    storage: Storage = Storage()
    clock: ClockSettings = ClockSettings()
    limits: Bounds = Bounds()
    queue: Queue = Queue()
    groups: Groups = Groups()
    jobs: Jobs = Jobs()
    idempotency: Idempotency = Idempotency()
    streams: Streams = Streams()
    tenants: Tenants = Tenants()
    router: RouterSettings = RouterSettings()
    outbound: OutboundSettings = OutboundSettings()
    log: Log = Log()

    def core_limits(self) -> Limits:
        bounds, queue = self.limits, self.queue
        return Limits(
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

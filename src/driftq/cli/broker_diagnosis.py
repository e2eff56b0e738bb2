"""What `driftq doctor` finds out about a broker: whether it answers and is ready, its version, its clock, its TLS."""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from driftq import __version__
from driftq.cli.command import connect_once
from driftq.cli.diagnosis import CheckResult

if TYPE_CHECKING:
    from driftq.cli.context_file import ServerAddress
    from driftq.client.api import DriftQ
    from driftq.server.settings import Settings

EXPIRY_WARNING_DAYS = 14
CLOCK_DIFFERENCE_S = 5.0
ANSWER_SLOW_MS = 100.0
ANSWERS = 5


def broker_checks(address: ServerAddress) -> Iterator[CheckResult]:
    """What a broker that is asked over HTTP says of itself."""
    from driftq.client.errors import DriftQError, NotAllowed, NotConnected

    try:
        with connect_once(address) as broker:
            yield _reachable(broker)
            yield _version(broker)
            yield _ready(broker)
            yield from _clock(broker)
    except NotConnected as error:
        reason, _, remedy = str(error).partition("; ")
        is_guess = address.origin == "the default"
        yield CheckResult("broker", "warning" if is_guess else "problem", f"{reason} ({address.origin})", remedy)
        return
    except NotAllowed as error:
        remedy = "set DRIFTQ_TOKEN or DRIFTQ_TOKEN_FILE, or choose a server with its token by --context"
        yield CheckResult("broker", "problem", f"{address.url} refuses this caller: {error.message}", remedy)
    except DriftQError as error:
        yield CheckResult("broker", "problem", f"{address.url}: {error}", "see the broker's log")
    yield _encryption(address)


def settings_checks(settings: Settings) -> Iterator[CheckResult]:
    """What the settings of a broker on this machine promise about TLS."""
    listen = settings.listen
    if not listen.tls_certificate:
        return
    from driftq.server.http.tls import TlsFiles, TlsUnusable, load

    files = TlsFiles(listen.tls_certificate, listen.tls_key, client_ca=listen.tls_client_ca)
    try:
        loaded = load(files)
    except TlsUnusable as error:
        yield CheckResult("TLS files", "problem", str(error), "name a certificate and its key that this user can read")
        return
    yield judge_expiry("TLS files", listen.tls_certificate, loaded.not_after_s, time.time())
    mode = stat.S_IMODE(Path(listen.tls_key).stat().st_mode)
    if mode & 0o077:
        message = f"other users can read the key {listen.tls_key} (mode {mode:o})"
        yield CheckResult("TLS files", "warning", message, f"chmod 600 {listen.tls_key}")


def _reachable(broker: DriftQ) -> CheckResult:
    times_ms = []
    for _ in range(ANSWERS):
        started_s = time.perf_counter()
        broker.healthy()
        times_ms.append((time.perf_counter() - started_s) * 1_000)
    median_ms = sorted(times_ms)[ANSWERS // 2]
    message = f"{broker.url} answers in {median_ms:.1f} ms"
    if median_ms > ANSWER_SLOW_MS:
        remedy = "see driftq_loop_stall_seconds and the log for what holds it, or the network between"
        return CheckResult("broker", "warning", message, remedy)
    return CheckResult("broker", "ok", message)


def _version(broker: DriftQ) -> CheckResult:
    server = broker.version()
    message = (
        f"the broker is version {server['version']}, this program {__version__}; durability: {server['durability']}"
    )
    if server["durability"] != "fsync":
        return CheckResult("broker version", "warning", message, "start it with --data DIR to keep its data")
    if server["version"] != __version__:
        return CheckResult(
            "broker version", "warning", message, "use the same version for both; upgrade the broker first"
        )
    return CheckResult("broker version", "ok", message)


def _ready(broker: DriftQ) -> CheckResult:
    from driftq.client.errors import Unavailable

    try:
        state: dict[str, Any] = broker.ready()
    except Unavailable as error:
        return CheckResult("readiness", "problem", error.message, "wait for recovery, or free space on its disk")
    if state.get("warnings"):
        return CheckResult("readiness", "warning", "; ".join(state["warnings"]), "see `driftq clock show`")
    return CheckResult("readiness", "ok", "the broker accepts work")


def _clock(broker: DriftQ) -> Iterator[CheckResult]:
    info = broker.read_clock()
    apart_s = abs(datetime.fromisoformat(info.machine_at).timestamp() - time.time())
    if info.held:
        yield CheckResult(
            "broker clock", "problem", info.advice, "driftq clock accept, once the machine's clock is right"
        )
    elif apart_s > CLOCK_DIFFERENCE_S:
        message = f"the clocks of this machine and the broker's differ by {apart_s:.0f} s"
        yield CheckResult(
            "broker clock", "warning", message, "run a time service on both: deadlines and delays use them"
        )
    else:
        yield CheckResult("broker clock", "ok", "the broker's clock agrees with this machine's")


def _encryption(address: ServerAddress) -> CheckResult:
    from driftq.client.transport.http import parse_address

    parsed = parse_address(address.url, "", address.tls_files)
    if not parsed.secure:
        if _is_loopback(parsed.host):
            return CheckResult("TLS", "ok", "not used, and not needed on this machine")
        return CheckResult(
            "TLS", "warning", f"{address.url} is not encrypted", "set listen.tls_certificate and listen.tls_key"
        )
    context = parsed.tls()
    assert context is not None
    import socket

    try:
        with (
            socket.create_connection((parsed.host, parsed.port), 5.0) as raw,
            context.current().wrap_socket(raw, server_hostname=parsed.host) as wrapped,
        ):
            certificate, version = wrapped.getpeercert() or {}, wrapped.version()
    except OSError as error:
        return CheckResult("TLS", "problem", f"no handshake with {address.url}: {error}", "see the findings above")
    not_after_s = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    return judge_expiry("TLS", f"{address.url} ({version})", not_after_s, time.time())


def judge_expiry(check: str, what: str, not_after_s: float, now_s: float) -> CheckResult:
    when = datetime.fromtimestamp(not_after_s, UTC).strftime("%Y-%m-%d")
    days = (not_after_s - now_s) / 86_400
    remedy = "renew the certificate; the broker notices the new files by itself"
    if days <= 0:
        return CheckResult(check, "problem", f"the certificate of {what} expired on {when}", remedy)
    level, remedy = ("warning", remedy) if days < EXPIRY_WARNING_DAYS else ("ok", "")
    message = f"the certificate of {what} is valid until {when}, {days:.0f} days"
    return CheckResult(check, "warning" if level == "warning" else "ok", message, remedy)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

"""Composes a server and runs it: listen, recover, serve, drain.

The listener opens first; requests that arrive while the journal is folded wait for it. A stop lets requests finish,
ends streams, makes everything durable and leaves.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import driftq
from driftq.engine.clock import SystemClock
from driftq.engine.engine import Engine
from driftq.engine.recovery import StorageOptions
from driftq.server import http
from driftq.server.access.guard import Guard
from driftq.server.app import App, routes
from driftq.server.handlers.context import Context
from driftq.server.handlers.responses import bad_request, error_response, internal_error
from driftq.server.http.listener import serve
from driftq.server.logs import AccessLog, RateLimited
from driftq.server.metrics.registry import Metrics, Sources
from driftq.server.outbound.client import OutboundClient
from driftq.server.router.caller import RouterCaller
from driftq.server.router.factory import make_router
from driftq.server.settings import LOOPBACK_HOSTS, Settings
from driftq.settings.loader import SettingsError
from driftq.storage.descriptors import DescriptorReserve
from driftq.storage.disk import NoDescriptors, OsDisk

logger = logging.getLogger("driftq.server")
_seldom = RateLimited(logger)

GRACE_S = 1.2
RECOVERY_WAIT_S = 20.0
WAITING_MAX = 1_000
Say = Callable[[str], None]


class ReadinessGate:
    """What stands before the routes: requests wait here until recovery is over, for a while."""

    def __init__(self, settings: Settings, answers: AccessLog) -> None:
        self.app: App | None = None
        self._recovered: asyncio.Future[App] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._guard = Guard(settings)
        self._answers = answers

    def __call__(self, request: http.Request) -> http.Answer:
        if self._answers.access_log:
            self._answers.began(request)
        known = request.head.handler
        if known is not None:
            return known(request)  # type: ignore[no-any-return]
        refused = self._guard.refusal(request)
        if refused is not None:
            return refused
        if self.app is not None:
            return self.app(request)
        if request.raw_path == b"/v1/healthz":
            return http.Response(200, b'{"status":"ok"}\n')
        if request.raw_path == b"/v1/readyz" or self._waiting >= WAITING_MAX:
            return _recovering()
        return self._wait(request)

    def open(self, app: App) -> None:
        self.app = app
        self._recovered.set_result(app)

    async def _wait(self, request: http.Request) -> http.Reply:
        self._waiting += 1
        try:
            app = await asyncio.wait_for(asyncio.shield(self._recovered), RECOVERY_WAIT_S)
        except TimeoutError:
            return _recovering()
        finally:
            self._waiting -= 1
        return await http.reply_of(app(request))


def _recovering() -> http.Response:
    headers = [("Retry-After", "1")]
    return error_response(503, "UNAVAILABLE", "recovering: not ready yet", {"retry_after_ms": 1_000}, headers)


async def run(settings: Settings, data: str | None, say: Say) -> None:
    """Serve until SIGTERM or SIGINT. `data` is the folder; None keeps everything in memory.

    Raises `EngineStopped` if the disk failed, what `storage` raises for a folder that cannot be opened, and `OSError`
    for an address that cannot be listened on.
    """
    _check_bind(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    shares = _share_descriptors(settings)
    reserve = DescriptorReserve(shares.reserved if data is not None else 0)
    outbound = OutboundClient(settings)
    router = make_router(settings.router, outbound)
    answers = AccessLog(access_log=settings.log.access or settings.log.level == "debug")
    door = ReadinessGate(settings, answers)
    listener = await serve(
        door,
        settings.listen.host,
        settings.listen.port,
        limits=http.HttpLimits(connections=shares.connections, body_bytes=settings.listen.body_bytes_max),
        ssl=_tls(settings),
        on_bad_request=bad_request,
        on_error=partial(_logged_error, answers),
        on_response=answers.answered,
    )
    outbound.policy.own_ports = frozenset({listener.port})
    engine = None
    try:
        began_s = loop.time()
        engine = await _open(settings, data, OsDisk(reserve), shares)
        asker = RouterCaller(router, engine, settings.router.timeout_ms) if router is not None else None
        sources = Sources(
            answers,
            asker,
            lambda: listener.connection_count,
            lambda: listener.stream_count,
            loop.time() - began_s,
            shares.connections,
        )
        _calm_the_collector()
        door.open(App(routes(Context(engine, settings, asker, Metrics(engine, sources), outbound))))
        say(_greeting(settings, listener.addresses, data, engine))
        await _until(stop, engine)
        say("stopping")
    finally:
        await listener.stop(GRACE_S)
        if router is not None:
            await router.close()
        outbound.close()
        if engine is not None:
            await engine.close()
        reserve.close()


def _calm_the_collector() -> None:
    """What recovery made lives as long as the server: looking through it again and again would only stall the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _share_descriptors(settings: Settings) -> DescriptorPlan:
    shares = plan(settings, raised_limit())
    if shares.connections < settings.listen.connections_max:
        logger.warning(
            "listen.connections_max is %d, but this process may open %d files: connections past %d get 503. "
            "Raise the limit (ulimit -n, LimitNOFILE=) or lower listen.connections_max",
            settings.listen.connections_max, shares.limit, shares.connections,
        )  # fmt: skip
    return shares


async def _open(settings: Settings, data: str | None, disk: OsDisk, shares: DescriptorPlan) -> Engine:
    if data is None:
        return Engine.in_memory(limits=settings.core_limits())

    def progress(lsn: int, tail_lsn: int) -> None:
        logger.info("recovering: %d of %d", lsn, tail_lsn)

    clock = SystemClock(settings.clock.downtime_max_ms, settings.clock.drift_max_ms)
    options = _storage_options(settings, shares.log_files)
    engine = await Engine.open(
        data, limits=settings.core_limits(), options=options, clock=clock, disk=disk, progress=progress
    )
    for path in engine.report.journal.shortened if engine.report is not None else ():
        logger.warning("%s is shorter than it was made; every block of it is there. Was it copied or cut?", path)
    return engine


def _storage_options(settings: Settings, open_files: int) -> StorageOptions:
    segment_bytes = settings.storage.segment_bytes
    # A journal segment always takes the largest frame: room for it is known before a byte of it is written.
    journal_bytes = max(segment_bytes, 3 * settings.limits.batch_bytes)
    return StorageOptions(journal_bytes, segment_bytes, settings.storage.cache_bytes, open_files)


async def _until(stop: asyncio.Event, engine: Engine) -> None:
    """Until somebody asks for the end or the disk fails."""
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((stopping, engine.stopped), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if engine.stopped.done():
        engine.stopped.result()


def _greeting(settings: Settings, addresses: list[str], data: str | None, engine: Engine) -> str:
    scheme = "https" if settings.listen.tls_certificate else "http"
    where = ", ".join(f"{scheme}://{address}" for address in addresses)
    report = engine.report
    if data is None or report is None:
        kept = "in memory (nothing is kept)"
    else:
        state = engine.latest_state
        found = "new" if report.created else f"{len(state.topics) // 2} topics, lsn {report.tail_lsn}"
        torn = ", a torn tail was cut off" if report.journal.torn is not None else ""
        kept = f"data in {data}, every write synced before its reply; recovered: {found}{torn}"
    return f"driftq {driftq.__version__} on {where}; {kept}"


def _logged_error(answers: AccessLog, request: http.Request, error: BaseException) -> http.Response:
    if isinstance(error, NoDescriptors):
        _seldom.warn("descriptors", "a request was refused, no file can be opened: %s", error)
        headers = [("Retry-After", "1")]
        return error_response(503, "UNAVAILABLE", "too many files are open; try again", headers=headers)
    fields = {"request_id": answers.name(request).decode()}
    path = request.raw_path.decode("latin-1")
    logger.error("%s %s failed", request.method, path, exc_info=error, extra={"fields": fields})
    return internal_error(request, error)


def _check_bind(settings: Settings) -> None:
    """Nobody should be on a network by accident."""
    host = settings.listen.host
    if host not in LOOPBACK_HOSTS and not settings.listen.insecure_bind:
        raise SettingsError(
            f"refusing to listen on {host}: it can be reached from outside and there is no authentication. "
            "Listen on 127.0.0.1, or say --set listen.insecure_bind=true if something in front protects it."
        )


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.listen.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.listen.tls_certificate, settings.listen.tls_key)
    return context


# --- How the process's file descriptors are divided between files and connections ---


LIMIT_MAX = 1 << 20  # "unlimited" is taken as this: some systems refuse more
STORAGE_FILES = 64  # beside the log files: journal, watermark, snapshots, syncs of a checkpoint, folders
OTHER = 96  # outbound calls, router threads, a checkpoint's pipes, listeners, the loop itself
CONNECTIONS_MIN = 32
LOG_FILES_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """What a limit of `limit` descriptors is used for."""

    limit: int
    log_files: int
    connections: int

    @property
    def reserved(self) -> int:
        """Placeholders for files."""
        return self.log_files + STORAGE_FILES


def raised_limit() -> int:
    """The soft limit of open files, after raising it as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # then with what there is
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def plan(settings: Settings, limit: int) -> DescriptorPlan:
    """Divide the descriptors. Raises `SettingsError` if they are too few to serve anything."""
    needed = STORAGE_FILES + OTHER + LOG_FILES_MIN + CONNECTIONS_MIN
    if limit < needed:
        raise SettingsError(
            f"this process may open {limit} files; a broker needs at least {needed}. Raise the limit (ulimit -n, "
            "LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)."
        )
    spare = limit - STORAGE_FILES - OTHER
    # Connections lose to storage only up to a half: fewer open log files cost time, not answers.
    log_files = max(LOG_FILES_MIN, min(settings.storage.open_files, spare // 2))
    return DescriptorPlan(limit, log_files, min(settings.listen.connections_max, spare - log_files))

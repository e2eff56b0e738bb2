"""Composes a server from its parts and runs it: listen, recover, serve, stop.

1. listen: the port is open first; requests wait in the `ReadinessGate`
2. recover: open the data folder and replay the journal
3. serve: routes, metrics, router; until SIGTERM, SIGINT or a failure of the disk
4. stop: requests finish, streams end, everything decided is made durable
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import driftq
from driftq.engine.archive_bases import ArchiveOptions
from driftq.engine.clock import SystemClock
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import Archive, StorageOptions
from driftq.engine.loop_monitor import LoopMonitor
from driftq.server import http
from driftq.server.access.authenticator import Authenticator
from driftq.server.access.gate import ReadinessGate
from driftq.server.app import App, routes
from driftq.server.handlers.codec import bad_request, error_response, internal_error
from driftq.server.handlers.context import Context
from driftq.server.http.listener import Listener, serve
from driftq.server.http.tls import ListenerTls, TlsFiles, TlsUnusable
from driftq.server.logs import AccessLog, RateLimited
from driftq.server.metrics.registry import Metrics, Sources
from driftq.server.outbound.client import OutboundClient
from driftq.server.router.caller import RouterCaller
from driftq.server.router.routers import make_router
from driftq.server.settings import LOOPBACK_HOSTS, Settings
from driftq.server.worker_registry import WorkerRegistry
from driftq.settings.loader import SettingsError
from driftq.storage.archive.cloud_objects import BadAddress, open_object_store
from driftq.storage.backup import remove_stale_holds
from driftq.storage.disk import DescriptorReserve, NoDescriptors, OsDisk

logger = logging.getLogger("driftq.server")
_rate_limited = RateLimited(logger)

SWITCH_INTERVAL_S = 0.0005  # shorter than a turn of a busy loop
GRACE_S = 1.2  # for requests in progress at a stop
Print = Callable[[str], None]


async def run(settings: Settings, data: str | None, report: Print) -> None:
    """Serve until SIGTERM or SIGINT. `data` is the folder; None keeps everything in memory.

    Raises `EngineStopped` if the disk failed, what `storage` raises for a folder that cannot be opened, and `OSError`
    for an address that cannot be listened on.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve_until(stop, settings, data, report, LoopMonitor())


async def serve_until(
    stop: asyncio.Event, settings: Settings, data: str | None, report: Print, monitor: LoopMonitor
) -> None:
    """`run` until `stop` is set."""
    _check_bind(settings)
    loop = asyncio.get_running_loop()
    descriptors = _plan_descriptors(settings)
    reserve = DescriptorReserve(descriptors.reserved if data is not None else 0)
    outbound = OutboundClient(settings)
    router = make_router(settings.router, outbound)
    access_log = AccessLog(enabled=settings.log.access or settings.log.level == "debug")
    gate = ReadinessGate(settings, access_log)
    tls = _tls(settings)
    listener = await _listen(settings, descriptors, tls, gate, access_log, monitor)
    outbound.policy.own_ports = frozenset({listener.port})
    engine = None
    try:
        if tls is not None:
            tls.follow(listener.use_tls)
        began_s = loop.time()
        engine = await _open(settings, data, OsDisk(reserve), descriptors, monitor)
        router_caller = RouterCaller(router, engine, settings.router.timeout_ms) if router is not None else None
        workers = WorkerRegistry(time.monotonic)
        sources = Sources(
            access_log,
            router_caller,
            lambda: listener.connection_count,
            lambda: listener.stream_count,
            loop.time() - began_s,
            descriptors.connections,
            lambda: len(workers),
            (lambda: tls.not_after_s) if tls is not None else None,
        )
        _tune_process(monitor)
        context = Context(engine, settings, router_caller, Metrics(engine, sources), outbound, workers)
        gate.open(App(routes(context), _authenticator(settings, engine, listener)))
        report(_greeting(settings, listener.addresses, data, engine))
        await _wait_for_stop(stop, engine)
        report("stopping")
    finally:
        monitor.close()
        if tls is not None:
            tls.close()
        await listener.stop(GRACE_S)
        if router is not None:
            await router.close()
        outbound.close()
        if engine is not None:
            await engine.close()
        reserve.close()


async def _listen(
    settings: Settings,
    descriptors: DescriptorPlan,
    tls: ListenerTls | None,
    gate: ReadinessGate,
    access_log: AccessLog,
    monitor: LoopMonitor,
) -> Listener:
    listen = settings.listen
    return await serve(
        gate,
        listen.host,
        listen.port,
        limits=http.HttpLimits(
            connections=descriptors.connections, body_bytes=listen.body_bytes_max, output_bytes=listen.output_bytes_max
        ),
        ssl=tls.context if tls is not None else None,
        on_bad_request=bad_request,
        on_error=partial(_logged_error, access_log),
        on_response=access_log.on_response,
        monitor=monitor,
    )


def _tune_process(monitor: LoopMonitor) -> None:
    _tune_threads()
    _tune_garbage_collector()
    monitor.watch_garbage_collection()


def _authenticator(settings: Settings, engine: Engine, listener: Listener) -> Authenticator | None:
    if not settings.auth.is_on:
        return None
    if not engine.latest_state.access_tokens.by_id:
        logger.warning("there is no access token, so every call is refused; stop and run `driftq auth init --data DIR`")
    authenticator = Authenticator(engine)
    listener.check_heads(authenticator.check_head)
    return authenticator


def _tune_threads() -> None:
    """Let the committer have the interpreter soon after its write or sync has ended.

    A busy loop releases the interpreter for a moment in each turn. A thread that waits for it starts its interval again
    each time, so with an interval longer than a turn it may wait for seconds.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def _tune_garbage_collector() -> None:
    """What recovery built lives as long as the server: collecting it again and again would only stall the loop."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _plan_descriptors(settings: Settings) -> DescriptorPlan:
    descriptors = plan_descriptors(settings, raise_limit())
    if descriptors.connections < settings.listen.connections_max:
        logger.warning(
            "listen.connections_max is %d, but this process may open %d files: connections past %d get 503. "
            "Raise the limit (ulimit -n, LimitNOFILE=) or lower listen.connections_max",
            settings.listen.connections_max, descriptors.limit, descriptors.connections,
        )  # fmt: skip
    return descriptors


async def _open(
    settings: Settings, data: str | None, disk: OsDisk, descriptors: DescriptorPlan, monitor: LoopMonitor
) -> Engine:
    if data is None:
        if settings.archive.url:
            raise SettingsError("archive.url: a broker that keeps everything in memory has nothing to archive")
        return Engine.in_memory(limits=settings.core_limits(), monitor=monitor)

    def progress(lsn: int, tail_lsn: int) -> None:
        logger.info("recovering: %d of %d", lsn, tail_lsn)

    remove_stale_holds(data)
    archive = _archive(settings)
    clock = SystemClock(settings.clock.downtime_max_ms, settings.clock.drift_max_ms)
    options = _storage_options(settings, descriptors.log_files)
    engine = await Engine.open(
        data,
        limits=settings.core_limits(),
        options=options,
        clock=clock,
        disk=disk,
        progress=progress,
        monitor=monitor,
        archive=archive,
    )
    for path in engine.report.journal.shortened if engine.report is not None else ():
        logger.warning(
            "%s is shorter than its size when it was made, but all its blocks are there. Was it copied?", path
        )
    return engine


def _archive(settings: Settings) -> Archive | None:
    chosen = settings.archive
    if not chosen.url:
        return None
    try:
        objects = open_object_store(chosen.url)
    except BadAddress as error:
        raise SettingsError(f"archive.url: {error}") from None
    options = ArchiveOptions(
        mode=chosen.mode,
        interval_ms=chosen.interval_ms,
        base_bytes=chosen.base_bytes,
        base_ms=chosen.base_ms,
        retain_ms=chosen.retain_ms,
        backlog_bytes_max=chosen.backlog_bytes_max,
    )
    return Archive(objects, options)


def _storage_options(settings: Settings, open_files: int) -> StorageOptions:
    segment_bytes = settings.storage.segment_bytes
    # A journal segment always takes the largest frame: room for it is known before a byte of it is written.
    journal_bytes = max(segment_bytes, 3 * settings.limits.batch_bytes)
    return StorageOptions(journal_bytes, segment_bytes, settings.storage.cache_bytes, open_files)


async def _wait_for_stop(stop: asyncio.Event, engine: Engine) -> None:
    """Wait for a stop or for a failure of the disk."""
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
        recovered = "new" if report.created else f"{len(state.topics) // 2} topics, lsn {report.tail_lsn}"
        torn = ", a torn tail was cut off" if report.journal.torn is not None else ""
        archived = f"; archive {engine.archiver.status().url}, {engine.archiver.mode}" if engine.archiver else ""
        kept = f"data in {data}, every write synced before its reply{archived}; recovered: {recovered}{torn}"
    return f"driftq {driftq.__version__} on {where}; {kept}"


def _logged_error(access_log: AccessLog, request: http.Request, error: BaseException) -> http.Response:
    if isinstance(error, NoDescriptors):
        _rate_limited.warn("descriptors", "a request was refused because no file can be opened: %s", error)
        headers = [("Retry-After", "1")]
        return error_response(503, "UNAVAILABLE", "too many files are open; try again", headers=headers)
    fields = {"request_id": access_log.request_id(request).decode()}
    path = request.raw_path.decode("latin-1")
    logger.error("%s %s failed", request.method, path, exc_info=error, extra={"fields": fields})
    return internal_error(request, error)


def _check_bind(settings: Settings) -> None:
    """Refuse to listen on a public address by accident."""
    host = settings.listen.host
    if host not in LOOPBACK_HOSTS and not settings.auth.is_on:
        raise SettingsError(
            f"refusing to listen on {host}: it can be reached from outside, and callers are not authenticated. "
            "Use --set auth.mode=tokens and make the first token with `driftq auth init`, or listen on 127.0.0.1."
        )


def _tls(settings: Settings) -> ListenerTls | None:
    listen = settings.listen
    if not listen.tls_certificate:
        return None
    files = TlsFiles(
        listen.tls_certificate, listen.tls_key, listen.tls_version_min, listen.tls_client_ca, listen.tls_client_auth
    )
    try:
        return ListenerTls(files)
    except TlsUnusable as error:
        raise SettingsError(f"TLS cannot be set up: {error}") from None


# --- file descriptors ---

LIMIT_MAX = 1 << 20  # "unlimited" is taken as this: some systems refuse more
STORAGE_FILES = 64  # beside the log files: journal, watermark, snapshots, syncs of a checkpoint, folders
OTHER_FILES = 96  # outbound calls, router threads, a checkpoint's pipes, listeners, the loop itself
CONNECTIONS_MIN = 32
LOG_FILES_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """How the `limit` descriptors of the process are divided between log files and connections."""

    limit: int
    log_files: int
    connections: int

    @property
    def reserved(self) -> int:
        """Descriptors kept free for files."""
        return self.log_files + STORAGE_FILES


def raise_limit() -> int:
    """The soft limit of open files, after raising it as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):
            pass  # continue with the present limit
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def plan_descriptors(settings: Settings, limit: int) -> DescriptorPlan:
    """Divide the descriptors. Raises `SettingsError` if they are too few to serve anything."""
    needed = STORAGE_FILES + OTHER_FILES + LOG_FILES_MIN + CONNECTIONS_MIN
    if limit < needed:
        raise SettingsError(
            f"this process may open {limit} files; a broker needs at least {needed}. Raise the limit (ulimit -n, "
            "LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)."
        )
    spare = limit - STORAGE_FILES - OTHER_FILES
    # Connections lose to storage only up to a half: fewer open log files cost time, not answers.
    log_files = max(LOG_FILES_MIN, min(settings.storage.open_files, spare // 2))
    return DescriptorPlan(limit, log_files, min(settings.listen.connections_max, spare - log_files))

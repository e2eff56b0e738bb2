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
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import driftq
from driftq.engine.clock import SystemClock
from driftq.engine.cold_reads import RecordsAway
from driftq.engine.engine import Engine
from driftq.engine.loop_monitor import LoopMonitor
from driftq.extras import require
from driftq.server import http
from driftq.server.access.authentication import KeyWait, authenticator_of
from driftq.server.access.gate import ReadinessGate
from driftq.server.access.trail import open_audit
from driftq.server.app import App
from driftq.server.descriptors import DescriptorPlan, planned
from driftq.server.handlers.codec import bad_request, error_response, internal_error
from driftq.server.handlers.context import Context
from driftq.server.http.listener import Listener, serve
from driftq.server.http.tls import ListenerTls, TlsFiles, TlsUnusable
from driftq.server.logs import AccessLog, RateLimited
from driftq.server.metrics.registry import Metrics, Sources
from driftq.server.observation.observers import Observers
from driftq.server.outbound.client import OutboundClient
from driftq.server.router.caller import RouterCaller
from driftq.server.router.routers import make_router
from driftq.server.routes import routes
from driftq.server.settings import LOOPBACK_HOSTS, Settings
from driftq.server.storage_options import archive_of, storage_options
from driftq.server.tenants.apps import TenantApps
from driftq.server.worker_registry import WorkerRegistry
from driftq.settings.loader import SettingsError
from driftq.storage.backup import remove_stale_holds
from driftq.storage.cold_segments import ColdRange
from driftq.storage.disk import DescriptorReserve, NoDescriptors, OsDisk

if TYPE_CHECKING:
    from driftq.server.access.authenticator import Authenticator
    from driftq.server.tracer import BrokerTracer

logger = logging.getLogger("driftq.server")
_rate_limited = RateLimited(logger)

SWITCH_INTERVAL_S = 0.0005  # shorter than a turn of a busy loop
GRACE_S = 1.2  # for requests in progress at a stop
Print = Callable[[str], None]
_NO_ORIGINS: Mapping[str, str] = MappingProxyType({})


async def run(settings: Settings, data: str | None, report: Print, origins: Mapping[str, str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `data` is the folder; None keeps everything in memory. `origins` says where
    settings come from.

    Raises `EngineStopped` if the disk failed, what `storage` raises for a folder that cannot be opened, and `OSError`
    for an address that cannot be listened on.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve_until(stop, settings, data, report, LoopMonitor(), origins or {})


async def serve_until(
    stop: asyncio.Event,
    settings: Settings,
    data: str | None,
    report: Print,
    monitor: LoopMonitor,
    origins: Mapping[str, str] = _NO_ORIGINS,
) -> None:
    """`run` until `stop` is set."""
    _check_bind(settings)
    loop = asyncio.get_running_loop()
    descriptors = planned(settings)
    reserve = DescriptorReserve(descriptors.reserved if data is not None else 0)
    outbound = OutboundClient(settings)
    router = make_router(settings.router, outbound)
    access_log = AccessLog(enabled=settings.log.access or settings.log.level == "debug")
    gate = ReadinessGate(settings, access_log)
    tls = _tls(settings)
    tracer = _tracer(settings)
    listener = await _listen(settings, descriptors, tls, gate, access_log, monitor)
    outbound.policy.own_ports = frozenset({listener.port})
    engine = observers = None
    try:
        if tls is not None:
            tls.follow(listener.use_tls)
        began_s = loop.time()
        engine = await _open(settings, data, OsDisk(reserve), descriptors, monitor)
        router_caller = RouterCaller(router, engine, settings.router.timeout_ms) if router is not None else None
        workers = WorkerRegistry(time.monotonic)
        sources = Sources(
            access_log, router_caller, lambda: listener.connection_count, lambda: listener.stream_count,
            loop.time() - began_s, descriptors.connections, lambda: len(workers),
            (lambda: tls.not_after_s) if tls is not None else None,
        )  # fmt: skip
        _tune_process(monitor)
        observers = Observers(engine, Metrics(engine, sources))
        await observers.start()
        context = Context(engine, settings, router_caller, observers.metrics, outbound, workers, observers, tracer)
        context.origins = origins
        context.audit = await open_audit(engine, settings, access_log.request_id)
        gate.open(_app(context, _authenticator(settings, engine, data, listener, outbound), listener))
        report(_greeting(settings, listener.addresses, data, engine))
        await _wait_for_stop(stop, engine)
        report("stopping")
        context.close()
    finally:
        monitor.close()
        if tls is not None:
            tls.close()
        await listener.stop(GRACE_S)
        if router is not None:
            await router.close()
        outbound.close()
        if observers is not None:
            await observers.stop()
        if engine is not None:
            await engine.close()
        reserve.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


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


def _app(context: Context, authenticator: Authenticator | None, listener: Listener) -> App | KeyWait:
    if authenticator is None:
        return App(routes(context), None)
    context.keys = authenticator.keys
    authenticator.audit = context.audit
    apps = TenantApps(
        context,
        lambda tenant_context, guard: App([guard(route) for route in routes(tenant_context)]),
        listener.connections_of,
    )
    apps.usage.start()
    context.apps = apps
    if context.metrics is not None:
        context.metrics.tenants = apps.rows
        context.metrics.credentials = lambda: {"wrong": authenticator.refused, "limited": authenticator.limited}
    return KeyWait(App(routes(context), authenticator, apps), authenticator)


def _authenticator(
    settings: Settings, engine: Engine, data: str | None, listener: Listener, outbound: OutboundClient
) -> Authenticator | None:
    if not settings.auth.is_on:
        return None
    authenticator = authenticator_of(settings, engine, data, outbound)
    listener.check_heads(authenticator.check_head)
    return authenticator


def _tune_threads() -> None:
    """Let the committer have the interpreter soon after its write or sync has ended.

    A busy loop releases the interpreter for a moment in each turn. A thread that waits for it starts its interval again
    each time, so with an interval longer than a turn it may wait for seconds.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def _tune_garbage_collector() -> None:
    """What recovery built lives as long as the server: collecting it again and again would only stall the loop.

    A look at 20,000 new objects takes 6 to 8 ms, and three times as long when other processes use the caches. So it
    looks at 5,000, and at what is left of 25,000.
    """
    gc.freeze()
    gc.set_threshold(5_000, 5, 800)


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
    archive = archive_of(settings.archive, settings.storage)
    clock = SystemClock(settings.clock.downtime_max_ms, settings.clock.drift_max_ms)
    options = storage_options(settings.storage, settings.limits.batch_bytes, descriptors.log_files)
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
    if isinstance(error, RecordsAway | ColdRange):
        # The latter: records left the cache while a reply was made that cannot wait.
        return error_response(503, "UNAVAILABLE", str(error), headers=[("Retry-After", "1")])
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


def _tracer(settings: Settings) -> BrokerTracer | None:
    if not settings.trace.otlp_url:
        return None
    require("tracing (trace.otlp_url)", "otel")
    from driftq.server.tracer import BrokerTracer  # noqa: PLC0415  # imports OpenTelemetry

    return BrokerTracer(settings.trace)


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

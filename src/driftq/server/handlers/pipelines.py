"""Reports of pipelines, and the settings of the server."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.server.access.identity import require_any_topic, sees_topic
from driftq.server.handlers.codec import json_response, no_content, read_json
from driftq.server.http import Answer, BadRequest, Request
from driftq.server.pipeline_registry import PipelineRegistry
from driftq.settings.loader import settings_of
from driftq.wire.fields import ID_LENGTH_MAX, to_rfc3339
from driftq.wire.pipelines import ConfigReply, PipelineInfo, PipelineReport, PipelinesReply, SettingInfo

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context
    from driftq.server.pipeline_registry import PipelineEntry

REPORT_BYTES_MAX = 64 << 10
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")  # in a URL
_PARAMETERS = re.compile(r"(?<=\?).*", re.DOTALL)


class PipelinesHandlers:
    """Handlers of `/v1/pipelines`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._registry = PipelineRegistry(time.monotonic)

    def report(self, request: Request, name: str) -> Answer:
        """A pipeline reports. The caller needs some right on the topics that it reads."""
        if len(name) > ID_LENGTH_MAX:
            raise BadRequest(f"the name of a pipeline has at most {ID_LENGTH_MAX} characters")
        if len(request.body) > REPORT_BYTES_MAX:
            raise BadRequest(f"a report has at most {REPORT_BYTES_MAX} bytes")
        report = read_json(request.body, PipelineReport)
        known = self._registry.find(name)
        for topic in (*report.topics, *(known.report.topics if known is not None else ())):
            require_any_topic(request, topic)
        if known is not None and not report.audit:
            report = replace(report, audit=known.report.audit)
        self._registry.report(name, report)
        return no_content()

    def list(self, request: Request) -> Answer:
        """The pipelines whose topics the caller may all see."""
        shown = [
            self._info(name, entry)
            for name, entry in self._registry
            if all(sees_topic(request.identity, topic) for topic in entry.report.topics)
        ]
        return json_response(PipelinesReply(shown))

    def _info(self, name: str, entry: PipelineEntry) -> PipelineInfo:
        report, now_ms, now_s = entry.report, self._engine.now_ms(), self._registry.now_s()
        return PipelineInfo(
            name=name,
            kind=report.kind,
            topics=report.topics,
            target=report.target,
            state=report.state,
            batch=report.batch,
            rows=report.rows,
            total_rows=entry.total_rows,
            took_ms=report.took_ms,
            lag=report.lag,
            audit=report.audit,
            error=report.error,
            first_seen=to_rfc3339(now_ms - int(1_000 * (now_s - entry.first_s))),
            seen=to_rfc3339(now_ms - int(1_000 * (now_s - entry.seen_s))),
        )


class ConfigHandlers:
    """The handler of `/v1/config`."""

    def __init__(self, context: Context) -> None:
        origins = context.origins
        self._reply = ConfigReply(
            [
                SettingInfo(name, masked(value), origins.get(name, "default"))
                for section, key, value, _ in settings_of(context.settings)
                for name in (f"{section}.{key}",)
            ]
        )

    def show(self, request: Request) -> Answer:
        return json_response(self._reply)


def masked(value: object) -> object:
    """A value without the credentials that an address may hold."""
    if isinstance(value, tuple):
        return tuple(map(masked, value))
    if not isinstance(value, str) or "://" not in value:
        return value
    return _PARAMETERS.sub("***", _CREDENTIALS.sub("***@", value))

"""The audit as a list: who changed what, the newest first; or from an offset on, to follow it.

An operator sees every record, a tenant those of its own callers. Records are selected while the topic is read, so a
page may be short although there are more: the next one continues where it ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple

from msgspec import json
from msgspec.structs import replace

from driftq.core.model.replies import Rejected
from driftq.engine.cold_reads import read_cold
from driftq.server.access.identity import require_topic
from driftq.server.handlers.codec import json_response, number, optional_time, page_limit, refusal
from driftq.server.handlers.message_search import BackwardReader, SearchedSpan
from driftq.server.http import BadRequest, Request, Response
from driftq.server.slices import SLICE_S
from driftq.wire.audit import AUDIT_TOPIC, AuditEntry, AuditReply
from driftq.wire.errors import Code
from driftq.wire.grants import READ
from driftq.wire.records import read_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

SCAN_MAX = 10_000  # records that one call looks at
WINDOW_BYTES = 256 << 10
_FILTERS = ("action", "name", "result", "tenant")
_entry = json.Decoder(AuditEntry).decode

Row = tuple[int, bytes]  # offset and record


class AuditFilter(NamedTuple):
    """Which records a caller asks for. An empty text is any."""

    who: str
    fields: tuple[tuple[str, str], ...]
    tenant: str | None  # of the caller; None: an operator

    @classmethod
    def of(cls, query: Mapping[str, str], tenant: str) -> AuditFilter:
        fields = tuple((name, query[name]) for name in _FILTERS if query.get(name))
        return cls(query.get("who", ""), fields, tenant or None)

    def fits(self, entry: AuditEntry) -> bool:
        if self.tenant is not None and entry.tenant != self.tenant:
            return False
        if self.who and self.who not in (entry.who, entry.token_id):
            return False
        return all(getattr(entry, name) == value for name, value in self.fields)


class AuditHandlers:
    """The handler of `/v1/audit`. It reads the topic itself, which is not in the namespace of a tenant."""

    def __init__(self, context: Context) -> None:
        self._tenant = context.tenant
        self._engine = context.root_engine

    async def list(self, request: Request) -> Response:
        require_topic(request, READ, AUDIT_TOPIC)
        query = request.query
        limit, wanted = page_limit(request), AuditFilter.of(query, self._tenant)
        since_ms, until_ms = optional_time(query, "since"), optional_time(query, "until")
        after = number("after", query["after"]) if "after" in query else None
        first = number("from", query["from"]) if "from" in query else None
        if after is not None and first is not None:
            raise BadRequest("after continues to older records, from to newer ones: name one of them")
        span = await self._engine.queries.result(lambda view: _span(view, since_ms, until_ms))
        if isinstance(span, Rejected):
            return refusal(span)
        if first is not None:
            rows = _forward(self._engine, span._replace(low=max(span.low, first)))
        else:
            rows = _backward(self._engine, span._replace(high=span.high if after is None else min(span.high, after)))
        records, scanned, last = await _selected(rows, wanted, limit)
        more = None if last is None else str(last + 1 if first is not None else last)
        return json_response(AuditReply(records, scanned, span.high, more))


async def _selected(
    rows: AsyncIterator[Row], wanted: AuditFilter, limit: int
) -> tuple[list[AuditEntry], int, int | None]:
    """The records of a page, how many were looked at, and the offset of the last one, unless all were looked at."""
    records: list[AuditEntry] = []
    scanned, until_s = 0, time.perf_counter() + SLICE_S
    async for offset, value in rows:
        scanned += 1
        entry = _entry(value)
        if wanted.fits(entry):
            records.append(replace(entry, offset=offset))
        if len(records) == limit or scanned == SCAN_MAX:
            return records, scanned, offset
        if time.perf_counter() >= until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + SLICE_S
    return records, scanned, None


def _span(view: StateView, since_ms: int | None, until_ms: int | None) -> SearchedSpan | Rejected:
    topic = view.state.topics.get(AUDIT_TOPIC)
    if topic is None:
        return Rejected(Code.NOT_FOUND, "the audit is off: start the server with audit.mode=on, or with an auth.mode")
    log_id = topic.log_ids[0]
    log = view.state.logs[log_id]
    low = log.start if since_ms is None else max(log.start, view.reader.offset_at(log_id, since_ms))
    high = log.end if until_ms is None else min(log.end, view.reader.offset_at(log_id, until_ms))
    return SearchedSpan(0, log_id, low, max(low, high))


async def _backward(engine: Engine, span: SearchedSpan) -> AsyncIterator[Row]:
    reader = BackwardReader(engine, span)
    while True:
        await read_cold(engine.cold_reads, reader.fill)
        if not reader.is_loaded:
            return
        _, offset, record = reader.take()
        yield offset, record.value


async def _forward(engine: Engine, span: SearchedSpan) -> AsyncIterator[Row]:
    offset = span.low
    while offset < span.high:
        batches = await engine.read_cold(span.log_id, offset, span.high, WINDOW_BYTES)
        if not batches:
            return  # trimmed in the meantime
        for batch in batches:
            header = read_header(batch)
            first, end = max(offset, header.first_offset), min(span.high, header.end_offset)
            for offset, record in enumerate(engine.unpack(span.log_id, batch, header, first, end), first):
                yield offset, record.value
        offset += 1

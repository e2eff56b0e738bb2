"""What the server records in the audit: who asked for a change, and who was refused.

    handler ──command──▶ Context.audited: + who, from where, what ──▶ engine: the change and its record are one frame
    handler ──no command──▶ Context.noted: a record alone, before it is done

    a refused credential ─┐
    a refused right ──────┴▶ RefusalSummary ──a second later, then every 10 s──▶ one record per address and reason

Refusals are summed up, so that a brute force neither fills the disk nor slows the server down: at most `KINDS_MAX`
records in ten seconds, however many callers there are. What was not written yet is lost with the process. Nothing of a
credential is recorded but the id of its token, which is no secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.core.model.access import NoteAudit, OpenAudit
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Rejected
from driftq.server.access.failure_limit import network_of
from driftq.server.access.token_text import id_of
from driftq.settings.loader import SettingsError
from driftq.wire.audit import DENIED, DONE, REFUSED, AuditRecord

if TYPE_CHECKING:
    from driftq.core.model.replies import Reply
    from driftq.engine.engine import Engine
    from driftq.server.access.identity import Identity
    from driftq.server.http import Request
    from driftq.server.settings import Settings

FIRST_S = 1.0  # after a quiet time a refusal is recorded so soon
EVERY_S = 10.0
KINDS_MAX = 100  # refusals with a record of their own in one interval; all others together are one more of each result
TEXT_MAX = 256  # characters of what a caller asked for
ACCESS = "access"  # the action of a refusal
_MORE = "too many different refusals to list"


async def open_audit(engine: Engine, settings: Settings, request_id: Callable[[Request], bytes]) -> AuditTrail | None:
    """Make the topic of the audit, or apply its settings. None if the audit is off."""
    audit = settings.audit
    if audit.mode == "off" or (audit.mode == "auto" and not settings.auth.is_on):
        return None
    config = TopicConfig(retention_ms=audit.retention_ms, retention_bytes=audit.retention_bytes)
    reply = await engine.submit(OpenAudit(config))
    if isinstance(reply, Rejected):
        raise SettingsError(f"audit.mode: {reply.message}; set it to off, or remove what is in the way")
    return AuditTrail(engine, request_id)


class AuditTrail:
    """The records of one server."""

    def __init__(self, engine: Engine, request_id: Callable[[Request], bytes]) -> None:
        self._engine = engine
        self._request_id = request_id
        self._refusals = RefusalSummary(engine)

    def note(self, request: Request, action: str, name: str, details: dict[str, object]) -> AuditRecord:
        """Who sends a request, and what it is about."""
        identity, head = request.identity, request.head
        return AuditRecord(
            action=action or head.action,
            name=name,
            who=identity.name if identity is not None else "",
            token_id=identity.token_id if identity is not None else "",
            tenant=identity.tenant if identity is not None else "",
            address=request.peer,
            request_id=self._request_id(request).decode(),
            route=head.route,
            details=details,
        )

    def done(self, note: AuditRecord, on_reply: Callable[[Reply], None]) -> None:
        """Record what no command does."""
        self._engine.submit_to(NoteAudit((replace(note, result=DONE),)), on_reply)

    def refused(self, request: Request, reason: str) -> None:
        """A credential was not accepted. Of the credential, the id of a token that exists is recorded."""
        credential = request.head.fields.get(b"authorization", b"")
        token_id = id_of(credential.partition(b" ")[2].strip(b" \t").decode("latin-1")) or ""
        token = self._engine.latest_state.access_tokens.by_id.get(token_id)
        token_id, tenant = (token_id, token.tenant) if token is not None else ("", "")
        kind = RefusedKind(REFUSED, reason, network_of(request.peer), token_id=token_id, tenant=tenant)
        self._refusals.add(kind, self._request_id(request))

    def denied(self, request: Request, identity: Identity, reason: str, name: str) -> None:
        """A caller lacks a right."""
        address = network_of(request.peer)
        kind = RefusedKind(
            DENIED, reason[:TEXT_MAX], address, name[:TEXT_MAX], identity.name, identity.token_id, identity.tenant
        )
        self._refusals.add(kind, self._request_id(request))

    def close(self) -> None:
        self._refusals.close()


class RefusedKind(NamedTuple):
    """What refusals have in common that are summed up. The fields are those of a record."""

    result: str
    reason: str
    address: str = ""
    name: str = ""
    who: str = ""
    token_id: str = ""
    tenant: str = ""


class RefusalSummary:
    """Counts refusals that are alike, and records them now and then."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._counts: dict[RefusedKind, tuple[int, bytes]] = {}  # how many, and the id of the last request
        self._timer: asyncio.TimerHandle | None = None
        self._written_s = -EVERY_S
        self._is_closed = False

    def add(self, kind: RefusedKind, request_id: bytes, count: int = 1) -> None:
        known = self._counts.get(kind)
        if known is None and len(self._counts) >= KINDS_MAX:
            kind = RefusedKind(kind.result, _MORE)
            known = self._counts.get(kind)
        self._counts[kind] = (known[0] + count if known is not None else count), request_id
        if self._timer is None and not self._is_closed:
            delay_s = max(FIRST_S, self._written_s + EVERY_S - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.write)

    def write(self) -> None:
        """Record what was counted. A disk without room keeps it for the next time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        if not counts:
            return
        self._written_s = self._clock()
        if self._engine.sequencer.is_full():
            self._keep(counts)
            return
        notes = (
            AuditRecord(action=ACCESS, count=count, request_id=request_id.decode(), **kind._asdict())
            for kind, (count, request_id) in counts.items()
        )
        self._engine.submit_to(
            NoteAudit(tuple(notes)), lambda reply: self._keep(counts) if isinstance(reply, Rejected) else None
        )

    def _keep(self, counts: dict[RefusedKind, tuple[int, bytes]]) -> None:
        for kind, (count, request_id) in counts.items():
            self.add(kind, request_id, count)

    def close(self) -> None:
        """Record what is left. Call it before the engine is closed."""
        self._is_closed = True
        if not self._engine.stopped.done():
            self.write()

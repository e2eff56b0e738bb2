"""Commands of access: who may call, and what they may do. The facts are in `core.model.access_facts`.

Secrets do not reach the core: a command has the digest of one.
"""

from __future__ import annotations

from driftq.core.model.commands import Command
from driftq.core.model.facts import TopicConfig
from driftq.wire.audit import AuditRecord


class CreateAccessToken(Command, frozen=True):
    """Create an access token. With `first`, only if there is none."""

    token_id: str
    name: str
    grants: tuple[str, ...]
    digest: bytes
    tenant: str = ""
    expires_ms: int = 0
    created_by: str = ""
    first: bool = False


class NarrowAccessToken(Command, frozen=True):
    """Take grants away from an access token, or make it expire earlier. None leaves it as it is."""

    token_id: str
    grants: tuple[str, ...] | None = None
    expires_ms: int | None = None


class RotateAccessToken(Command, frozen=True):
    """Give an access token a new secret. The old one is accepted for `overlap_ms` longer."""

    token_id: str
    digest: bytes
    overlap_ms: int = 0


class RevokeAccessToken(Command, frozen=True):
    token_id: str


class NoteAccessTokens(Command, frozen=True):
    """Note that these access tokens are in use."""

    token_ids: tuple[str, ...]


class OpenAudit(Command, frozen=True):
    """Make the topic of the audit, or change how long it keeps records."""

    config: TopicConfig = TopicConfig()


class NoteAudit(Command, frozen=True):
    """Record what changes nothing in the journal: refusals, requests to workers."""

    notes: tuple[AuditRecord, ...]

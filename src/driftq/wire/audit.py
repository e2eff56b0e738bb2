"""Records of the audit: who changed what, and who was refused. They are JSON, in the topic `_audit`.

result        what it is                                            recorded
changed       a change                                              in the same frame as the change
unchanged     a call that found everything as it asked for          when it was decided
done          something that the journal does not hold, such as a   before it is done
              request to stop a worker
denied        a caller that has no grant for what it asked for      summed up, with a count
refused       a credential that was not accepted                    summed up, with a count
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

AUDIT_TOPIC: Final = "_audit"
CHANGED: Final = "changed"
UNCHANGED: Final = "unchanged"
DONE: Final = "done"
DENIED: Final = "denied"
REFUSED: Final = "refused"
RESULTS: Final = (CHANGED, UNCHANGED, DONE, DENIED, REFUSED)


class AuditRecord(Struct, frozen=True):
    """One record. Names are those that the caller used: what a tenant calls `orders` is `orders`, and `tenant` says
    whose it is. A command has the record of itself, without the time and the result: they are added when it is
    decided."""

    at: str = ""
    action: str = ""  # such as topic.delete; `access` if something was refused
    result: str = ""  # one of RESULTS
    name: str = ""  # of what was changed or asked for
    who: str = ""  # the name of the credential; "" if callers have none
    token_id: str = ""  # the access token that proved it; of a refused credential: the id that it claims
    tenant: str = ""  # of the caller; "" for operators
    address: str = ""
    request_id: str = ""  # of a refusal: of the last one
    route: str = ""
    reason: str = ""  # of a refusal
    count: int = 1  # how many refusals were alike since the record before
    details: dict[str, Any] = {}  # what is different now


class AuditEntry(AuditRecord, frozen=True):
    """A record as the API lists it."""

    offset: int = 0


class AuditReply(Struct, frozen=True, omit_defaults=True):
    """A page of records, the newest first, and how many were looked at. `end` is the offset of the next record that is
    written; `after` continues the page."""

    records: list[AuditEntry]
    scanned: int
    end: int
    after: str | None = None

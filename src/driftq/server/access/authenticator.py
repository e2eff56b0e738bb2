"""Finds out who sent a request, from its credential.

    Authorization: Bearer TOKEN ──> verified before? ──yes──> Identity
                                       │no
                                       ▼
                                    FailureLimit: too many failures from this address? ──yes──> 429
                                       │no
                                       ▼
                                    look up the token's id, compare digests ──wrong──> 401, counted against the address
                                       │right
                                       ▼
                                    Identity, remembered by the credential's text

A verified credential costs one lookup by its text; the app also remembers the identity with a head that clients repeat.
What is remembered ends with the fact that ends the token: `observe` marks its identities as not valid any more before
the reply to that call leaves. Open streams of such an identity are ended by the sweep of the listener.

Wrong, unknown and revoked tokens get the same answer after the same work. Credentials are never logged.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from driftq.core.model.access import NoteAccessTokens
from driftq.core.model.access_facts import AccessTokenNarrowed, AccessTokenRevoked, AccessTokenRotated
from driftq.server.access.failure_limit import FailureLimit
from driftq.server.access.identity import Identity
from driftq.server.access.token_text import digest_of, id_of
from driftq.server.handlers.codec import error_response
from driftq.server.http.request import Request
from driftq.wire.errors import CODES, Code, retry_after_s
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import parse_grants
from driftq.wire.streams import CONTROL, ROOT

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.replies import Reply
    from driftq.engine.engine import Engine
    from driftq.server.http import Response
    from driftq.server.http.request import RequestHead

VERIFIED_MAX = 10_000  # credentials that are remembered
CREDENTIAL_BYTES_MAX = 8_192
NOTE_EVERY_S = 60.0  # how often uses of tokens are noted
USED_PRECISION_MS = 600_000  # a token in constant use is noted so often

_NO_SECRETS = ((bytes(32), 0),)  # of a token that does not exist: the same work
_BEARER = b"bearer "
_WITH_OWN_TOKENS = f"{ROOT}{CONTROL}/".encode()  # wakes are acked with the token that they came with
MISSING: Final = (
    "a token is required, in the header Authorization: Bearer TOKEN. Clients read DRIFTQ_TOKEN; "
    "`driftq tokens create` makes a token"
)
INVALID: Final = (
    "this token is not valid: it is mistyped, or it was revoked or replaced. `driftq tokens create` makes a token"
)
LIMITED: Final = "too many wrong credentials came from this address; try again later, with a valid one"


class Unverified(Exception):
    """A credential that is not accepted; the message is for its sender."""


class Authenticator:
    """Verifies the credentials of one server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._verified: dict[bytes, Identity] = {}  # by the value of the Authorization header
        self._by_token: dict[str, weakref.WeakSet[Identity]] = {}  # by token id: all that are still referred to
        self._failures = FailureLimit()
        self._noting: asyncio.TimerHandle | None = None
        self.refused = 0  # wrong credentials
        self.limited = 0  # credentials that were not looked at
        engine.sequencer.observers.append(self.observe)
        engine.stopped.add_done_callback(lambda _: self._close())
        self._note_later()

    def identify(self, request: Request) -> Response | None:
        """Set the identity of a request. Returns the response to a request that is refused."""
        credential = request.head.fields.get(b"authorization")
        now_s = time.time()
        if credential is not None:
            identity = self._verified.get(credential)
            if identity is not None and identity.until_s > now_s:
                identity.used_s = now_s
                request.identity = identity
                return None
        return self._verify(request, credential, now_s)

    def check_head(self, head: RequestHead, peer: str) -> tuple[int, str] | None:
        """For a large request, before its body is read: the status and message of a refusal."""
        if head.raw_path.startswith(_WITH_OWN_TOKENS):
            return None
        refused = self.identify(Request(head, b"", peer))
        return (refused.status, MISSING if refused.status == 401 else LIMITED) if refused is not None else None

    def _verify(self, request: Request, credential: bytes | None, now_s: float) -> Response | None:
        if credential is None:
            return _unauthenticated(MISSING, "")
        wait_s = self._failures.wait_s(request.peer, now_s)
        if wait_s > 0:
            self.limited += 1
            return _limited(wait_s)
        try:
            identity = self._identity(credential, now_s)
        except Unverified as refused:
            self.refused += 1
            self._failures.failed(request.peer, now_s)
            return _unauthenticated(str(refused), ' error="invalid_token"')
        self._remember(credential, identity)
        identity.used_s = now_s
        request.identity = identity
        return None

    def _identity(self, credential: bytes, now_s: float) -> Identity:
        if len(credential) > CREDENTIAL_BYTES_MAX or credential[:7].lower() != _BEARER:
            raise Unverified(MISSING)
        return self._of_token(credential[7:].strip(b" \t").decode("latin-1"), now_s)

    def _of_token(self, text: str, now_s: float) -> Identity:
        token_id = id_of(text)
        token = self._engine.latest_state.access_tokens.by_id.get(token_id) if token_id is not None else None
        digest, now_ms = digest_of(text), self._engine.now_ms()
        secrets = tuple(token.secrets(now_ms)) if token is not None else _NO_SECRETS
        ends = [until_ms for secret, until_ms in secrets if hmac.compare_digest(digest, secret)]
        if token is None or not ends:
            raise Unverified(INVALID)
        if token.is_expired(now_ms):
            raise Unverified(
                f"this token expired at {to_rfc3339(token.expires_ms)}; `driftq tokens create` makes another"
            )
        name = token.created.name or token.token_id
        until_s = now_s + (ends[0] - now_ms) / 1_000 if ends[0] else math.inf
        grants = parse_grants(token.grants)
        return Identity(name, grants, token_id=token.token_id, tenant=token.tenant, until_s=until_s)

    # --- what is remembered ---

    def _remember(self, credential: bytes, identity: Identity) -> None:
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
            self._by_token = {token_id: identities for token_id, identities in self._by_token.items() if identities}
        self._verified[credential] = identity
        identities = self._by_token.get(identity.token_id)
        if identities is None:
            identities = self._by_token[identity.token_id] = weakref.WeakSet()
        identities.add(identity)

    def observe(self, lsn: int, facts: Iterable[Fact]) -> None:
        """Durable facts, before the replies to them leave."""
        for fact in facts:
            kind = type(fact)
            if kind is AccessTokenRevoked or kind is AccessTokenNarrowed or kind is AccessTokenRotated:
                self._forget(fact.token_id)  # type: ignore[attr-defined]

    def _forget(self, token_id: str) -> None:
        for identity in self._by_token.pop(token_id, ()):
            identity.revoke()
        self._verified = {text: identity for text, identity in self._verified.items() if identity.until_s}

    # --- the last use of tokens ---

    def _note_later(self) -> None:
        self._noting = asyncio.get_running_loop().call_later(NOTE_EVERY_S, self._note_uses)

    def _note_uses(self) -> None:
        """Note which tokens were used, so that an unused one can be found and revoked."""
        tokens, now_ms = self._engine.latest_state.access_tokens.by_id, self._engine.now_ms()
        since_s = time.time() - NOTE_EVERY_S
        used = {
            identity.token_id: None
            for identity in self._verified.values()
            if identity.used_s >= since_s
            and (token := tokens.get(identity.token_id)) is not None
            and now_ms - token.used_ms >= USED_PRECISION_MS
        }
        if used:
            self._engine.submit_to(NoteAccessTokens(tuple(used)), _ignore)
        self._note_later()

    def _close(self) -> None:
        if self._noting is not None:
            self._noting.cancel()


def _ignore(_: Reply) -> None:
    """A full disk refuses it; the next round tries again."""


def _unauthenticated(message: str, challenge: str) -> Response:
    spec = CODES[Code.UNAUTHENTICATED]
    return error_response(spec.status, spec.error, message, headers=[("WWW-Authenticate", f"Bearer{challenge}")])


def _limited(wait_s: float) -> Response:
    spec = CODES[Code.OVERLOADED]
    retry_after_ms = int(wait_s * 1_000) + 1
    details = {"reason": "failed_credentials", "retry_after_ms": retry_after_ms}
    return error_response(
        spec.status, spec.error, LIMITED, details, [("Retry-After", str(retry_after_s(retry_after_ms)))]
    )

"""Finds out who sent a request, from its credential.

    Authorization: Bearer TOKEN ──> verified before? ──yes──> Identity     (or ?access_token=, of a short-lived one)
                                       │no                    (without one: the certificate of the connection)
                                       ▼
                                    FailureLimit: too many failures from this address? ──yes──> 429
                                       │no
                                       ▼
                                    an access token: look up its id, compare digests ──wrong──> 401, counted against
                                    a short-lived one: signature, expiry, its parent             the address
                                    one of an issuer: see `foreign_tokens`
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
import logging
import math
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from driftq.core.model.access import NoteAccessTokens
from driftq.core.model.access_facts import AccessTokenNarrowed, AccessTokenRevoked, AccessTokenRotated
from driftq.core.model.tenant_facts import TenantDeleted
from driftq.server.access import derived_tokens
from driftq.server.access.derived_tokens import DerivedClaims, pin_of
from driftq.server.access.failure_limit import FailureLimit
from driftq.server.access.foreign_tokens import FOREIGN_INVALID, ForeignTokens, KeysPending
from driftq.server.access.identity import Identity, Proof, Unverified
from driftq.server.access.signing_keys import KeysUnusable, SigningKeys
from driftq.server.access.token_text import digest_of, id_of
from driftq.server.handlers.codec import error_response
from driftq.server.http.request import Request
from driftq.server.logs import RateLimited
from driftq.wire.errors import CODES, Code, retry_after_s
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import parse_grants
from driftq.wire.streams import CONTROL, ROOT

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.replies import Reply
    from driftq.engine.engine import Engine
    from driftq.server.access.certificates import CertificateIdentities
    from driftq.server.access.trail import AuditTrail
    from driftq.server.http import Response
    from driftq.server.http.request import RequestHead
    from driftq.server.http.tls import PeerCertificate

VERIFIED_MAX = 10_000  # credentials that are remembered
CREDENTIAL_BYTES_MAX = 8_192
NOTE_EVERY_S = 60.0  # how often uses of tokens are noted
WATCH_EVERY_S = 1.0  # how often the file of keys is looked at
USED_PRECISION_MS = 600_000  # a token in constant use is noted so often

_NO_SECRETS = ((bytes(32), 0),)  # of a token that does not exist: the same work
_BEARER = b"bearer "
_IN_URL = b"url "  # begins what is remembered for a token in a URL; no scheme is called that
_JWT = "ey"  # every JWT begins with it: the text {" in base64
logger = logging.getLogger("driftq.access")
_rate_limited = RateLimited(logger)
_WITH_OWN_TOKENS = f"{ROOT}{CONTROL}/".encode()  # wakes are acked with the token that they came with
MISSING: Final = (
    "a token is required, in the header Authorization: Bearer TOKEN. Clients read DRIFTQ_TOKEN or a file that "
    "DRIFTQ_TOKEN_FILE names; `driftq tokens create` makes a token"
)
MISSING_FOREIGN: Final = (
    "a token of the issuer is required, in the header Authorization: Bearer TOKEN. Clients read DRIFTQ_TOKEN or a file "
    "that DRIFTQ_TOKEN_FILE names"
)
NO_KEYS: Final = "the keys of the issuer could not be fetched yet, so no token of it can be verified; try again"
NOT_IN_URL: Final = (
    "access_token in a URL is for reads with a short-lived token (`driftq tokens derive`); send other tokens in the "
    "header Authorization: Bearer TOKEN"
)
PARENT_ENDED: Final = (
    "the token that this short-lived token was derived from was revoked or replaced, or has expired; derive another one"
)
INVALID: Final = (
    "this token is not valid: it is mistyped, or it was revoked or replaced. `driftq tokens create` makes a token"
)
LIMITED: Final = "too many wrong credentials came from this address; try again later, with a valid one"


class CredentialRefusal(NamedTuple):
    """The refusal of a caller, before anything else is done for it."""

    code: Code
    message: str
    challenge: str = ""
    wait_s: float = 0.0  # before a credential from this address is looked at again

    def response(self) -> Response:
        spec = CODES[self.code]
        if self.challenge:
            return error_response(spec.status, spec.error, self.message, headers=[("WWW-Authenticate", self.challenge)])
        retry_after_ms = int(self.wait_s * 1_000) + 1
        details: dict[str, object] = {"retry_after_ms": retry_after_ms}
        if self.code is Code.OVERLOADED:
            details["reason"] = "failed_credentials"
        return error_response(
            spec.status, spec.error, self.message, details, [("Retry-After", str(retry_after_s(retry_after_ms)))]
        )


class Authenticator:
    """Verifies the credentials of one server: its own access tokens (`tokens`), those of an issuer
    (`foreign`), and client certificates."""

    def __init__(
        self,
        engine: Engine,
        keys: SigningKeys | None = None,
        *,
        tokens: bool = True,
        foreign: ForeignTokens | None = None,
        certificates: CertificateIdentities | None = None,
    ) -> None:
        self._engine = engine
        self.audit: AuditTrail | None = None  # where refusals are recorded
        self._tokens = tokens
        self._foreign = foreign
        self._certificates = certificates
        self._missing = MISSING if tokens else MISSING_FOREIGN
        self.keys = keys if keys is not None else SigningKeys(None, engine.now_ms())
        self._verified: dict[bytes, Identity] = {}  # by the value of the Authorization header
        self._by_token: dict[str, weakref.WeakSet[Identity]] = {}  # by token id: all that are still referred to
        self._failures = FailureLimit()
        self._noting: asyncio.TimerHandle | None = None
        self._watching: asyncio.TimerHandle | None = None
        self.refused = 0  # wrong credentials
        self.limited = 0  # credentials that were not looked at
        engine.sequencer.observers.append(self.observe)
        engine.stopped.add_done_callback(lambda _: self._close())
        self._note_later()
        self._watch_keys()
        if foreign is not None:
            foreign.keys.start(self._end_without_key)

    def identify(self, request: Request, *, reads: bool = False) -> Response | None:
        """Set the identity of a request. Returns the response to a request that is refused. `reads`: it changes
        nothing, so a short-lived token may be in its URL. Raises `KeysPending`: then wait, and ask again."""
        refused = self._check(request, reads)
        return refused.response() if refused is not None else None

    def refuse_unknown_key(self, request: Request) -> Response:
        """The response if the key of a token is still unknown."""
        if self._foreign is not None and self._foreign.keys.is_empty:
            return CredentialRefusal(Code.UNAVAILABLE, NO_KEYS, wait_s=0.5).response()
        return self._failed(request, FOREIGN_INVALID, time.time()).response()

    def check_head(
        self, head: RequestHead, peer: str, certificate: PeerCertificate | None = None
    ) -> tuple[int, str] | None:
        """For a large request, before its body is read: the status and message of a refusal."""
        if head.raw_path.startswith(_WITH_OWN_TOKENS):
            return None
        try:
            refused = self._check(Request(head, b"", peer, certificate), reads=False)
        except KeysPending:
            return None  # the request waits for them once it is complete
        return (CODES[refused.code].status, refused.message) if refused is not None else None

    def _check(self, request: Request, reads: bool) -> CredentialRefusal | None:
        credential = request.head.fields.get(b"authorization")
        if credential is None and b"access_token=" in request.head.raw_query:
            credential = _IN_URL + request.query.get("access_token", "").encode() if reads else _IN_URL
        now_s = time.time()
        if credential is not None:
            identity = self._verified.get(credential)
            if identity is not None and identity.until_s > now_s:
                identity.used_s = now_s
                request.identity = identity
                return None
        return self._verify(request, credential, now_s)

    def _verify(self, request: Request, credential: bytes | None, now_s: float) -> CredentialRefusal | None:
        if credential is None:
            return self._check_certificate(request, now_s)
        wait_s = self._failures.wait_s(request.peer, now_s)
        if wait_s > 0:
            self.limited += 1
            self._note_refusal(request, "too many wrong credentials: this one was not looked at")
            return CredentialRefusal(Code.OVERLOADED, LIMITED, wait_s=wait_s)
        try:
            identity = self._identity(credential, now_s)
        except Unverified as refused:
            return self._failed(request, str(refused), now_s)
        self._remember(credential, identity)
        identity.used_s = now_s
        request.identity = identity
        return None

    def _check_certificate(self, request: Request, now_s: float) -> CredentialRefusal | None:
        """A request without a token: who shows the certificate of its connection?"""
        if self._certificates is not None and request.certificate is not None:
            try:
                identity = self._certificates.identity(request.certificate, now_s, self._engine.now_ms())
            except Unverified as refused:
                return self._failed(request, str(refused), now_s)
            if identity is not None:
                self._track(identity)
                identity.used_s = now_s
                request.identity = identity
                return None
        self._note_refusal(request, "no credential")
        return CredentialRefusal(Code.UNAUTHENTICATED, self._missing, "Bearer")

    def _failed(self, request: Request, message: str, now_s: float) -> CredentialRefusal:
        self.refused += 1
        self._failures.failed(request.peer, now_s)
        self._note_refusal(request, message)
        return CredentialRefusal(Code.UNAUTHENTICATED, message, 'Bearer error="invalid_token"')

    def _note_refusal(self, request: Request, reason: str) -> None:
        if self.audit is not None:
            self.audit.refused(request, reason)

    def _identity(self, credential: bytes, now_s: float) -> Identity:
        if credential.startswith(_IN_URL):
            text = credential[len(_IN_URL) :].decode("latin-1")
            if not text.startswith(_JWT) or len(text) > CREDENTIAL_BYTES_MAX:
                raise Unverified(NOT_IN_URL)
            return self._of_derived(text, now_s)
        if len(credential) > CREDENTIAL_BYTES_MAX or credential[:7].lower() != _BEARER:
            raise Unverified(self._missing)
        text = credential[7:].strip(b" \t").decode("latin-1")
        if not text.startswith(_JWT):
            return self._of_token(text, now_s)
        if self._foreign is None or derived_tokens.is_ours(self.keys, text):
            return self._of_derived(text, now_s)
        return self._foreign.identity(text, now_s, self._engine.now_ms())

    def _of_token(self, text: str, now_s: float) -> Identity:
        token_id = id_of(text) if self._tokens else None
        token = self._engine.latest_state.access_tokens.by_id.get(token_id) if token_id is not None else None
        digest, now_ms = digest_of(text), self._engine.now_ms()
        secrets = tuple(token.secrets(now_ms)) if token is not None else _NO_SECRETS
        ends = [until_ms for secret, until_ms in secrets if hmac.compare_digest(digest, secret)]
        if token is None or not ends:
            raise Unverified(INVALID if self._tokens else self._missing)
        if token.is_expired(now_ms):
            raise Unverified(
                f"this token expired at {to_rfc3339(token.expires_ms)}; `driftq tokens create` makes another"
            )
        name = token.created.name or token.token_id
        until_s = now_s + (ends[0] - now_ms) / 1_000 if ends[0] else math.inf
        return Identity(
            name, parse_grants(token.grants), token_id=token.token_id, tenant=token.tenant, until_s=until_s,
            pin=pin_of(digest), ends_ms=ends[0],
        )  # fmt: skip

    # --- short-lived tokens ---

    def _of_derived(self, text: str, now_s: float) -> Identity:
        claims = derived_tokens.read(self.keys, text)
        if claims is None:
            raise Unverified(INVALID)
        now_ms, ends_ms = self._engine.now_ms(), claims.exp * 1_000
        if ends_ms <= now_ms:
            raise Unverified(f"this short-lived token expired at {to_rfc3339(ends_ms)}; derive another one")
        parent = self._parent(claims, now_ms)
        if parent is not None and parent.ends_ms:
            ends_ms = min(ends_ms, parent.ends_ms)
        return Identity(
            claims.sub, parse_grants(claims.grants), token_id=claims.token, tenant=claims.tenant,
            until_s=now_s + (ends_ms - now_ms) / 1_000, parent=parent, proof=Proof(claims.proof), pin=claims.pin,
            ends_ms=ends_ms, derived=True,
        )  # fmt: skip

    def _parent(self, claims: DerivedClaims, now_ms: int) -> Identity | None:
        """The access token that a short-lived one comes from, as it is now; None if its holder has none. Raises
        `Unverified` if it has ended, and `KeysPending`."""
        if claims.proof == Proof.JWT.value:
            if self._foreign is None or not self._foreign.vouches(claims.pin, claims.tenant):
                raise Unverified(PARENT_ENDED)
            return None
        if claims.proof == Proof.CERTIFICATE.value:
            if self._certificates is None or not self._certificates.vouches(claims.pin, claims.tenant):
                raise Unverified(PARENT_ENDED)
            return None
        if claims.proof != Proof.TOKEN.value or not self._tokens:
            raise Unverified(PARENT_ENDED)
        token = self._engine.latest_state.access_tokens.by_id.get(claims.token)
        if token is None or token.is_expired(now_ms):
            raise Unverified(PARENT_ENDED)
        ends = [until_ms for secret, until_ms in token.secrets(now_ms) if pin_of(secret) == claims.pin]
        if not ends:
            raise Unverified(PARENT_ENDED)
        return Identity(
            claims.sub, parse_grants(token.grants), token_id=token.token_id, tenant=token.tenant, ends_ms=ends[0]
        )

    def _watch_keys(self) -> None:
        """Look at the file of keys about once a second. Identities that a removed key has signed end."""
        self._watching = asyncio.get_running_loop().call_later(WATCH_EVERY_S, self._watch_keys)
        try:
            key_is_gone = self.keys.reload()
        except KeysUnusable as error:
            _rate_limited.warn("keys", "the keys of short-lived tokens stay as they were: %s", error)
            return
        if key_is_gone:
            self._end(lambda identity: identity.derived)

    def _end_without_key(self) -> None:
        """The issuer has removed a key: what it has signed ends."""
        keys = self._foreign.keys if self._foreign is not None else None
        self._end(lambda identity: identity.proof is Proof.JWT and keys is not None and not keys.has(identity.pin))

    # --- what is remembered ---

    def _remember(self, credential: bytes, identity: Identity) -> None:
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
            self._by_token = {token_id: identities for token_id, identities in self._by_token.items() if identities}
        self._verified[credential] = identity
        self._track(identity)

    def _track(self, identity: Identity) -> None:
        identities = self._by_token.get(identity.token_id)
        if identities is None:
            identities = self._by_token[identity.token_id] = weakref.WeakSet()
        identities.add(identity)
        identity.audit = self.audit

    def observe(self, lsn: int, facts: Iterable[Fact]) -> None:
        """Durable facts, before the replies to them leave."""
        for fact in facts:
            kind = type(fact)
            if kind is AccessTokenRevoked or kind is AccessTokenNarrowed or kind is AccessTokenRotated:
                self._forget(fact.token_id)  # type: ignore[attr-defined]
            elif kind is TenantDeleted:
                tenant = fact.tenant  # type: ignore[attr-defined]
                self._end(lambda identity, tenant=tenant: identity.tenant == tenant)  # type: ignore[misc]

    def _forget(self, token_id: str) -> None:
        for identity in self._by_token.pop(token_id, ()):
            identity.revoke()
        self._drop_ended()

    def _end(self, is_ended: Callable[[Identity], bool]) -> None:
        for identities in self._by_token.values():
            for identity in identities:
                if is_ended(identity):
                    identity.revoke()
        self._drop_ended()

    def _drop_ended(self) -> None:
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
            and not identity.derived
            and (token := tokens.get(identity.token_id)) is not None
            and now_ms - token.used_ms >= USED_PRECISION_MS
        }
        if used:
            self._engine.submit_to(NoteAccessTokens(tuple(used)), _ignore)
        self._note_later()

    def _close(self) -> None:
        for timer in (self._noting, self._watching):
            if timer is not None:
                timer.cancel()
        if self._foreign is not None:
            self._foreign.keys.close()


def _ignore(_: Reply) -> None:
    """A full disk refuses it; the next round tries again."""

"""The authentication of a server: what its settings accept, and calls that wait for a key of the issuer.

    app ──KeysPending──▶ wait for the fetch, for a limited time ──▶ app again ──KeysPending──▶ 401; 503 without a key

A token may name a key that the broker does not know, because the issuer has a new one. Such a call waits while the keys
are fetched. The number of waiting calls is limited, and each waits only once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from driftq.server.access.authenticator import Authenticator
from driftq.server.access.certificates import CertificateIdentities
from driftq.server.access.foreign_tokens import ForeignTokens, KeysPending
from driftq.server.access.issuer_keys import IssuerKeys
from driftq.server.access.signing_keys import KeysUnusable, SigningKeys
from driftq.server.http import reply_of
from driftq.settings.loader import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.engine.engine import Engine
    from driftq.server.http import Answer, Reply, Request
    from driftq.server.outbound.client import OutboundClient
    from driftq.server.settings import Settings

WAITING_MAX = 1_000
logger = logging.getLogger("driftq.access")


def authenticator_of(settings: Settings, engine: Engine, data: str | None, outbound: OutboundClient) -> Authenticator:
    """The authenticator that the settings ask for. Raises `SettingsError`."""
    auth, tenants = settings.auth, engine.latest_state.tenants
    if auth.has_tokens and not auth.certificates and not engine.latest_state.access_tokens.by_id:
        logger.warning(
            "there is no access token, so every call with one is refused; stop and run `driftq auth init --data DIR`"
        )
    foreign = None
    if auth.has_jwt:
        foreign = ForeignTokens(settings.jwt, IssuerKeys(settings.jwt, outbound), lambda: tenants.by_name)
    try:
        keys = SigningKeys(data, engine.now_ms())
    except KeysUnusable as error:
        raise SettingsError(str(error)) from None
    certificates = CertificateIdentities(auth.certificates, lambda: tenants.by_name) if auth.certificates else None
    return Authenticator(engine, keys, tokens=auth.has_tokens, foreign=foreign, certificates=certificates)


class KeyWait:
    """An app that waits for keys."""

    def __init__(self, app: Callable[[Request], Answer], authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator
        self._waiting = 0

    def __call__(self, request: Request) -> Answer:
        try:
            return self._app(request)
        except KeysPending as pending:
            if self._waiting >= WAITING_MAX:
                return self._authenticator.refuse_unknown_key(request)
            return self._retry(request, pending)

    async def _retry(self, request: Request, pending: KeysPending) -> Reply:
        self._waiting += 1
        try:
            await pending.wait()
        finally:
            self._waiting -= 1
        try:
            return await reply_of(self._app(request))
        except KeysPending:
            return self._authenticator.refuse_unknown_key(request)

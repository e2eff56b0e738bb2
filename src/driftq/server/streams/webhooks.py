"""Calls the webhooks of subscriptions: one call at a time for each, retried with backoff while its wake lasts.

Follows durable facts. Calls that were in progress when a server stopped are repeated after its next start, so a
receiver may be called twice for a wake; the generation identifies the repeat. A call has one time limit from connecting
to the end of the response. Each receiver has a share of the concurrent calls, so a slow one does not delay the others.
Which addresses may be called is decided by `server.outbound`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import uniform
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from driftq.core.model import subscriptions
from driftq.core.model.stream_facts import WEBHOOK, SubscriptionDeleted, WakeMade
from driftq.engine.lifetime import EngineStopped
from driftq.server.outbound.address_policy import AddressRefused, ip_literal
from driftq.server.outbound.client import OutboundClient, OutboundFailed, OutboundTarget, target_of
from driftq.wire import streams as w
from driftq.wire.namespaces import Namespace, is_tenant_name, tenant_of

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.replies import Reply
    from driftq.core.state.subscriptions import SubscriptionRecord
    from driftq.engine.engine import Engine

logger = logging.getLogger("driftq.webhooks")

CALLS_MAX = 64
CALLS_PER_RECEIVER = 4
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0


class WebhookAnswer(NamedTuple):
    """The response of a receiver that accepted the call."""

    done: bool


def check_url(url: str, outbound: OutboundClient) -> OutboundTarget:
    """Check the URL of a webhook: https to public addresses, plain http to this machine. Raises `AddressRefused`."""
    target = target_of(url)
    address = ip_literal(target.host)
    is_local = target.host == "localhost" or target.host.endswith(".localhost")
    if target.tls and (is_local or (address is not None and address.is_loopback)):
        raise AddressRefused("localhost is called over plain http")
    outbound.check(target)
    return target


class CallSlots:
    """Limits concurrent calls, in all and per receiver, so that a slow receiver blocks only its own calls."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(CALLS_MAX)
        self._shares: dict[tuple[str, int], tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def acquire(self, target: OutboundTarget) -> AsyncIterator[None]:
        key = (target.host, target.port)
        share, users = self._shares.setdefault(key, (asyncio.Semaphore(CALLS_PER_RECEIVER), []))
        users.append(None)
        try:
            async with share, self._all:
                yield
        finally:
            users.pop()
            if not users:
                del self._shares[key]


def _is_done(answer: bytes) -> bool:
    try:
        value = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("done") is True


class Webhooks:
    """Calls the webhooks of one server."""

    def __init__(self, engine: Engine, signer: Signer, outbound: OutboundClient, timeout_ms: int) -> None:
        self._engine = engine
        self._signer = signer
        self._outbound = outbound
        self._timeout_ms = timeout_ms
        self._slots = CallSlots()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by subscription
        self._failures: dict[int, int] = {}
        self._durable: dict[int, int] = {}  # the last durable generation of each subscription
        engine.sequencer.observers.append(self._observe)
        engine.stopped.add_done_callback(lambda _: self.stop())
        for subscription in engine.latest_state.subscriptions.by_number.values():
            if subscription.wake_id:
                self._durable[subscription.number] = subscription.generation
                self._start(subscription.number)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def failures(self, number: int) -> int:
        """How often it failed since the last success."""
        return self._failures.get(number, 0)

    def _observe(self, lsn: int, facts: list[Fact]) -> None:
        for fact in facts:
            if type(fact) is WakeMade:
                self._durable[fact.number] = fact.generation
                self._start(fact.number)
            elif type(fact) is SubscriptionDeleted:
                self._durable.pop(fact.number, None)
                self._failures.pop(fact.number, None)

    def _start(self, number: int) -> None:
        """At most one task for a subscription: it runs while there are wakes to call for."""
        subscription = self._engine.latest_state.subscriptions.by_number.get(number)
        if subscription is None or subscription.config.kind != WEBHOOK:
            return
        task = self._tasks.get(number)
        if task is None or task.done():
            task = self._tasks[number] = asyncio.ensure_future(
                self._engine.monitor.steps("webhooks", self._serve(number))
            )
            task.add_done_callback(lambda over: self._remove(number, over))

    def _remove(self, number: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(number) is task:
            del self._tasks[number]

    async def _serve(self, number: int) -> None:
        called = 0  # the last generation whose call succeeded
        while True:
            subscription = self._engine.latest_state.subscriptions.by_number.get(number)
            if subscription is None or not subscription.wake_id:
                return
            generation = subscription.generation
            if generation == called or generation != self._durable.get(number):
                return  # nothing new, or not durable yet: then its fact starts the next task
            answer = await self._call(subscription)
            if answer is None:
                await asyncio.sleep(self._backoff_s(number))
                continue
            self._failures.pop(number, None)
            called = generation
            if answer.done:
                await self._finish(subscription, generation)

    def _backoff_s(self, number: int) -> float:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        backoff_s: float = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 10))
        return backoff_s * uniform(0.8, 1.2)

    async def _call(self, subscription: SubscriptionRecord) -> WebhookAnswer | None:
        """The response of a receiver that accepted the call; None if the call has to be retried."""
        try:
            target = check_url(subscription.config.url, self._outbound)
            async with self._slots.acquire(target):
                body = await self._engine.queries.result(lambda _: self._body(subscription))
                async with asyncio.timeout(self._timeout_ms / 1_000):
                    return await self._post(target, body)
        except TimeoutError:
            failure = f"no response within {self._timeout_ms} ms"
        except (OSError, OutboundFailed, AddressRefused) as error:
            failure = str(error)
        logger.info("webhook of %s failed: %s", subscription.created.subscription, failure)
        return None

    async def _post(self, target: OutboundTarget, body: bytes) -> WebhookAnswer | None:
        signature = self._signer.signature(body, int(time.time()))
        headers = [(w.WEBHOOK_SIGNATURE, signature)]
        status, response = await self._outbound.post(target, body, "driftq-webhook", headers, truncate=True)
        return WebhookAnswer(_is_done(response)) if 200 <= status < 300 else None

    def _body(self, subscription: SubscriptionRecord) -> bytes:
        name = subscription.created.subscription
        space = Namespace(tenant_of(name))
        tails = dict(subscription.tails)
        root = subscription.created.origin + w.ROOT
        return msgspec.json.encode(
            {
                "subscription_id": space.own(name),
                "wake_id": subscription.wake_id,
                "generation": subscription.generation,
                "streams": [
                    {
                        "path": space.own(path),
                        "link_type": "explicit" if link.by_name else "glob",
                        "acked_offset": w.token(link.acked),
                        "tail_offset": w.token(tails[path]),
                        "has_pending": tails[path] > link.acked,
                    }
                    for path, link in subscription.links.items()
                    if path in tails
                ],
                "callback_url": f"{root}{w.CONTROL}/subscriptions/{w.quoted(space.own(name))}/callback",
                "callback_token": self._signer.token(name, subscription.generation),
            }
        )

    async def _finish(self, subscription: SubscriptionRecord, generation: int) -> None:
        command = subscriptions.FinishWake(subscription.created.subscription, generation)
        try:
            _: Reply = await self._engine.submit(command)  # a refusal means that the wake has ended already
        except EngineStopped:
            return


# --- signatures (Ed25519) and callback tokens, both derived from one secret in the journal ---

SEED_BYTES = 32


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def tenant_in(token: str) -> str:
    """The tenant that the token of a wake names; "" if it names none."""
    parts = token.split(".")
    return parts[2] if len(parts) == 3 and is_tenant_name(parts[2]) else ""


class Signer:
    """The key pair for signatures, and the key for tokens."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"webhook signing" + seed).digest())
        self._token_key = hashlib.sha256(b"callback tokens" + seed).digest()
        public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.kid = "ds_" + hashlib.sha256(public).hexdigest()[:16]
        self.jwks = {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": _base64url(public)}
            ]
        }

    def signature(self, body: bytes, at_s: int) -> str:
        """The value of `Webhook-Signature`."""
        signed = self._private.sign(b"%d.%b" % (at_s, body))
        return f"t={at_s},kid={self.kid},ed25519={_base64url(signed)}"

    def token(self, subscription: str, generation: int) -> str:
        """The token of a wake. That of a tenant's subscription also names the tenant."""
        proof = hmac.new(self._token_key, f"{generation}:{subscription}".encode(), hashlib.sha256).digest()
        tenant = tenant_of(subscription)
        return f"{generation}.{_base64url(proof)}" + (f".{tenant}" if tenant else "")

    def generation_of(self, token: str, subscription: str) -> int | None:
        """The generation of a token; None if it is not one of ours."""
        number = token.partition(".")[0]
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        if not hmac.compare_digest(token.encode(), self.token(subscription, int(number)).encode()):
            return None
        return int(number)

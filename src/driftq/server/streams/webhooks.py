"""Calls webhooks: one call at a time for each subscription, again after a failure, for as long as its wake lasts.

Follows durable facts. Whatever was under way when a server stopped is called again at its next start: a receiver may
be called twice for a wake, and its generation tells. A call has a time limit in all, and a receiver a share of the
calls that may be under way, so a slow one delays no other. Where a call may go is for `server.outbound`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import ssl
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
from driftq.engine.engine import Engine, EngineStopped
from driftq.server.outbound import Outbound, OutboundFailed, Refused, Target, literal, target_of
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.replies import Reply
    from driftq.core.state.subscriptions import SubscriptionRecord

logger = logging.getLogger("driftq.webhooks")

CALLS_MAX = 64
CALLS_PER_RECEIVER = 4
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0


class WebhookAnswer(NamedTuple):
    """Of a receiver that took the call."""

    done: bool


def check_url(url: str, outbound: Outbound) -> Target:
    """https to anywhere public; plain http only to this machine, for development. Raises `Refused`."""
    target = target_of(url)
    address = literal(target.host)
    is_local = target.host == "localhost" or target.host.endswith(".localhost")
    if target.tls and (is_local or (address is not None and address.is_loopback)):
        raise Refused("localhost is called over plain http")
    outbound.check(target)
    return target


class Slots:
    """Room for calls. A receiver has a share of its own: one that is slow uses up that, and nobody else's."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(CALLS_MAX)
        self._shares: dict[tuple[str, int], tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def one(self, target: Target) -> AsyncIterator[None]:
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


def _says_done(answer: bytes) -> bool:
    try:
        value = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("done") is True


class Webhooks:
    """The calls of one server."""

    def __init__(self, engine: Engine, signer: Signer, outbound: Outbound, timeout_ms: int) -> None:
        self._engine = engine
        self._signer = signer
        self._outbound = outbound
        self._timeout_ms = timeout_ms
        self._slots = Slots()
        self._tls = ssl.create_default_context()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by subscription
        self._failures: dict[int, int] = {}
        self._durable: dict[int, int] = {}  # the last generation of each subscription that no crash can take back
        engine.sequencer.observers.append(self._observe)
        engine.stopped.add_done_callback(lambda _: self.stop())
        for subscription in engine.latest_state.subscriptions.by_number.values():
            if subscription.wake_id:
                self._durable[subscription.number] = subscription.generation
                self._start(subscription.number)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def failing(self, number: int) -> bool:
        return self._failures.get(number, 0) > 0

    def _observe(self, lsn: int, facts: list[Fact]) -> None:
        for fact in facts:
            if type(fact) is WakeMade:
                self._durable[fact.number] = fact.generation
                self._start(fact.number)
            elif type(fact) is SubscriptionDeleted:
                self._durable.pop(fact.number, None)
                self._failures.pop(fact.number, None)

    def _start(self, number: int) -> None:
        """At most one task for a subscription: it goes on for as long as there are wakes to call for."""
        subscription = self._engine.latest_state.subscriptions.by_number.get(number)
        if subscription is None or subscription.config.kind != WEBHOOK:
            return
        task = self._tasks.get(number)
        if task is None or task.done():
            task = self._tasks[number] = asyncio.ensure_future(self._serve(number))
            task.add_done_callback(lambda over: self._forget(number, over))

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(number) is task:
            del self._tasks[number]

    async def _serve(self, number: int) -> None:
        called = 0  # the last generation that was called for with success
        while True:
            subscription = self._engine.latest_state.subscriptions.by_number.get(number)
            if subscription is None or not subscription.wake_id:
                return
            generation = subscription.generation
            if generation == called or generation != self._durable.get(number):
                return  # nothing new, or not yet: then its fact starts the next task
            answer = await self._call(subscription)
            if answer is None:
                await asyncio.sleep(self._pause_s(number))
                continue
            self._failures.pop(number, None)
            called = generation
            if answer.done:
                await self._finish(subscription, generation)

    def _pause_s(self, number: int) -> float:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        pause_s: float = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 10))
        return pause_s * uniform(0.8, 1.2)

    async def _call(self, subscription: SubscriptionRecord) -> WebhookAnswer | None:
        """The answer of a receiver that took the call; None if it has to be called again."""
        try:
            target = check_url(subscription.config.url, self._outbound)
            async with self._slots.one(target):
                body = await self._engine.queries.result(lambda _: self._body(subscription))
                async with asyncio.timeout(self._timeout_ms / 1_000):
                    return await self._post(target, body)
        except TimeoutError:
            failure = f"no answer within {self._timeout_ms} ms"
        except (OSError, OutboundFailed, Refused) as error:
            failure = str(error)
        logger.info("webhook of %s failed: %s", subscription.created.subscription, failure)
        return None

    async def _post(self, target: Target, body: bytes) -> WebhookAnswer | None:
        signature = self._signer.signature(body, int(time.time()))
        head = target.head("driftq-webhook", f"{w.WEBHOOK_SIGNATURE}: {signature}", "Connection: close")
        tls = self._tls if target.tls else None
        request = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        status, answer = await self._outbound.post(target, tls, request)
        return WebhookAnswer(_says_done(answer)) if 200 <= status < 300 else None

    def _body(self, subscription: SubscriptionRecord) -> bytes:
        name = subscription.created.subscription
        tails = dict(subscription.tails)
        root = subscription.created.origin + w.ROOT
        return msgspec.json.encode(
            {
                "subscription_id": name,
                "wake_id": subscription.wake_id,
                "generation": subscription.generation,
                "streams": [
                    {
                        "path": path,
                        "link_type": "explicit" if link.by_name else "glob",
                        "acked_offset": w.token(link.acked),
                        "tail_offset": w.token(tails[path]),
                        "has_pending": tails[path] > link.acked,
                    }
                    for path, link in subscription.links.items()
                    if path in tails
                ],
                "callback_url": f"{root}{w.CONTROL}/subscriptions/{w.quoted(name)}/callback",
                "callback_token": self._signer.token(name, subscription.generation),
            }
        )

    async def _finish(self, subscription: SubscriptionRecord, generation: int) -> None:
        command = subscriptions.FinishWake(subscription.created.subscription, generation)
        try:
            _: Reply = await self._engine.submit(command)  # a refusal means that the wake was over already
        except EngineStopped:
            return


# --- Signs webhooks with Ed25519 and makes the tokens of callbacks, both from one secret that the journal keeps ---


SEED_BYTES = 32


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """One key pair and the key of tokens."""

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
        proof = hmac.new(self._token_key, f"{generation}:{subscription}".encode(), hashlib.sha256).digest()
        return f"{generation}.{_base64url(proof)}"

    def generation_of(self, token: str, subscription: str) -> int | None:
        """The generation a token of ours was made for; None for any other."""
        number = token.partition(".")[0]
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            return None
        if not hmac.compare_digest(token.encode(), self.token(subscription, int(number)).encode()):
            return None
        return int(number)

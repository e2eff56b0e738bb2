"""Calls webhooks: one call at a time for each subscription, again after a failure, for as long as its wake lasts.

Follows durable facts. Whatever was under way when a server stopped is called again at its next start: a receiver may
be called twice for a wake, and its generation tells. Calls run in threads, because they are plain blocking HTTP.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import logging
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from random import uniform
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from driftq.core import wakes
from driftq.core.facts import Fact
from driftq.core.replies import Reply
from driftq.core.subscriptions import Subscription
from driftq.engine.engine import Engine, EngineStopped
from driftq.server.streams.signing import Signer
from driftq.wire import streams as w

logger = logging.getLogger("driftq.webhooks")

CALLS_AT_ONCE = 16
CALL_S = 10.0
ANSWER_BYTES_MAX = 64 << 10
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0


class Refused(Exception):
    """An address that must not be called; the message says why."""


def check_url(url: str) -> None:
    """https to anywhere public; plain http only to this machine, for development."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        _ = parts.port
    except ValueError:
        raise Refused("webhook.url is not an address") from None
    if not host or parts.username or parts.fragment:
        raise Refused("webhook.url is not an address")
    if parts.scheme == "http":
        if not is_local(host):
            raise Refused("plain http is only for localhost and 127.0.0.0/8")
    elif parts.scheme != "https":
        raise Refused("webhook.url must use https")
    elif host == "localhost" or host.endswith(".localhost"):
        raise Refused("localhost is called over plain http")
    else:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return  # a name: what it stands for is checked at every call
        if not address.is_global:
            raise Refused("webhook.url must not point into a private network")


def is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


class Answer(NamedTuple):
    ok: bool
    done: bool


def call(url: str, body: bytes, signature: str) -> Answer:
    """One POST, on a thread. No redirects; the name is resolved once, and what it stands for is checked and used."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if secure and not ipaddress.ip_address(str(address[0])).is_global:
        raise Refused(f"{host} stands for an address in a private network")
    with socket.socket(family, kind, protocol) as raw:
        raw.settimeout(CALL_S)
        raw.connect(address)
        connection = http.client.HTTPConnection(host, port)
        connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host) if secure else raw
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": w.JSON_TYPE, w.WEBHOOK_SIGNATURE: signature, "Connection": "close"}
        connection.request("POST", target, body, headers)
        response = connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX)
        return Answer(200 <= response.status < 300, _says_done(answer))


def _says_done(answer: bytes) -> bool:
    try:
        value = msgspec.json.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("done") is True


class Webhooks:
    """The calls of one server."""

    def __init__(self, engine: Engine, signer: Signer) -> None:
        self._engine = engine
        self._signer = signer
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "webhook")
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
        self._threads.shutdown(wait=False, cancel_futures=True)

    def failing(self, number: int) -> bool:
        return self._failures.get(number, 0) > 0

    def _observe(self, lsn: int, facts: list[Fact]) -> None:
        for fact in facts:
            if type(fact) is wakes.WakeMade:
                self._durable[fact.number] = fact.generation
                self._start(fact.number)
            elif type(fact) is wakes.SubscriptionDeleted:
                self._durable.pop(fact.number, None)
                self._failures.pop(fact.number, None)

    def _start(self, number: int) -> None:
        """At most one task for a subscription: it goes on for as long as there are wakes to call for."""
        subscription = self._engine.latest_state.subscriptions.by_number.get(number)
        if subscription is None or subscription.config.kind != wakes.WEBHOOK:
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

    async def _call(self, subscription: Subscription) -> Answer | None:
        """The answer of a receiver that took the call; None if it has to be called again."""
        body = await self._engine.queries.result(lambda _: self._body(subscription))
        signature = self._signer.signature(body, int(time.time()))
        url = subscription.config.url
        loop = asyncio.get_running_loop()
        try:
            answer = await loop.run_in_executor(self._threads, call, url, body, signature)
        except (OSError, http.client.HTTPException, Refused) as error:
            logger.info("webhook of %s failed: %s", subscription.created.subscription, error)
            return None
        return answer if answer.ok else None

    def _body(self, subscription: Subscription) -> bytes:
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

    async def _finish(self, subscription: Subscription, generation: int) -> None:
        command = wakes.FinishWake(subscription.created.subscription, generation)
        try:
            _: Reply = await self._engine.submit(command)  # a refusal means that the wake was over already
        except EngineStopped:
            return

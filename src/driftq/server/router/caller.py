"""Asking a router: in time, once for each idempotency key, and never at the expense of a message.

A message whose key is known already is not routed again: it goes where the first one went, and the broker answers
"duplicate". Messages with the same key that arrive while the router thinks share one decision. A router that fails, is
late, talks nonsense or names a place that is not there leaves the message as it is; that is counted and, now and then,
logged. An invalid decision is also noted with the message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from driftq.core.model.commands import ProduceKey
from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.core.state.produced_keys import ProducedKey, job_key, produce_scope
from driftq.server.http import Answer, BadRequest, Deferred, FileResponse, Response, Streaming
from driftq.server.logs import RateLimited
from driftq.server.metrics.counters import Histogram
from driftq.server.produced_message import value_of
from driftq.wire.message import Envelope, Routing
from driftq.wire.produce import ProduceItem
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.router.protocol import Router

logger = logging.getLogger("driftq.router")

CALLS_MAX = 256
ERROR = "router_error"  # in a message's routing: why its router's decision does not count
ERROR_MAX = 256

Asked = tuple[str, ProduceItem]  # the requested topic and the message


class RouterVerdict(NamedTuple):
    """What came of asking. `result` is routed, unrouted (no opinion), timeout, error or invalid."""

    result: str
    decision: RouteDecision | None = None
    error: str = ""


class RoutedItem(NamedTuple):
    """A message as it goes on: with the router's controls in its envelope, and what is stored of the decision."""

    item: ProduceItem
    routing: Routing | None = None


UNROUTED = RouterVerdict("unrouted")


class RouterCaller:
    """Stands between the faces and a router."""

    def __init__(self, router: Router, engine: Engine, timeout_ms: int) -> None:
        self.router = router
        self.timeout_ms = timeout_ms
        self.results: defaultdict[str, int] = defaultdict(int)
        self.seconds = Histogram()
        self._engine = engine
        self._open: dict[str, asyncio.Task[RouterVerdict]] = {}
        self._room = asyncio.Semaphore(CALLS_MAX)
        self._seldom = RateLimited(logger)

    def then(self, asked: Sequence[Asked], finish: Callable[[list[RoutedItem]], Answer]) -> Answer:
        """The answer of `finish`, which is called with the routes of all messages, in their order."""
        if self.router.inline:
            return finish([self._route_now(*each) for each in asked])
        answer = Deferred()
        task = asyncio.ensure_future(self._routes(asked, finish, answer))
        task.add_done_callback(lambda done: answer.fail(error) if (error := _error_of(done)) is not None else None)
        return answer

    def _route_now(self, topic: str, item: ProduceItem) -> RoutedItem:
        scope = scope_of(topic, item)
        known = self.known(scope) if scope else None
        if known is not None:
            return self._as_before(item, known)
        message = _message(topic, item)
        return self._applied(topic, item, self._judge(message)) if message is not None else RoutedItem(item)

    def _judge(self, message: RouteInput) -> RouterVerdict:
        """A router that answers at once."""
        start_s = time.perf_counter()
        try:
            decision = cast(RouteDecision | None, self.router.route(message))
        except Exception as error:
            return self._noted(_failure(error, self.timeout_ms), start_s)
        return self._noted(self._checked(message.topic, message.envelope, decision), start_s)

    async def _routes(
        self, asked: Sequence[Asked], finish: Callable[[list[RoutedItem]], Answer], answer: Deferred
    ) -> None:
        scopes = [scope_of(topic, item) for topic, item in asked]
        try:
            routes = await asyncio.gather(*(self._route(*each, scope) for each, scope in zip(asked, scopes)))
            _relay(finish([route() for route in routes]), answer)
        finally:
            for scope in scopes:
                self._open.pop(scope, None)

    async def _route(self, topic: str, item: ProduceItem, scope: str) -> Callable[[], RoutedItem]:
        """How to make the route, once all messages of the call have their answers."""
        known = self.known(scope) if scope else None
        if known is not None:
            return partial(self._as_before, item, known)
        message = _message(topic, item)
        if message is None:
            return partial(RoutedItem, item)
        if not scope:
            return partial(self._applied, topic, item, await self.ask(message))
        task = self._open.get(scope)
        if task is None:
            task = self._open[scope] = asyncio.ensure_future(self.ask(message))
        return partial(self._applied, topic, item, await asyncio.shield(task))

    def _applied(self, topic: str, item: ProduceItem, verdict: RouterVerdict) -> RoutedItem:
        """A topic may have been deleted since the router was asked."""
        if verdict.result == "routed":
            verdict = self._checked(topic, item.envelope, verdict.decision)
        return applied(item, verdict)

    def _checked(self, topic: str, envelope: Envelope | None, decision: RouteDecision | None) -> RouterVerdict:
        """Whether the place that a router names is there. If not, the decision counts as invalid."""
        if decision is None:
            return UNROUTED
        why = self._missing(topic, envelope or Envelope(), decision)
        return (
            RouterVerdict("invalid", error=f"the router's decision is invalid: {why}")
            if why
            else RouterVerdict("routed", decision)
        )

    def _missing(self, topic: str, envelope: Envelope, decision: RouteDecision) -> str:
        if not decision.target_topic and decision.partition_override is None:
            return ""
        topics = self._engine.latest_state.topics
        name = decision.target_topic or envelope.target_topic or topic
        target = topics.get(name)
        if target is None:
            return f"there is no topic {name}" if decision.target_topic else ""  # what the client named is refused
        told = topics.get(name.removesuffix(HISTORY_SUFFIX)) if name.endswith(HISTORY_SUFFIX) else None
        if decision.target_topic and (target.dead_of or (told is not None and told.config.history)):
            return f"only the broker writes to {name}"
        partition = decision.partition_override
        if partition is None:
            partition = envelope.partition_override if decision.target_topic else None
        if partition is not None and partition >= len(target.log_ids):
            return f"topic {name} has no partition {partition}"
        return ""

    async def ask(self, message: RouteInput) -> RouterVerdict:
        """One call, with its limit; also for those who only want to know."""
        if self.router.inline:
            return self._judge(message)
        start_s = time.perf_counter()
        try:
            async with asyncio.timeout(self.timeout_ms / 1_000), self._room:
                decision = await cast(Awaitable[RouteDecision | None], self.router.route(message))
        except Exception as error:
            return self._noted(_failure(error, self.timeout_ms), start_s)
        return self._noted(self._checked(message.topic, message.envelope, decision), start_s)

    def _noted(self, verdict: RouterVerdict, start_s: float) -> RouterVerdict:
        self.results[verdict.result] += 1
        self.seconds.observe(time.perf_counter() - start_s)
        if verdict.error:
            self._seldom.warn(verdict.result, "a message goes unrouted: %s", verdict.error)
        return verdict

    # --- keys ---

    def known(self, scope: str) -> ProducedKey | None:
        """Where the message of this key went, if it is still there."""
        found = self._engine.latest_state.keys.find(scope, self._engine.now_ms())
        return found if found is not None and found.log_id in self._engine.latest_state.logs else None

    def _as_before(self, item: ProduceItem, known: ProducedKey) -> RoutedItem:
        """To the place of the first, where the broker recognises the repeat."""
        log = self._engine.latest_state.logs[known.log_id]
        envelope = item.envelope or Envelope()
        envelope = msgspec.structs.replace(envelope, target_topic=log.topic, partition_override=log.partition)
        return RoutedItem(msgspec.structs.replace(item, envelope=envelope))

    async def close(self) -> None:
        await self.router.close()


def scope_of(topic: str, item: ProduceItem) -> str:
    """The idempotency scope of a message: (tenant, requested topic, key); empty if it has no key."""
    envelope = item.envelope or Envelope()
    key = envelope.idempotency_key or (job_key(item.id) if item.id else "")
    return produce_scope(ProduceKey(envelope.tenant_id, topic, key)) if key else ""


def applied(item: ProduceItem, verdict: RouterVerdict) -> RoutedItem:
    """The router wins over the envelope, control by control; what it says is written there, as the envelope's readers
    expect."""
    decision = verdict.decision
    if decision is None:
        return RoutedItem(
            item, Routing("", {ERROR: verdict.error[:ERROR_MAX]}) if verdict.result == "invalid" else None
        )
    changes: dict[str, str | int] = {}
    if decision.target_topic:
        changes["target_topic"] = decision.target_topic
    if decision.partition_override is not None:
        changes["partition_override"] = decision.partition_override
    if changes:
        envelope = msgspec.structs.replace(item.envelope or Envelope(), **changes)
        item = msgspec.structs.replace(item, envelope=envelope)
    routing = Routing(decision.label, decision.meta or None) if decision.label or decision.meta else None
    return RoutedItem(item, routing)


def _message(topic: str, item: ProduceItem) -> RouteInput | None:
    """What the router sees; None for a message that will be refused anyway, by whoever comes next."""
    try:
        return RouteInput(topic, value_of(item), item.key, item.envelope, item.task)
    except BadRequest:
        return None


def _failure(error: Exception, timeout_ms: int) -> RouterVerdict:
    if isinstance(error, BadRouteDecision):
        return RouterVerdict("invalid", error=f"the router's decision is invalid: {error}")
    if isinstance(error, TimeoutError):
        return RouterVerdict("timeout", error=f"the router did not answer within {timeout_ms} ms")
    return RouterVerdict("error", error=f"the router failed: {type(error).__name__}: {error}")


class _Relay:
    """Hands the outcome of one deferred answer to another."""

    def __init__(self, answer: Deferred) -> None:
        self._answer = answer

    def set_reply(self, reply: Response | FileResponse | Streaming) -> None:
        self._answer.resolve(reply)

    def set_error(self, error: BaseException) -> None:
        self._answer.fail(error)


def _relay(inner: Answer, outer: Deferred) -> None:
    if isinstance(inner, Deferred):
        inner.bind(_Relay(outer))
    else:
        assert isinstance(inner, Response | FileResponse | Streaming), "a routed answer needs no task of its own"
        outer.resolve(inner)


def _error_of(done: asyncio.Task[None]) -> BaseException | None:
    return asyncio.CancelledError("the server is stopping") if done.cancelled() else done.exception()

"""`POST /v1/route`: what would happen to a message, without producing it.

The router is called and the broker decides as at a produce; then the decision is dropped. Deciding changes no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftq.core.model.replies import Produced, Rejected
from driftq.server.access.identity import owned, require_target, require_topic
from driftq.server.handlers.codec import json_response, read_message
from driftq.server.http import BadRequest, Request, Response
from driftq.server.produced_message import prepare, produce_command, value_of
from driftq.server.router.caller import RoutedItem, RouterVerdict, applied, scope_of
from driftq.wire.errors import CODES, error_fields
from driftq.wire.grants import PRODUCE
from driftq.wire.message import Envelope
from driftq.wire.produce import ProduceRequest
from driftq.wire.router import RouteDecision, RouteInput, RouteReply

if TYPE_CHECKING:
    from driftq.core.state.idempotency_keys import ProducedKey
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context


class RouteHandlers:
    """The handler of `/v1/route`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def route(self, request: Request) -> Response:
        body = read_message(request.body, ProduceRequest)
        if not body.topic:
            raise BadRequest("topic and value are required")
        require_topic(request, PRODUCE, body.topic)
        if self._context.tenant:
            body = owned(body, self._context.tenant)
        verdict, known = await self._ask(body)
        return await self._context.engine.queries.result(
            lambda view: self._explained(view, request, body, verdict, known)
        )

    async def _ask(self, body: ProduceRequest) -> tuple[RouterVerdict, ProducedKey | None]:
        router = self._context.router
        if router is None:
            return RouterVerdict("none"), None
        scope = scope_of(body.topic, body)
        known = router.known(scope) if scope else None
        if known is not None:
            return RouterVerdict("not_asked"), known
        message = RouteInput(body.topic, value_of(body), body.key, body.envelope, body.task)
        return await router.ask(message), None

    def _explained(
        self,
        view: StateView,
        request: Request,
        body: ProduceRequest,
        verdict: RouterVerdict,
        known: ProducedKey | None,
    ) -> Response:
        route = applied(body, verdict)
        log = view.state.logs.get(known.log_id) if known is not None else None
        if log is not None:
            route = RoutedItem(_sent_to(body, log.topic, log.partition))
        require_target(request, route.item)
        strict = self._context.settings.idempotency.strict
        message = prepare(route.item, body.topic, view.now_ms, strict_keys=strict, routing=route.routing)
        partition = self._context.any_partition(body.topic, route.item)
        command = produce_command(body.topic, route.item.envelope, message, partition)
        reply = view.decide(command)
        routing = route.routing
        return json_response(
            RouteReply(
                topic=body.topic,
                router=self._context.router.router.kind if self._context.router is not None else "none",
                result=verdict.result,
                routed_topic=reply.topic if isinstance(reply, Produced) else command.topic,
                explanation=list(_sentences(body, verdict, reply)),
                label=routing.label if routing is not None else "",
                meta=routing.meta if routing is not None else None,
                decision=verdict.decision,
                partition=reply.partition if isinstance(reply, Produced) else None,
                duplicate=isinstance(reply, Produced) and reply.duplicate,
                refused=_refused(reply) if isinstance(reply, Rejected) else None,
            )
        )


def _refused(rejected: Rejected) -> dict[str, Any]:
    spec = CODES[rejected.code]
    return {"status": spec.status, **error_fields(spec.error, rejected.message, rejected.details)}


def _sent_to(body: ProduceRequest, topic: str, partition: int) -> ProduceRequest:
    decided = RouteDecision(target_topic=topic, partition_override=partition)
    item = applied(body, RouterVerdict("not_asked", decided)).item
    assert isinstance(item, ProduceRequest)
    return item


def _sentences(body: ProduceRequest, verdict: RouterVerdict, reply: object) -> list[str]:
    envelope = body.envelope or Envelope()
    decision = verdict.decision or RouteDecision()
    sentences = [_ROUTER_SENTENCES.get(verdict.result) or f"The message goes unrouted: {verdict.error}."]
    if verdict.result == "routed" and decision.meta and "rule" in decision.meta:
        sentences[0] = f"Rule {decision.meta['rule']!r} decided."
    if verdict.result == "not_asked":
        return [*sentences, _outcome(reply)]
    if decision.target_topic:
        sentences.append(f"The router sends it to topic {decision.target_topic!r}.")
    elif envelope.target_topic:
        sentences.append(f"The envelope sends it to topic {envelope.target_topic!r}.")
    if decision.partition_override is not None:
        sentences.append(f"The router names partition {decision.partition_override}.")
    elif envelope.partition_override is not None:
        sentences.append(f"The envelope names partition {envelope.partition_override}.")
    elif body.key:
        sentences.append("The hash of its key names the partition.")
    elif body.partition is not None:
        sentences.append("It has no key and asks for any partition: the broker takes the next one.")
    else:
        sentences.append("It has no key, so it goes to partition 0.")
    if decision.label:
        sentences.append(f"It carries the label {decision.label!r}; claims can ask for it.")
    return [*sentences, _outcome(reply)]


_ROUTER_SENTENCES = {
    "none": "There is no router.",
    "routed": "The router decided.",
    "unrouted": "The router has no opinion on this message.",
    "not_asked": "The idempotency key is known: the router is not asked again.",
}


def _outcome(reply: object) -> str:
    if isinstance(reply, Rejected):
        return f"It would be refused: {reply.message}."
    assert isinstance(reply, Produced)
    where = f"partition {reply.partition} of topic {reply.topic!r}"
    if reply.duplicate:
        return f"It is a duplicate of offset {reply.first_offset} in {where}; nothing would be stored."
    return f"It would be stored in {where}, at offset {reply.first_offset} as things are now."

"""Effects, which happen once under a key: begin, commit, fail, look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model.replies import AlreadyDone, EffectBegun, Reply
from driftq.core.state.effects import effect_scope
from driftq.server.handlers.request_body import from_query, read_json
from driftq.server.handlers.responses import json_response, no_content, refused
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.effects import BeginReply, BeginRequest, CommitRequest, EffectReply, EffectRequest, FailRequest
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context


class EffectsHandlers:
    """Handlers of `/v1/idempotency`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, request: Request) -> Answer:
        body = read_json(request.body, BeginRequest)
        if (body.partition is None) != (body.offset is None):
            raise BadRequest("partition and offset belong together")
        command = c.BeginEffect(
            _key(body), body.owner, body.lease_ms, body.partition, body.offset, body.token, body.fence
        )
        return self._context.ask(command, _begin_reply)

    def commit(self, request: Request) -> Answer:
        body = read_json(request.body, CommitRequest)
        return self._context.ask(c.CommitEffect(_key(body), body.fence, body.result.encode(), body.ttl_ms), no_content)

    def fail(self, request: Request) -> Answer:
        body = read_json(request.body, FailRequest)
        return self._context.ask(c.FailEffect(_key(body), body.fence, body.reason), no_content)

    def get(self, request: Request) -> Answer:
        """`?topic=&group=&key=&tenant_id=`."""
        names = ("topic", "group", "key", "tenant_id")
        body = from_query({name: request.query[name] for name in names if name in request.query}, EffectRequest)
        return self._context.query(lambda view: _effect_reply(view, body))


def _key(body: EffectRequest) -> c.EffectKey:
    return c.EffectKey(body.tenant_id, body.topic, body.group, body.key)


def _begin_reply(reply: Reply) -> Response:
    if isinstance(reply, AlreadyDone):
        result = reply.result.decode("utf-8", "replace")
        return json_response(BeginReply("done", result=result, at=to_rfc3339(reply.at_ms)))
    assert isinstance(reply, EffectBegun)
    return json_response(BeginReply("begun", reply.fence, to_rfc3339(reply.until_ms)))


def _effect_reply(view: StateView, body: EffectRequest) -> Response:
    effect = view.state.effects.find(effect_scope(_key(body)))
    if effect is None or view.state.is_forgettable_at(effect, view.now_ms):
        return refused(Code.NOT_FOUND, f"nothing is known of {body.key!r}")
    return json_response(
        EffectReply(
            status=effect.status.name,  # type: ignore[arg-type]  # the names of EffectStatus
            fence=effect.fence,
            owner=effect.owner,
            at=to_rfc3339(effect.at_ms),
            until=to_rfc3339(effect.until_ms),
            result=effect.result.decode("utf-8", "replace"),
            error=effect.error,
        )
    )

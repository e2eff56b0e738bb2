"""Subscriptions to streams: the control routes below `/v1/stream/__ds/`.

When a stream grows, a webhook is called or a worker claims the wake; the rules are the broker's. Errors here are JSON
objects, unlike those of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from driftq.core.model import subscriptions
from driftq.core.model.queries import ReadSubscription
from driftq.core.model.replies import Rejected, Reply
from driftq.core.model.stream_facts import PULL_WAKE, WEBHOOK, SubscriptionConfig
from driftq.server.access.identity import (
    BODY,
    OWN,
    PUBLIC,
    AccessRefused,
    Right,
    require_pattern,
    require_stream,
    require_subscription,
)
from driftq.server.handlers.codec import read_json
from driftq.server.handlers.context import Context, responder
from driftq.server.http import Answer, BadRequest, Deferred, Request, Response
from driftq.server.http.request import percent_decoded
from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.streams import responses
from driftq.server.streams.responses import respond
from driftq.server.streams.signing_key import SigningKey
from driftq.server.streams.webhooks import Signer, check_url, tenant_in
from driftq.wire import streams as w
from driftq.wire.errors import CODES, Code, retry_after_s
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import APPEND, CONSUME, MANAGE, READ
from driftq.wire.namespaces import Namespace
from driftq.wire.subscriptions import (
    FollowedStreamInfo,
    LinkType,
    StreamsRequest,
    SubscriptionInfo,
    SubscriptionRequest,
    WakeAckInfo,
    WakeAckRequest,
    WakeClaimRequest,
    WakeInfo,
    WakeStreamInfo,
    WebhookInfo,
    WebhookSigning,
)

if TYPE_CHECKING:
    from driftq.core.model.commands import Command


# Calls that carry the token of a wake as their credential.
_WAKE_CALLS = (b"ack", b"callback", b"release")


class SubscriptionHandlers:
    """Handlers of the control routes.

    A caller needs `manage` on the name of a subscription to change it, `read` to see it, `consume` to claim its wakes.
    What it follows the caller must be allowed to read, and what it writes to the caller must be allowed to append to.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine
        self._scheme = "https" if context.settings.listen.tls_certificate else "http"
        self._outbound = context.outbound
        self._key = context.once(
            SigningKey, lambda: SigningKey(context.root_engine, self._outbound, context.settings.outbound.timeout_ms)
        )

    def failures_of(self, number: int) -> int:
        """How often the webhook of a subscription failed since its last success."""
        return self._key.failures_of(number)

    def right_of(self, method: str, rest: bytes) -> Right:
        """The right that a request needs; `rest` as in `handle`."""
        segments = rest.split(b"/")
        if segments == [b"jwks.json"]:
            return PUBLIC
        if len(segments) == 3 and segments[2] in _WAKE_CALLS and method == "POST":
            return OWN
        if segments[-1] == b"claim":
            return Right(CONSUME, BODY)
        return Right(READ if method == "GET" else MANAGE, BODY)

    def handle(self, request: Request, rest: bytes) -> Answer:
        """`rest` is the raw path below the reserved segment."""
        try:
            segments = rest.split(b"/")
            if segments == [b"jwks.json"]:
                return self._keys(request)
            if segments[0] != b"subscriptions" or len(segments) < 2 or not segments[1]:
                return _error(404, "SUBSCRIPTION_NOT_FOUND", "there is no such control route")
            return self._route(request, percent_decoded(segments[1]), segments[2:])
        except AccessRefused as refused:
            code = "SUBSCRIPTION_NOT_FOUND" if refused.code is Code.NOT_FOUND else refused.code.value
            return _error(refused.status, code, refused.message)
        except BadRequest as error:
            return _error(error.status, "INVALID_REQUEST", error.message)

    def _route(self, request: Request, name: str, rest: list[bytes]) -> Answer:
        method = request.method
        match rest:
            case [] if method == "PUT":
                return self._create(request, name)
            case [] if method == "GET":
                require_subscription(request, READ, name)
                return self._ask(ReadSubscription(name), lambda reply: _json(self._info(reply)))
            case [] if method == "DELETE":
                require_subscription(request, MANAGE, name)
                return self._change(request, "subscription.delete", subscriptions.DeleteSubscription(name))
            case [b"streams"] if method == "POST":
                paths = tuple(_path(path) for path in read_json(request.body, StreamsRequest).streams)
                require_subscription(request, MANAGE, name)
                for path in paths:
                    require_stream(request, READ, path)
                command = subscriptions.LinkStreams(name, paths)
                return self._change(request, "subscription.link", command, streams=paths)
            case [b"streams", *parts] if parts and method == "DELETE":
                path = _path("/".join(percent_decoded(part) for part in parts))
                require_subscription(request, MANAGE, name)
                return self._change(request, "subscription.unlink", subscriptions.UnlinkStream(name, path), stream=path)
            case [b"claim"] if method == "POST":
                return self._claim(request, name)
            case [b"ack" | b"callback" as action] if method == "POST":
                return self._ack(request, name, action == b"ack")
            case [b"release"] if method == "POST":
                return self._ack(request, name, True, release=True)
            case [] | [b"streams", *_] | [b"claim" | b"ack" | b"callback" | b"release"]:
                return responses.not_allowed(responses.METHODS)
        return _error(404, "SUBSCRIPTION_NOT_FOUND", "there is no such control route")

    def _ask(self, command: Command, respond: Callable[[Any], Response]) -> Deferred:
        return self._context.ask(command, respond, _refused)

    def _change(
        self,
        request: Request,
        action: str,
        command: subscriptions.DeleteSubscription | subscriptions.LinkStreams | subscriptions.UnlinkStream,
        **details: object,
    ) -> Deferred:
        audited = self._context.audited(request, command, command.subscription, action, **details)
        return self._ask(audited, _no_content)

    # --- the key ---

    def _with_key(self, answer: Deferred, then: Callable[[Signer], None]) -> Deferred:
        """Call `then` when there is a signing key."""

        def made(refused: Rejected | None) -> None:
            if refused is not None:
                answer.resolve(_refused(refused))
            else:
                assert self._key.signer is not None
                then(self._key.signer)

        self._key.need(made)
        return answer

    def _keys(self, request: Request) -> Answer:
        if request.method != "GET":
            return responses.not_allowed("GET, OPTIONS")
        answer = Deferred()

        def then(signer: Signer) -> None:
            headers = [("Cache-Control", "public, max-age=300")]
            answer.resolve(respond(200, headers, msgspec.json.encode(signer.jwks), "application/jwk-set+json"))

        return self._with_key(answer, then)

    # --- subscriptions ---

    def _create(self, request: Request, name: str) -> Answer:
        body = read_json(request.body, SubscriptionRequest)
        config = _config(body)
        if request.identity is not None:
            _check_rights(request, name, config)
        if config.url:
            try:
                check_url(config.url, self._outbound)
            except AddressRefused as refused:
                return _error(400, "WEBHOOK_URL_REJECTED", str(refused))
        origin = f"{self._scheme}://{request.headers.get('host', '')}"
        answer = Deferred()

        def answer_with(reply: Reply) -> Response:
            if isinstance(reply, subscriptions.SubscriptionView):
                return _json(self._info(reply), 201 if reply.created else 200)
            assert isinstance(reply, Rejected)
            return _refused(reply)

        command = subscriptions.CreateSubscription(name, config, origin)
        command = self._context.audited(request, command, name, "subscription.create", type=body.type)
        return self._with_key(answer, lambda _: self._engine.submit_to(command, responder(answer, answer_with)))

    def _info(self, view: subscriptions.SubscriptionView) -> SubscriptionInfo:
        config = view.config
        webhook = None
        failing = False
        signer = self._key.signer
        if config.url and signer is not None:
            jwks_url = f"{view.origin}{w.ROOT}{w.CONTROL}/jwks.json"
            webhook = WebhookInfo(config.url, WebhookSigning("ed25519", signer.kid, jwks_url))
            subscription = self._engine.latest_state.subscriptions.by_name.get(view.subscription)
            failing = subscription is not None and self.failures_of(subscription.number) > 0
        return SubscriptionInfo(
            id=view.subscription,
            subscription_id=view.subscription,
            type=config.kind,  # type: ignore[arg-type]  # as it was checked when it was created
            streams=[
                FollowedStreamInfo(stream.path, _link_type(stream), w.token(stream.acked)) for stream in view.streams
            ],
            lease_ttl_ms=config.lease_ms,
            created_at=to_rfc3339(view.at_ms),
            status="failed" if failing else "active",
            pattern=config.pattern,
            wake_stream=config.wake_stream,
            description=config.description,
            webhook=webhook,
        )

    # --- wakes ---

    def _claim(self, request: Request, name: str) -> Answer:
        worker = read_json(request.body, WakeClaimRequest).worker
        require_subscription(request, CONSUME, name, f"{name}/{worker}")

        def respond(view: subscriptions.WakeView) -> Response:
            assert self._key.signer is not None
            streams = [
                WakeStreamInfo(
                    path=stream.path,
                    link_type=_link_type(stream),
                    acked_offset=w.token(stream.acked),
                    tail_offset=w.token(stream.end_offset),
                    has_pending=stream.end_offset > stream.acked,
                )
                for stream in view.streams
            ]
            token = self._key.signer.token(self._context.space.name(name), view.generation)
            return _json(WakeInfo(view.wake_id, view.generation, token, streams, view.lease_ms))

        return self._ask(subscriptions.ClaimWake(name, worker), respond)

    def _ack(self, request: Request, name: str, pulls: bool, *, release: bool = False) -> Answer:
        """The token of a wake is the only credential here, so it also says which tenant's names these are."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        space = Namespace(tenant_in(token.strip()))
        if space.holds(name):
            space = Namespace("")  # an operator's name
        name = space.name(name)
        known = self._engine.latest_state.subscriptions.by_name.get(name)
        if known is None and self._context.settings.auth.is_on:
            return _no_wake_token()  # a caller without a credential does not learn which names exist
        if known is None:
            return self._context.hold(_error(404, "SUBSCRIPTION_NOT_FOUND", f"there is no subscription {name}"))
        if pulls and known.config.kind != PULL_WAKE:
            return self._context.hold(_error(400, "INVALID_REQUEST", "only pull-wake subscriptions are acked here"))
        signer = self._key.signer
        generation = signer.generation_of(token.strip(), name) if signer is not None else None
        if scheme.lower() != "bearer" or generation is None:
            return _no_wake_token()
        body = read_json(request.body, WakeAckRequest) if request.body else WakeAckRequest()
        if body.generation != generation:
            return _error(409, "FENCED", "the token belongs to another generation")
        acks = []
        for entry in body.acks:
            path = entry.stream if isinstance(entry.stream, str) else entry.path
            offset = w.offset_of(entry.offset)
            if not isinstance(path, str) or offset is None:
                return _error(409, "INVALID_OFFSET", "an ack names a stream and an offset of it")
            acks.append((space.name(_path(path)), offset))
        command = subscriptions.AckWake(name, generation, body.wake_id, tuple(acks), body.done, release)

        def refuse(rejected: Rejected) -> Response:
            return _refused(msgspec.structs.replace(rejected, message=space.text(rejected.message)))

        if release:
            return self._context.ask(command, _no_content, refuse)
        return self._context.ask(command, lambda reply: _json(WakeAckInfo(True, reply.next_wake)), refuse)


def _config(body: SubscriptionRequest) -> SubscriptionConfig:
    if not body.pattern and not body.streams:
        raise BadRequest("a subscription needs a pattern or streams")
    if body.type == WEBHOOK and body.webhook is None:
        raise BadRequest("a webhook subscription needs webhook.url")
    if body.type == PULL_WAKE and not body.wake_stream:
        raise BadRequest("a pull-wake subscription needs wake_stream")
    return SubscriptionConfig(
        body.type,
        body.pattern.strip("/"),
        tuple(sorted({_path(path) for path in body.streams})),
        body.webhook.url if body.webhook is not None and body.type == WEBHOOK else "",
        body.wake_stream.strip("/"),
        body.lease_ttl_ms,
        body.description,
    )


def _check_rights(request: Request, name: str, config: SubscriptionConfig) -> None:
    require_subscription(request, MANAGE, name)
    if config.pattern:
        require_pattern(request, READ, config.pattern.replace("**", "*"))
    for path in config.streams:
        require_stream(request, READ, path)
    if config.wake_stream:
        require_stream(request, APPEND, config.wake_stream)


def _path(text: str) -> str:
    return text.strip("/")


def _link_type(followed: subscriptions.FollowedStream) -> LinkType:
    return "explicit" if followed.by_name else "glob"


def _no_wake_token() -> Response:
    return _error(401, "TOKEN_INVALID", "a wake is acked with the bearer token it came with")


def _json(body: object, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Response:
    return respond(status, [("Cache-Control", "no-store"), *headers], msgspec.json.encode(body))


def _no_content(_: object) -> Response:
    return respond(204, [])


def _error(status: int, code: str, message: str, details: dict[str, Any] | None = None) -> Response:
    """A `SubscriptionError` with its details. One that may be retried has a Retry-After header."""
    retry_after_ms = (details or {}).get("retry_after_ms")
    headers = [("Retry-After", str(retry_after_s(int(retry_after_ms))))] if retry_after_ms is not None else []
    return _json({"error": {"code": code, "message": message, **(details or {})}}, status, headers)


def _refused(rejected: Rejected) -> Response:
    """The rules of subscriptions give their code as the reason, in capitals. Every other refusal, of a full disk for
    example, has its own code, and its reason is a detail."""
    details = dict(rejected.details)
    reason = str(details.get("reason", ""))
    code = details.pop("reason") if reason.isupper() else rejected.code.value
    return _error(CODES[rejected.code].subscription_status, code, rejected.message, details)

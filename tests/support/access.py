"""Access tokens for tests: the first one of a folder, and an example call of every route with the grants it needs."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from driftq.core.model.access import CreateAccessToken
from driftq.engine.engine import Engine
from driftq.server.access.token_text import new_token
from driftq.wire.records import Record, pack
from tests.support.server import Reply, Server

TOKENS = "auth.mode=tokens"  # the setting that turns them on
TOPIC = "acme.orders"
STREAM = "acme/runs/1"
SUBSCRIPTION = "acme.sub"
SCHEDULE = "acme.daily"

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
BATCH = {"Content-Type": "application/x-driftq-batch"}


def first_token(folder: str, token_id: str = "", grants: tuple[str, ...] = ("admin",)) -> str:
    """What `driftq auth init` does: makes a token without a server, and returns its text."""

    async def create() -> str:
        engine = await Engine.open(folder)
        token = new_token(token_id)
        await engine.submit(CreateAccessToken(token.token_id, "operator", grants, token.digest))
        await engine.close()
        return token.text

    return asyncio.run(create())


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Operator:
    """Calls a server with a token. `new` makes other tokens."""

    def __init__(self, server: Server, token: str) -> None:
        self.server = server
        self.token = token

    def call(self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        return self.server.call(method, target, body, {**(headers or {}), **bearer(self.token)})

    def done(self, method: str, target: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        reply = self.call(method, target, body, headers)
        assert reply.status < 300, (method, target, reply)
        return reply

    def new(self, *grants: str, **fields: object) -> str:
        """The text of a new token."""
        body = {"name": "test", "grants": grants, **fields}
        token = self.done("POST", "/v1/tokens", body).json()["token"]
        assert isinstance(token, str)
        return token


def id_of(token: str) -> str:
    return token.split("_")[1]


_sources = itertools.count(2)


def from_anywhere(server: Server, call: ExampleCall, headers: dict[str, str]) -> Reply:
    """Send a call from an address of its own, so that no call is slowed down by the failures of others."""
    number = next(_sources)
    source = (f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20.0, source_address=source)
    try:
        connection.request(call.method, call.target, call.data(), {**call.headers, **headers})
        response = connection.getresponse()
        body = b"" if call.endless and response.status == 200 else response.read()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, body)
    finally:
        connection.close()


class ExampleCall(NamedTuple):
    """A call of a route that succeeds, or fails for a reason that is not access, with these grants and no others."""

    route: str
    method: str
    target: str
    grants: tuple[str, ...]  # all of them are needed; none: every valid token may call it
    body: object = None
    headers: Mapping[str, str] = MappingProxyType({})
    endless: bool = False  # the reply has no end
    unseen: bool = False  # without the right it is not found
    absent: bool = False  # without the right there is nothing to delete
    lists: bool = False  # shows what the caller may see, and so is never refused

    @property
    def refusal(self) -> int:
        """The status without the right."""
        return 204 if self.absent else 404 if self.unseen else 403

    def data(self) -> bytes | None:
        return self.body if isinstance(self.body, bytes) or self.body is None else json.dumps(self.body).encode()


def _call(route: str, target: str, *grants: str, body: object = None, **more: object) -> ExampleCall:
    method = str(more.pop("method", route.split(maxsplit=1)[0]))
    return ExampleCall(route, method, target, grants, body, **more)  # type: ignore[arg-type]


_CONSUME = f"consume:{TOPIC}/billing"
_PRODUCE = f"produce:{TOPIC}"
_READ = f"read:{TOPIC}"
_MANAGE = f"manage:{TOPIC}"
_HELD = {"topic": TOPIC, "group": "billing", "owner": "w"}
_MESSAGE = {"partition": 0, "offset": 0, "token": "x"}
_KEY = {"topic": TOPIC, "group": "billing", "key": "k"}
_WORKING = {"name": "f", "topic": TOPIC, "group": "billing"}
_HEARTBEAT = {"host": "secret host", "pid": 1, "version": "1", "workers": [_WORKING]}
_SCHEDULE = {"name": SCHEDULE, "topic": TOPIC, "message": {"value": "secret"}, "cron": "0 9 1 1 *"}
_STREAMS = "* /v1/stream/*"
_ROOT = f"/v1/stream/__ds/subscriptions/{SUBSCRIPTION}"
_PULL = {"type": "pull-wake", "streams": [STREAM], "wake_stream": "acme/wakes"}

CALLS: tuple[ExampleCall, ...] = (
    # the server
    _call("GET /v1/version", "/v1/version"),
    _call("GET /v1/clock", "/v1/clock", "observe"),
    _call("POST /v1/clock/accept", "/v1/clock/accept", "admin"),
    _call("GET /v1/metrics", "/v1/metrics", "observe"),
    _call("HEAD /v1/metrics", "/v1/metrics", "observe"),
    _call("GET /v1/overview", "/v1/overview", "observe"),
    _call("GET /v1/series", "/v1/series", "observe"),
    _call("GET /v1/series/names", "/v1/series/names", "observe"),
    _call("GET /v1/backup", "/v1/backup", "admin", endless=True),
    # messages
    _call("POST /v1/produce", "/v1/produce", _PRODUCE, body={"topic": TOPIC, "value": "v"}),
    _call("POST /v1/produce", f"/v1/produce?topic={TOPIC}&value=v", _PRODUCE),
    _call(
        "POST /v1/produce",
        "/v1/produce",
        _PRODUCE,
        f"{_PRODUCE}.eu",
        body={"topic": TOPIC, "value": "v", "envelope": {"target_topic": f"{TOPIC}.eu"}},
    ),
    _call(
        "POST /v1/produce/packed", f"/v1/produce/packed?topic={TOPIC}", _PRODUCE, body=pack([Record(b"v")]),
        headers=BATCH,
    ),
    _call("POST /v1/route", "/v1/route", _PRODUCE, body={"topic": TOPIC, "value": "v"}),
    _call("GET /v1/consume", f"/v1/consume?topic={TOPIC}&group=billing&owner=w", _CONSUME, endless=True),
    _call("POST /v1/claim", "/v1/claim", _CONSUME, body={**_HELD, "max": 1}),
    _call("POST /v1/ack", "/v1/ack", _CONSUME, body={**_HELD, "partition": 0, "offset": 0}),
    _call("POST /v1/nack", "/v1/nack", _CONSUME, body={**_HELD, "partition": 0, "offset": 0}),
    _call("POST /v1/ack-cumulative", "/v1/ack-cumulative", _CONSUME, body={**_HELD, "partition": 0, "offset": 0}),
    *(
        _call(f"POST /v1/{name}", f"/v1/{name}", _CONSUME, body={**_HELD, "messages": [_MESSAGE]})
        for name in ("ack/batch", "nack/batch", "release", "reject", "extend")
    ),
    _call("GET /v1/explain", f"/v1/explain?topic={TOPIC}&partition=0&offset=0", _READ),
    # topics and groups
    _call("GET /v1/topics", "/v1/topics", lists=True),
    _call("GET /v1/topics", "/v1/topics?details=true&sort=lag", lists=True),
    _call("POST /v1/topics", "/v1/topics", _MANAGE, body={"name": TOPIC}),
    _call("POST /v1/topics", f"/v1/topics?name={TOPIC}", _MANAGE),
    _call("GET /v1/topics/{topic}", f"/v1/topics/{TOPIC}", _READ),
    _call("PATCH /v1/topics/{topic}", f"/v1/topics/{TOPIC}", _MANAGE, body={"retention_ms": 0}),
    _call("DELETE /v1/topics/{topic}", f"/v1/topics/{TOPIC}.gone", f"{_MANAGE}.gone"),
    _call("GET /v1/topics/{topic}/offsets", f"/v1/topics/{TOPIC}/offsets", _READ),
    _call(
        "GET /v1/topics/{topic}/partitions/{partition}/records", f"/v1/topics/{TOPIC}/partitions/0/records", _READ
    ),
    _call(
        "GET /v1/topics/{topic}/partitions/{partition}/messages",
        f"/v1/topics/dlq.{TOPIC}/partitions/0/messages",
        f"read:dlq.{TOPIC}",
    ),
    _call("POST /v1/offsets", "/v1/offsets", _READ, body={"topics": [TOPIC]}),
    _call("GET /v1/groups", "/v1/groups", lists=True),
    _call("GET /v1/groups", "/v1/groups?details=true", lists=True),
    _call(
        "POST /v1/groups/offsets", "/v1/groups/offsets", f"consume:{TOPIC}/reader",
        body={"group": "reader", "offsets": {TOPIC: {"0": 0}}},
    ),
    _call("GET /v1/topics/{topic}/groups", f"/v1/topics/{TOPIC}/groups", _READ),
    _call("GET /v1/topics/{topic}/groups/{group}", f"/v1/topics/{TOPIC}/groups/billing", _READ),
    _call("GET /v1/topics/{topic}/groups/{group}/states", f"/v1/topics/{TOPIC}/groups/billing/states", _READ),
    _call("GET /v1/topics/{topic}/groups/{group}/lanes", f"/v1/topics/{TOPIC}/groups/billing/lanes", _READ),
    _call("DELETE /v1/topics/{topic}/groups/{group}", f"/v1/topics/{TOPIC}/groups/none", _MANAGE),
    _call(
        "POST /v1/topics/{topic}/groups/{group}/seek", f"/v1/topics/{TOPIC}/groups/none/seek", _MANAGE,
        body={"to": "earliest"},
    ),
    _call("POST /v1/topics/{topic}/groups/{group}/pause", f"/v1/topics/{TOPIC}/groups/none/pause", _MANAGE),
    _call("POST /v1/topics/{topic}/groups/{group}/resume", f"/v1/topics/{TOPIC}/groups/none/resume", _MANAGE),
    # effects, outcomes, dead letters, jobs, stages
    _call("GET /v1/idempotency", f"/v1/idempotency?topic={TOPIC}&group=billing&key=k", _CONSUME),
    _call("POST /v1/idempotency/begin", "/v1/idempotency/begin", _CONSUME, body={**_KEY, "owner": "w"}),
    _call("POST /v1/idempotency/commit", "/v1/idempotency/commit", _CONSUME, body={**_KEY, "fence": 1}),
    _call("POST /v1/idempotency/fail", "/v1/idempotency/fail", _CONSUME, body={**_KEY, "fence": 1}),
    _call(
        "POST /v1/outcome",
        "/v1/outcome",
        _CONSUME,
        _PRODUCE,
        f"append:{STREAM}",
        body={
            "acks": [{**_HELD, "messages": [_MESSAGE]}],
            "produce": [{"topic": TOPIC, "value": "v"}],
            "streams": [{"path": STREAM, "value": "v", "content_type": "text/plain"}],
            "commits": [{**_KEY, "fence": 1}],
        },
    ),
    _call("GET /v1/dlq", "/v1/dlq", lists=True),
    _call("GET /v1/dlq/{topic}", f"/v1/dlq/{TOPIC}", f"read:dlq.{TOPIC}"),
    _call("GET /v1/dlq/{topic}/errors", f"/v1/dlq/dlq.{TOPIC}/errors", f"read:dlq.{TOPIC}"),
    _call("POST /v1/dlq/{topic}/redrive", f"/v1/dlq/{TOPIC}/redrive", _PRODUCE, f"consume:dlq.{TOPIC}", body={}),
    _call("POST /v1/dlq/{topic}/delete", f"/v1/dlq/{TOPIC}/delete", f"consume:dlq.{TOPIC}", body={"dry_run": True}),
    _call("GET /v1/dlq/{topic}/export", f"/v1/dlq/{TOPIC}/export", f"read:dlq.{TOPIC}"),
    _call("POST /v1/jobs", "/v1/jobs", _PRODUCE, body={"topic": TOPIC, "task": "t", "value": "v"}),
    _call("GET /v1/jobs", f"/v1/jobs?topic={TOPIC}", _READ),
    _call("GET /v1/jobs/counts", f"/v1/jobs/counts?topic={TOPIC}", _READ),
    _call("POST /v1/jobs/cancel", "/v1/jobs/cancel", _PRODUCE, body={"topic": TOPIC, "dry_run": True}),
    _call("POST /v1/jobs/retry", "/v1/jobs/retry", _PRODUCE, body={"topic": TOPIC, "dry_run": True}),
    _call("POST /v1/jobs/{topic}/{id}/retry", f"/v1/jobs/{TOPIC}/none/retry", _PRODUCE),
    _call("POST /v1/topics/{topic}/purge", f"/v1/topics/{TOPIC}/purge", _MANAGE, body={"dry_run": True}),
    _call(
        "POST /v1/topics/{topic}/move", f"/v1/topics/{TOPIC}/move", _MANAGE, f"produce:{TOPIC}.elsewhere",
        body={"to": f"{TOPIC}.elsewhere", "dry_run": True},
    ),
    _call("GET /v1/topics/{topic}/messages", f"/v1/topics/{TOPIC}/messages", _READ),
    _call("GET /v1/jobs/{topic}/{id}", f"/v1/jobs/{TOPIC}/job", _READ),
    _call("GET /v1/jobs/{topic}/{id}/result", f"/v1/jobs/{TOPIC}/job/result", _READ),
    _call("POST /v1/jobs/{topic}/{id}/cancel", f"/v1/jobs/{TOPIC}/none/cancel", _PRODUCE),
    _call(
        "POST /v1/job-batches", "/v1/job-batches", _PRODUCE, f"{_PRODUCE}.eu",
        body={"topic": TOPIC, "jobs": [{"value": "v"}], "on_complete": {"topic": f"{TOPIC}.eu", "value": "v"}},
    ),
    _call("GET /v1/job-batches", "/v1/job-batches", lists=True),
    _call("GET /v1/job-batches/{id}", "/v1/job-batches/known", _READ, unseen=True),
    _call("GET /v1/job-batches/{id}/jobs", "/v1/job-batches/known/jobs", _READ, unseen=True),
    _call("GET /v1/job-batches/{id}/results", "/v1/job-batches/known/results", _READ, unseen=True),
    _call(
        "POST /v1/job-batches/{id}/jobs", "/v1/job-batches/known/jobs", _PRODUCE, body={"first": 0}, unseen=True
    ),
    _call("POST /v1/job-batches/{id}/cancel", "/v1/job-batches/known/cancel", _PRODUCE, unseen=True),
    _call(
        "POST /v1/stages", f"/v1/stages?writer=w&handle=h&topic={TOPIC}&partition=0", _PRODUCE,
        body=pack([Record(b"v")]), headers=BATCH,
    ),
    _call(
        "POST /v1/stages", f"/v1/stages?writer=w&handle=i&path={STREAM}", f"append:{STREAM}",
        body=pack([Record(b"v")]), headers=BATCH,
    ),
    _call(
        "POST /v1/stages/publish", "/v1/stages/publish", _PRODUCE, f"append:{STREAM}",
        body={"writer": "w", "batch": 0, "handles": ["staged", "staged-stream"]},
    ),
    _call(
        "POST /v1/stages/forget", "/v1/stages/forget", _PRODUCE, f"append:{STREAM}",
        body={"writer": "w", "handles": ["staged", "staged-stream"]},
    ),
    # settings and pipelines
    _call("GET /v1/config", "/v1/config", "observe"),
    _call("GET /v1/pipelines", "/v1/pipelines", "observe"),
    _call(
        "POST /v1/pipelines/{name}/report", "/v1/pipelines/p/report", _READ,
        body={"kind": "archive", "topics": [TOPIC]},
    ),
    # runs and events
    _call("GET /v1/events", "/v1/events", "observe", endless=True),
    _call("GET /v1/runs", "/v1/runs", "observe"),
    _call("GET /v1/runs/{id}", "/v1/runs/none", "observe"),
    _call("POST /v1/runs/{id}/cancel", "/v1/runs/r1/cancel", _PRODUCE, unseen=True),
    # schedules
    _call("GET /v1/schedules", "/v1/schedules", lists=True),
    _call("POST /v1/schedules", "/v1/schedules", _PRODUCE, body=_SCHEDULE),
    _call("GET /v1/schedules/{name}", f"/v1/schedules/{SCHEDULE}", _READ, unseen=True),
    _call("POST /v1/schedules/{name}/pause", f"/v1/schedules/{SCHEDULE}/pause", _PRODUCE, unseen=True),
    _call("POST /v1/schedules/{name}/resume", f"/v1/schedules/{SCHEDULE}/resume", _PRODUCE, unseen=True),
    _call("POST /v1/schedules/{name}/run", f"/v1/schedules/{SCHEDULE}/run", _PRODUCE, unseen=True),
    _call("DELETE /v1/schedules/{name}", f"/v1/schedules/{SCHEDULE}.gone", _PRODUCE, unseen=True),
    # workers
    _call("GET /v1/workers", "/v1/workers", lists=True),
    _call("PUT /v1/workers/{id}", "/v1/workers/acme.w", _CONSUME, body=_HEARTBEAT),
    _call("GET /v1/workers/{id}", "/v1/workers/acme.w", _CONSUME, unseen=True),
    _call("POST /v1/workers/{id}/drain", "/v1/workers/acme.w/drain", _MANAGE, unseen=True),
    _call("POST /v1/workers/{id}/stop", "/v1/workers/acme.w/stop", _MANAGE, unseen=True),
    _call("DELETE /v1/workers/{id}", "/v1/workers/acme.w", _CONSUME, absent=True),
    # streams
    _call("GET /v1/streams", "/v1/streams", lists=True),
    _call("GET /v1/streams", "/v1/streams?details=true", lists=True),
    _call("GET /v1/subscriptions", "/v1/subscriptions", lists=True),
    _call("GET /v1/producers", "/v1/producers", lists=True),
    _call(
        "POST /v1/streams/trim", "/v1/streams/trim", f"manage:{STREAM}", body={"stream": STREAM, "before": "none"}
    ),
    _call("GET /v1/streams/records", f"/v1/streams/records?stream={STREAM}", f"read:{STREAM}"),
    _call(_STREAMS, f"/v1/stream/{STREAM}", f"read:{STREAM}", method="GET"),
    _call(_STREAMS, f"/v1/stream/{STREAM}?offset=-1&live=sse", f"read:{STREAM}", method="GET", endless=True),
    _call(_STREAMS, f"/v1/stream/{STREAM}?producer=p", f"append:{STREAM}", method="GET"),
    _call(_STREAMS, f"/v1/stream/{STREAM}", f"append:{STREAM}", method="HEAD"),
    _call(_STREAMS, f"/v1/stream/{STREAM}", f"append:{STREAM}", method="PUT", headers=TEXT),
    _call(
        _STREAMS, "/v1/stream/acme/fork", "append:acme/fork", f"read:{STREAM}", method="PUT",
        headers={**TEXT, "Stream-Forked-From": f"/v1/stream/{STREAM}"},
    ),
    _call(_STREAMS, f"/v1/stream/{STREAM}", f"append:{STREAM}", method="POST", body=b"v", headers=TEXT),
    _call(_STREAMS, "/v1/stream/acme/gone", "manage:acme/gone", method="DELETE"),
    _call(_STREAMS, f"/v1/stream/__topics/{TOPIC}/0", _READ, method="GET"),
    _call(_STREAMS, f"/v1/stream/__topics/{TOPIC}/0", _PRODUCE, method="HEAD"),
    _call(
        _STREAMS, _ROOT, f"manage:{SUBSCRIPTION}", f"read:{STREAM}", "append:acme/wakes", method="PUT", body=_PULL,
        headers=JSON,
    ),
    _call(
        _STREAMS, f"{_ROOT}2", f"manage:{SUBSCRIPTION}2", "read:acme/*", "append:acme/wakes", method="PUT",
        body={**_PULL, "streams": [], "pattern": "acme/**"}, headers=JSON,
    ),
    _call(_STREAMS, _ROOT, f"read:{SUBSCRIPTION}", method="GET"),
    _call(
        _STREAMS, f"{_ROOT}/streams", f"manage:{SUBSCRIPTION}", f"read:{STREAM}", method="POST",
        body={"streams": [STREAM]}, headers=JSON,
    ),
    _call(_STREAMS, f"{_ROOT}/streams/acme/none", f"manage:{SUBSCRIPTION}", method="DELETE"),
    _call(
        _STREAMS, f"{_ROOT}/claim", f"consume:{SUBSCRIPTION}", method="POST", body={"worker": "w"}, headers=JSON
    ),
    _call(_STREAMS, f"{_ROOT}.gone", f"manage:{SUBSCRIPTION}.gone", method="DELETE"),
    # access
    _call("GET /v1/identity", "/v1/identity"),
    _call("GET /v1/tokens", "/v1/tokens", "admin"),
    _call("POST /v1/tokens", "/v1/tokens", "admin", body={"name": "n", "grants": ["observe"], "ttl_ms": 60_000}),
    _call("GET /v1/tokens/{id}", "/v1/tokens/none", "admin"),
    _call("PATCH /v1/tokens/{id}", "/v1/tokens/none", "admin", body={"grants": ["observe"]}),
    _call("DELETE /v1/tokens/{id}", "/v1/tokens/none", "admin"),
    _call("POST /v1/tokens/derive", "/v1/tokens/derive", "observe", body={"grants": ["observe"]}),
    _call("POST /v1/tokens/{id}/rotate", "/v1/tokens/none/rotate", "admin", body={}),
    _call("GET /v1/audit", "/v1/audit", "read:_audit", "observe"),
    _call("GET /v1/tenants", "/v1/tenants", "admin"),
    _call("POST /v1/tenants", "/v1/tenants", "admin", body={"name": "Not a name"}),
    _call("GET /v1/tenants/{tenant}", "/v1/tenants/none", "admin"),
    _call("PATCH /v1/tenants/{tenant}", "/v1/tenants/none", "admin", body={"topics": 1}),
    _call("DELETE /v1/tenants/{tenant}", "/v1/tenants/none", "admin"),
)  # fmt: skip


def missing_name(call: ExampleCall) -> ExampleCall:
    """The same call for names that do not exist."""
    headers = {name: value.replace("acme", "nope") for name, value in call.headers.items()}
    body = call.body
    if not isinstance(body, bytes) and body is not None:
        body = json.loads(json.dumps(body).replace("acme", "nope"))
    return call._replace(target=call.target.replace("acme", "nope"), body=body, headers=headers)


_NEW_HEADERS = ("date", "x-request-id", "content-length", "etag")
_ALWAYS_NEW = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)|\d{13,}|dq_\w+|(?<=\"fence\":)\d+|[0-9a-f]{12,}|\beyJ[\w.-]+"
)


def comparable(reply: Reply) -> str:
    """A reply as text, with one name for all, and without times and ids, which are never the same."""
    headers = {name: value for name, value in reply.headers.items() if name not in _NEW_HEADERS}
    text = f"{reply.status} {sorted(headers.items())} {reply.body.decode('latin-1')}"
    return _ALWAYS_NEW.sub("…", text.replace("acme", "nope"))


# Routes whose parts are answered one by one, and routes with a credential of their own.
BATCH_ROUTE = "POST /v1/produce/batch"
# The pages of the console: files without data, which are no part of the API.
PAGES = {"GET /", "GET /console", "* /console/*"}
PUBLIC_ROUTES = {
    "GET /v1/healthz", "HEAD /v1/healthz", "GET /v1/readyz", "HEAD /v1/readyz", "GET /v1/openapi.json", "GET /v1/docs",
    "GET /.well-known/jwks.json",
}  # fmt: skip
OWN_CALLS = tuple(
    ExampleCall(_STREAMS, "POST", f"{_ROOT}/{name}", (), {"wake_id": "w", "generation": 1}, JSON)
    for name in ("ack", "callback", "release")
)


def renew_worker(operator: Operator) -> None:
    """A worker that sends no heartbeat is forgotten after a while."""
    operator.done("PUT", "/v1/workers/acme.w", _HEARTBEAT)


def prepare(operator: Operator) -> None:
    """Make what the example calls use."""
    for topic in (TOPIC, f"{TOPIC}.eu"):
        operator.done("POST", "/v1/topics", {"name": topic})
    operator.done("POST", "/v1/produce", {"topic": TOPIC, "value": "secret message"})
    operator.done("POST", "/v1/jobs", {"topic": TOPIC, "id": "job", "value": "v"})
    operator.done("POST", "/v1/produce", {"topic": TOPIC, "value": "v", "envelope": {"run_id": "r1"}})
    operator.done("POST", "/v1/job-batches", {"id": "known", "topic": TOPIC, "sealed": False})
    operator.done("POST", "/v1/claim", {**_HELD, "max": 1, "lease_ms": 600_000})
    renew_worker(operator)
    operator.done("POST", "/v1/schedules", _SCHEDULE)
    operator.done("PUT", f"/v1/stream/{STREAM}", b"secret text", TEXT)
    operator.done("PUT", "/v1/stream/acme/wakes", b"", JSON)
    operator.done("PUT", _ROOT, _PULL, JSON)
    operator.done("POST", f"/v1/stages?writer=w&handle=staged&topic={TOPIC}&partition=0", pack([Record(b"v")]), BATCH)
    operator.done("POST", f"/v1/stages?writer=w&handle=staged-stream&path={STREAM}", pack([Record(b"v")]), BATCH)

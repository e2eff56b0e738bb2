"""Pages of other origins in a real browser: one that is not listed reads and changes nothing; a listed one works;
chosen streams can be read by every page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Site, binary, report_of
from tests.support.server import Server, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "token_stream.html"
JSON = {"Content-Type": "application/json"}

# Each try reports what the page learned: "blocked", or what it could read.
PAGE = """<!doctype html><meta charset="utf-8"><body><script type="module">
const broker = new URLSearchParams(location.search).get("broker")
const report = {}
async function attempt(name, act) {
  try { report[name] = await act() } catch (error) { report[name] = "blocked" }
}
const read = async (path, options) => {
  const answer = await fetch(broker + path, options)
  return answer.type === "opaque" ? "blocked" : [answer.status, await answer.text()]
}
const json = {"Content-Type": "application/json"}
const element = (tag, attributes) => new Promise((resolve) => {
  const made = Object.assign(document.createElement(tag), attributes)
  made.onload = () => resolve("loaded")
  made.onerror = () => resolve("blocked")
  document.body.append(made)
})
const events = (path) => new Promise((resolve) => {
  const source = new EventSource(broker + path)
  source.addEventListener("data", (event) => { source.close(); resolve(event.data) })
  source.addEventListener("error", () => { source.close(); resolve("blocked") })
})
ATTEMPTS
await fetch("/report", {method: "POST", body: JSON.stringify(report)})
</script>"""

HOSTILE = """
await attempt("topics", () => read("/v1/topics"))
await attempt("partition", () => read("/v1/stream/__topics/orders/0?offset=-1"))
await attempt("partition, followed", () => events("/v1/stream/__topics/orders/0?offset=-1&live=sse"))
await attempt("stream", () => read("/v1/stream/secret?offset=-1"))
await attempt("all streams", () => read("/v1/stream/__ds/subscriptions/x", {method: "PUT", headers: json,
  body: JSON.stringify({type: "pull-wake", pattern: "**", wake_stream: "wakes"})}))
await attempt("webhook", () => read("/v1/stream/__ds/subscriptions/hook", {method: "PUT", headers: json,
  body: JSON.stringify({type: "webhook", pattern: "**",
    webhook: {url: broker + "/v1/topics/orders/groups/billing/pause"}})}))
await attempt("put", () => read("/v1/stream/made", {method: "PUT"}))
await attempt("delete", () => read("/v1/stream/secret", {method: "DELETE"}))
await attempt("append", () => read("/v1/stream/secret", {method: "POST", mode: "no-cors", body: '["x"]'}))
await attempt("produce", () => read("/v1/produce?topic=orders&value=evil", {method: "POST", mode: "no-cors"}))
await attempt("claim", () => read("/v1/claim?topic=orders&group=billing&owner=evil&max=10",
  {method: "POST", mode: "no-cors"}))
await attempt("blind read", () => read("/v1/consume?topic=orders&group=billing&owner=x&lease_ms=100",
  {mode: "no-cors"}))
await attempt("consume by image", () => element("img",
  {src: broker + "/v1/consume?topic=orders&group=billing&owner=x&lease_ms=100"}))
await attempt("consume by script", () => element("script",
  {src: broker + "/v1/consume?topic=orders&group=billing&owner=y&lease_ms=100"}))
await attempt("beacon", async () => { navigator.sendBeacon(broker + "/v1/topics?name=beacon"); return "blocked" })
await attempt("rebound name", async () => {
  const answer = await fetch(broker.replace("127.0.0.1", "rebound.example") + "/v1/topics")
  return answer.text()
})
"""

LISTED = """
await attempt("topics", () => read("/v1/topics"))
await attempt("put", () => read("/v1/stream/made",
  {method: "PUT", headers: {...json, "Stream-TTL": "60"}, body: "[1]"}))
await attempt("followed", () => events("/v1/stream/made?offset=-1&live=sse"))
await attempt("offset", async () => {
  const answer = await fetch(broker + "/v1/stream/made?offset=-1")
  return answer.headers.get("Stream-Next-Offset")
})
await attempt("delete", () => read("/v1/stream/made", {method: "DELETE"}))
await attempt("produce", () => read("/v1/produce", {method: "POST", headers: json,
  body: JSON.stringify({topic: "orders", value: "from the app"})}))
await attempt("consume", async () => {
  const answer = await fetch(broker + "/v1/consume?topic=orders&group=app&owner=page")
  const {value} = await answer.body.getReader().read()
  return JSON.parse(new TextDecoder().decode(value).split("\\n")[0]).value
})
await attempt("consume by image", () => element("img", {src: broker + "/v1/consume?topic=orders&group=image&owner=x"}))
"""

PUBLIC = """
await attempt("answer", () => read("/v1/stream/answers/1?offset=-1"))
await attempt("secret", () => read("/v1/stream/secret?offset=-1"))
await attempt("append", () => read("/v1/stream/answers/1", {method: "POST", mode: "no-cors", body: '["x"]'}))
await attempt("example", () => new Promise((resolve) => {
  const frame = document.createElement("iframe")
  frame.src = "/token_stream.html?stream=" + encodeURIComponent(broker + "/v1/stream/answers/1")
  document.body.append(frame)
  const look = setInterval(() => {
    const text = frame.contentDocument?.querySelector("#answer")?.textContent
    if (text) { clearInterval(look); resolve(text) }
  }, 20)
}))
"""


@pytest.fixture(scope="module")
def browser(profile: str) -> str:
    return binary(profile)


@pytest.fixture
def site() -> Iterator[Site]:
    pages = {
        "/hostile.html": PAGE.replace("ATTEMPTS", HOSTILE),
        "/listed.html": PAGE.replace("ATTEMPTS", LISTED),
        "/public.html": PAGE.replace("ATTEMPTS", PUBLIC),
        "/token_stream.html": EXAMPLE.read_text(encoding="utf-8"),
    }
    with contextlib.closing(Site(pages)) as site_server:
        yield site_server


def prepare(server: Server) -> None:
    server.call("POST", "/v1/topics", {"name": "orders"})
    for number in range(5):
        order = {"topic": "orders", "value": f"order {number}", "envelope": {"retry_policy": {"max_attempts": 2}}}
        assert server.call("POST", "/v1/produce", order).status == 200
    for path in ("secret", "answers/1"):
        assert server.call("PUT", f"/v1/stream/{path}", b'[{"token": "hello"}]', JSON).status == 201


def state(server: Server) -> dict[str, object]:
    """Everything that the hostile page tries to change."""
    paths = (
        "/v1/topics", "/v1/groups", "/v1/streams", "/v1/topics/orders/partitions/0/messages?offset=0",
        "/v1/stream/secret?offset=-1", "/v1/stream/answers/1?offset=-1", "/v1/dlq/orders",
        "/v1/stream/__ds/subscriptions/x", "/v1/stream/__ds/subscriptions/hook",
    )  # fmt: skip
    return {path: (reply := server.call("GET", path)).status and reply.body for path in paths}


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_of_an_unlisted_origin_reads_nothing_and_changes_nothing(browser, site, tmp_path, name):
    with running(None) as server:
        prepare(server)
        before = state(server)
        url = f"http://{name}:{site.port}/hostile.html?broker={server.url}"
        report = report_of(browser, site, url, tmp_path)
        assert len(report) == 16
        assert set(report.values()) == {"blocked"}, report
        assert state(server) == before


def test_a_page_of_a_listed_origin_may_use_the_broker(browser, site, tmp_path):
    with running(None, f"listen.allowed_origins=http://app.example:{site.port}") as server:
        prepare(server)
        report = report_of(browser, site, f"http://app.example:{site.port}/listed.html?broker={server.url}", tmp_path)
        assert report["topics"][0] == 200
        assert report["put"][0] == 201
        assert report["followed"] == "[1]"
        assert report["offset"]
        assert report["delete"][0] == 204
        assert report["produce"][0] == 200
        assert report["consume"] == "order 0"
        assert report["consume by image"] == "blocked"


def test_every_page_may_read_the_streams_that_are_open_and_no_others(browser, site, tmp_path):
    with running(None, "streams.cors_prefixes=answers/") as server:
        prepare(server)
        before = state(server)
        report = report_of(browser, site, f"http://any.example:{site.port}/public.html?broker={server.url}", tmp_path)
        assert report["answer"] == [200, '[{"token": "hello"}]']
        assert report["secret"] == "blocked"
        assert report["append"] == "blocked"
        assert report["example"].strip() == "hello", "the page of the example works from another origin"
        assert state(server) == before

"""A web page with a short-lived token in a real browser: `EventSource` follows one stream until the token ends,
and the page can do nothing else with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jwt
import pytest

from tests.support.access import TEXT, TOKENS, Operator, bearer, first_token
from tests.support.browser import Site, binary, report_of
from tests.support.server import running

ORIGIN = "app.example"
SOON_MS = 4_000  # the token that ends during the test

PAGE = """<!doctype html><meta charset="utf-8"><body><script type="module">
const given = new URLSearchParams(location.search)
const broker = given.get("broker"), token = given.get("token")
const report = {}
const withToken = (path) => `${broker}${path}${path.includes("?") ? "&" : "?"}access_token=${given.get("token")}`
const followed = (path, token, length) => new Promise((resolve) => {
  const source = new EventSource(`${broker}${path}?offset=-1&live=sse&access_token=${token}`)
  const seen = []
  source.addEventListener("data", (event) => {
    seen.push(event.data)
    if (seen.join("").length >= length) { source.close(); resolve(seen) }
  })
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) resolve([...seen, "closed"])
  })
})
const status = async (method, path, body) => {
  const answer = await fetch(withToken(path), {method, body, headers: body ? {"Content-Type": "application/json"} : {}})
  return answer.status
}
report.one = await followed("/v1/stream/runs/42", token, 10)
const begun = performance.now()
const answer = await fetch(broker + "/v1/tokens/derive", {
  method: "POST", headers: {Authorization: `Bearer ${token}`, "Content-Type": "application/json"},
  body: JSON.stringify({grants: ["read:runs/42"], ttl_ms: SOON_MS}),
})
report.soon = (await answer.json()).token
report.ended = await followed("/v1/stream/runs/42", report.soon, 1000)
report.lasted = performance.now() - begun
report.other = await followed("/v1/stream/runs/43", token, 1)
report.reads = {}
for (const path of ["/v1/stream/runs/43?offset=-1", "/v1/stream/runs/421?offset=-1", "/v1/metrics", "/v1/overview",
  "/v1/tokens", "/v1/tenants", "/v1/topics/orders", "/v1/stream/__topics/orders/0?offset=-1", "/v1/config",
  "/v1/backup", "/v1/consume?topic=orders&group=g&owner=w"])
  report.reads[path] = await status("GET", path)
report.lists = [(await (await fetch(withToken("/v1/streams"))).json()).streams.map((item) => item.stream),
  (await (await fetch(withToken("/v1/topics"))).json()).topics]
report.writes = {}
for (const [method, path, body] of [["POST", "/v1/stream/runs/42", "[1]"], ["PUT", "/v1/stream/runs/44", "[1]"],
  ["DELETE", "/v1/stream/runs/42"], ["POST", "/v1/produce", '{"topic":"orders","value":"x"}'],
  ["POST", "/v1/topics", '{"name":"made"}'], ["POST", "/v1/tokens/derive", '{"grants":["read:runs/42"]}']])
  report.writes[`${method} ${path}`] = await status(method, path, body)
await fetch("/report", {method: "POST", body: JSON.stringify(report)})
</script>"""


@pytest.fixture(scope="module")
def browser(profile: str) -> str:
    return binary(profile)


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.closing(Site({"/": PAGE.replace("SOON_MS", str(SOON_MS))})) as site_server:
        yield site_server


def test_a_page_follows_one_stream_for_ten_minutes_and_nothing_else(browser, site, tmp_path):
    folder = str(tmp_path / "data")
    first = first_token(folder)
    origin = f"listen.allowed_origins=http://{ORIGIN}:{site.port}"
    with running(folder, TOKENS, origin, "log.access=true", "log.level=debug") as server:
        server.read_lines()
        operator = Operator(server, first)
        operator.done("POST", "/v1/topics", {"name": "orders"})
        for path in ("runs/42", "runs/43", "runs/421"):
            operator.done("PUT", f"/v1/stream/{path}", b"hello", TEXT)
        operator.done("POST", "/v1/stream/runs/42", b"world", TEXT)
        body = {"grants": ["read:runs/42"], "ttl_ms": 600_000}
        token = operator.done("POST", "/v1/tokens/derive", body).json()["token"]
        claims = jwt.decode(token, options={"verify_signature": False})
        assert claims["exp"] - claims["iat"] == 600
        url = f"http://{ORIGIN}:{site.port}/?broker={server.url}&token={token}"
        report = report_of(browser, site, url, tmp_path)
        assert "".join(report["one"]) == "helloworld"
        assert "".join(report["ended"]) == "helloworldclosed", "it was read until its token ended"
        assert report["lasted"] >= SOON_MS - 1_000, "not before it ended; its end is a whole second"
        assert report["other"] == ["closed"]
        assert set(report["reads"].values()) <= {401, 403}, report["reads"]
        assert report["lists"] == [["runs/42"], []]
        assert set(report["writes"].values()) == {401}, report["writes"]
        assert operator.done("GET", "/v1/topics").json()["topics"] == ["_audit", "orders"]
        assert server.call("GET", "/v1/stream/runs/42", headers=bearer(token)).body == b"helloworld"
        page = operator.done("GET", "/v1/metrics").body.decode()
        server.stop()
        printed = "".join(server.lines) + page
        assert "/v1/stream/runs/42" in printed
        for text in (token, report["soon"]):
            assert text.split(".")[2] not in printed
        assert "access_token" not in printed

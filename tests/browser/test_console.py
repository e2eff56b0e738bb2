"""The console in a real browser against a real broker: views, hostile content, a restart, a login."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.access import TOKENS, bearer, first_token
from tests.support.console import HOSTILE, Tab, fill_large, serious_findings
from tests.support.server import Server, running

# The path and the heading of every view of the navigation, and of one thing of each kind.
VIEWS = {
    "": "Overview",
    "topics": "Topics",
    "topics/orders": "orders",
    "topics/orders?tab=partitions": "orders",
    "topics/orders?tab=groups": "orders",
    "topics/orders?tab=settings": "orders",
    "topics/orders/0/1": "Message 1",
    "groups": "Groups",
    "groups/orders/billing": "billing",
    "dead-letters": "Dead letters",
    "dead-letters/orders": "Dead letters of orders",
    "jobs": "Jobs",
    "jobs/emails/mail-2": "mail-2",
    "job-batches": "Job batches",
    "job-batches/letters": "letters",
    "schedules": "Schedules",
    "schedules/nightly": "nightly",
    "audit": "Audit",
    "runs": "Runs",
    "runs/run-7": "run-7",
    "workers": "Workers",
    "streams": "Streams",
    "streams/runs/7": "runs/7",
    "subscriptions": "Subscriptions",
    "producers": "Producers",
    "pipelines": "Pipelines",
    "storage": "Storage",
    "tokens": "Tokens",
    "tenants": "Tenants",
    "tenants/acme": "acme",
    "settings": "Settings",
}


# How far what was painted moved, as the browser measures it; and a tab that is not looked at.
MEASURE = """
window.moved = 0
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.moved += entry.value
}).observe({type: 'layout-shift', buffered: true})
"""
TURN = """
Object.defineProperty(document, 'hidden', {value: %s, configurable: true})
document.dispatchEvent(new Event('visibilitychange'))
"""
LETTERS = int(os.environ.get("LETTERS", "100000"))  # dead letters of the large broker
HIDE, SHOW = TURN % "true", TURN % "false"


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VIEWS)
def test_a_view_shows_hostile_content_as_text_and_is_accessible(tab: Tab, path: str):
    page = tab.open(path, VIEWS[path])
    expect(page.locator(".failure")).to_have_count(0)
    tab.is_clean()
    assert serious_findings(page) == []


@pytest.mark.parametrize("path", ["topics/orders/0/1", "dead-letters/orders"])
def test_the_dark_colours_have_enough_contrast(new_tab: Callable[..., Tab], server: Server, path: str):
    page = new_tab(server, color_scheme="dark").open(path, VIEWS[path])
    assert serious_findings(page) == []


def test_the_first_visit_is_small_and_asks_no_other_server(new_tab: Callable[..., Tab], server: Server):
    tab = new_tab(server)
    sizes: list[int] = []
    hosts: set[str] = set()
    tab.page.on("requestfinished", lambda request: sizes.append(request.sizes()["responseBodySize"]))
    tab.page.on("request", lambda request: hosts.add(request.url.partition("/console")[0].partition("/v1")[0]))
    page = tab.open("", "Overview")
    expect(page.locator(".canvas canvas")).not_to_have_count(0)
    assert sum(sizes) < 300_000
    assert hosts == {server.url}


def test_a_page_that_loads_does_not_move(new_tab: Callable[..., Tab], server: Server):
    tab = new_tab(server)
    tab.page.add_init_script(MEASURE)
    page = tab.open("", "Overview")
    expect(page.locator(".canvas canvas")).to_have_count(9)
    measured = page.evaluate(
        "({moved: window.moved, painted: performance.getEntriesByName('first-contentful-paint')[0].startTime})"
    )
    assert measured["moved"] < 0.1  # a good page, in the words of web.dev; jumps of a whole section are 0.2 and more
    assert measured["painted"] < 5_000  # 100 to 300 ms on a quiet machine


def test_a_hidden_tab_asks_for_nothing(new_tab: Callable[..., Tab], server: Server):
    tab = new_tab(server)
    page = tab.open("topics/emails", "emails")
    expect(page.locator(".connection")).to_have_text("live")
    page.evaluate(HIDE)
    expect(page.locator(".connection")).to_have_text("connected")
    calls: list[str] = []
    page.on("request", lambda request: calls.append(request.url))
    for _ in range(3):
        tab.server.call("POST", "/v1/produce", {"topic": "emails", "value": "unseen"})
    page.wait_for_timeout(2_500)  # nothing to wait for: that is the point
    assert calls == []
    with page.expect_request("**/v1/topics/emails"):
        page.evaluate(SHOW)
    expect(page.locator(".connection")).to_have_text("live")


def test_the_search_finds_topics_groups_and_streams_by_name(tab: Tab):
    page = tab.open("", "Overview")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("bill")
    option = page.get_by_role("option", name="orders / billing")
    expect(option).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("billing")


def test_an_empty_broker_teaches_three_commands(new_tab: Callable[..., Tab]):
    with running(None) as empty:
        page = new_tab(empty).open("", "Overview")
        expect(page.locator(".command")).to_have_count(3)
        page = new_tab(empty).open("runs", "Runs")
        expect(page.locator(".empty")).to_contain_text("There is no run yet")


@pytest.mark.timeout(1_200)
def test_a_large_broker_is_shown_in_pages(new_tab: Callable[..., Tab], tmp_path: Path):
    """With 10,000 topics, 100,000 jobs and a tenth of a million dead letters; `make console-scale` takes a million."""
    settings = "limits.topics_max=20000", f"limits.partition_messages={2 * max(LETTERS, 1_000_000)}"
    with running(str(tmp_path), *settings) as filled:
        fill_large(filled, LETTERS)
    with running(str(tmp_path), *settings) as large:
        errors = "/v1/dlq/jobs/errors"
        assert not large.call("GET", f"{errors}?wait_ms=1").json()["complete"], "it begins to count after a start"
        tab = new_tab(large)
        page = tab.open("dead-letters/jobs", "Dead letters of jobs")
        kinds = page.get_by_role("region", name="Kinds of errors of jobs").locator("tbody tr")
        expect(kinds).to_have_count(2)
        expect(page.get_by_text("so far")).to_have_count(0, timeout=120_000)
        for row in range(2):
            expect(kinds.nth(row)).to_contain_text(f"{LETTERS // 2:,}")
        assert large.call("GET", f"{errors}?wait_ms=100").json()["counted"] == LETTERS, "it counts once only"
        tab.press("Delete all")
        expect(page.locator(".preview")).to_contain_text(f"{LETTERS:,} letters", timeout=60_000)
        tab.confirm("Back")
        kinds.filter(has_text="declined").get_by_role("button", name="Delete").click()
        expect(page.locator(".preview")).to_contain_text(f"{LETTERS // 2:,} letters", timeout=60_000)
        tab.confirm("Delete")
        expect(kinds).to_have_count(1, timeout=120_000)
        assert large.call("GET", "/v1/topics/jobs").json()["dead_letters"] == LETTERS // 2
        page = tab.open("topics", "Topics")
        expect(page.locator(".subtitle")).to_have_text("10,001 topics")
        expect(page.locator("tbody tr")).to_have_count(200)
        page = tab.open("topics?search=t-09999", "Topics")
        expect(page.locator("tbody tr")).to_have_count(1)
        page = tab.open("jobs?topic=jobs&task=rare", "Jobs")
        expect(page.locator(".states a").first).to_have_text(re.compile(r"^all\d"))
        page = tab.open("", "Overview")
        expect(page.locator(".canvas canvas")).to_have_count(9)
        tab.is_clean()


def test_a_job_shows_what_it_was_asked_for_and_why_it_waits(tab: Tab):
    tab.server.call("POST", "/v1/topics", {"name": "asked", "partitions": 1})
    tab.server.call("POST", "/v1/claim", {"topic": "asked", "group": "g", "owner": "o", "max": 1})
    job = {"topic": "asked", "value": HOSTILE, "task": "send", "id": "later", "delay_ms": 3_600_000}
    assert tab.server.call("POST", "/v1/jobs", job).status == 201
    page = tab.open("jobs/asked/later", "later")
    expect(page.locator(".gate.timed")).to_contain_text(re.compile(r"in (59|60) min"))
    expect(page.locator(".payload pre").last).to_contain_text("<img src=x")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    tab.server.call("POST", "/v1/jobs", {"topic": "emails", "value": "v", "task": "ended", "id": "ended"})
    tab.server.call("POST", "/v1/jobs/emails/ended/cancel", {})
    page = tab.open("jobs/emails/ended", "ended")
    expect(page.locator(".headline .badge")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    tab.is_clean()


def test_a_group_shows_its_lag_by_lane(tab: Tab):
    tab.server.call("POST", "/v1/topics", {"name": "lanes", "partitions": 1})
    jobs = [{"value": "v", "task": task} for task in (HOSTILE, HOSTILE, HOSTILE, "resize")]
    tab.server.call("POST", "/v1/produce/batch", {"topic": "lanes", "messages": jobs})
    claim = {"topic": "lanes", "group": "g", "owner": "o", "max": 1, "task": "resize"}
    assert len(tab.server.call("POST", "/v1/claim", claim).json()["messages"]) == 1
    page = tab.open("groups/lanes/g", "g")
    rows = page.get_by_role("region", name="Lanes").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("no consumer asks for it")
    expect(rows.last).to_contain_text("resize")
    assert rows.last.locator("td").all_inner_texts()[-3:-1] == ["1", "0"]
    tab.is_clean()


def test_settings_are_shown_as_people_read_them(tab: Tab):
    page = tab.open("settings", "Settings")
    expect(page.locator("tr", has_text="jobs.batch_ttl_ms")).to_contain_text("24 h")
    expect(page.get_by_text("[object")).to_have_count(0)


@pytest.mark.parametrize("path", ["", "topics/orders", "groups/orders/billing", "dead-letters/orders"])
def test_a_phone_shows_a_view_without_scrolling_sideways(new_tab: Callable[..., Tab], server: Server, path: str):
    page = new_tab(server, viewport={"width": 390, "height": 800}).open(path, VIEWS[path])
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_keyboard_goes_to_views_and_to_the_search(tab: Tab):
    page = tab.open("", "Overview")
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    page.keyboard.press("/")
    page.keyboard.type("ema")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{tab.server.url}/console/topics?search=ema")
    expect(page.get_by_role("link", name="orders", exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name="emails", exact=True)).to_be_visible()


def test_a_message_says_who_holds_it_and_until_when(tab: Tab):
    held = tab.server.call("GET", "/v1/topics/orders/groups/billing/states?partition=0").json()["pending"]["offset"]
    where = (0, held[0]) if held else (1, 0)
    page = tab.open(f"topics/orders/{where[0]}/{where[1]}", f"Message {where[1]}")
    gate = page.locator(".gate.timed").first
    expect(gate).to_contain_text("holds it until")
    expect(gate).to_contain_text(re.compile(r"in \d+ min"))


def test_messages_are_found_by_text_and_arrive_live(tab: Tab):
    page = tab.open("topics/orders?text=%22order%22%3A+13", "orders")
    expect(page.get_by_role("region", name="Messages", exact=True).locator("tbody tr")).to_have_count(1)
    page = tab.open("topics/emails", "emails")
    page.get_by_label("live").check()
    expect(page.locator(".badge", has_text="live")).to_be_visible()
    tab.server.call(
        "POST", "/v1/produce", {"topic": "emails", "value": "just now", "envelope": {"partition_override": 0}}
    )
    expect(page.get_by_text("just now")).to_be_visible()


def test_a_stream_is_followed_while_it_is_written(tab: Tab):
    tab.server.call("PUT", "/v1/stream/answers/1", b"once", {"Content-Type": "text/plain"})
    page = tab.open("streams/answers/1", "answers/1")
    content = page.get_by_label("Content of the stream")
    expect(content).to_contain_text("once")
    for word in (" upon", " a", " time"):
        tab.server.call("POST", "/v1/stream/answers/1", word.encode(), {"Content-Type": "text/plain"})
    expect(content).to_contain_text("once upon a time")
    tab.is_clean()


# --- life -------------------------------------------------------------------------------------------------------------


def test_a_page_that_is_open_survives_a_restart_of_the_broker(new_tab: Callable[..., Tab], tmp_path: Path):
    first = Server(str(tmp_path))
    try:
        first.call("POST", "/v1/topics", {"name": "kept"})
        tab = new_tab(first)
        page = tab.open("topics/kept", "kept")
        first.kill()
        expect(page.locator(".notice")).to_be_visible()
    finally:
        if first.process.poll() is None:
            first.kill()
    second = Server(str(tmp_path), port=first.port)
    try:
        expect(page.locator(".notice")).to_have_count(0)
        second.call("POST", "/v1/produce", {"topic": "kept", "value": "x"})
        expect(page.locator(".figures")).to_contain_text("messages1")
    finally:
        second.stop()


def test_a_broker_with_tokens_asks_for_one_and_shows_what_it_may_see(new_tab: Callable[..., Tab], tmp_path: Path):
    with ThreadPoolExecutor(1) as threads:  # this thread has a running loop: Playwright's
        token = threads.submit(first_token, str(tmp_path)).result()
    with running(str(tmp_path), TOKENS) as server:
        admin = bearer(token)
        server.call("POST", "/v1/topics", {"name": "orders"}, admin)
        server.call("POST", "/v1/topics", {"name": "salaries"}, admin)
        created = server.call(
            "POST", "/v1/tokens", {"name": "viewer", "grants": ["observe", "read:orders"]}, admin
        ).json()
        tab = new_tab(server)
        page = tab.page
        page.goto(f"{server.url}/console/topics")
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in to DriftQ")
        page.get_by_label("Access token").fill("dq_wrong_token")
        tab.press("Log in")
        expect(page.locator(".failure")).to_be_visible()
        page.get_by_label("Access token").fill(created["token"])
        tab.press("Log in")
        expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
        expect(page.get_by_text("salaries")).to_have_count(0)
        expect(page.get_by_role("button", name="Create a topic")).to_have_count(0)
        expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
        page.get_by_role("link", name="orders", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        for action in ("Move", "Purge", "Delete"):
            expect(page.get_by_role("button", name=action, exact=True)).to_have_count(0)
        page.goto(f"{server.url}/console/tokens")
        expect(page.locator(".failure")).to_contain_text("Not allowed")
        page.goto(f"{server.url}/console/topics?search=ord")
        expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
        page.get_by_label("name contains").fill("typed before")
        assert token not in json.dumps(page.evaluate("Object.values(localStorage)"))
        server.call("DELETE", f"/v1/tokens/{created['id']}", None, admin)
        server.call("POST", "/v1/produce", {"topic": "orders", "value": "x"}, admin)
        login = page.locator("dialog.login")
        expect(login).to_contain_text("not valid any more")
        second = server.call("POST", "/v1/tokens", {"name": "again", "grants": ["admin"]}, admin).json()
        login.get_by_label("Access token").fill(second["token"])
        tab.press("Log in")
        expect(login).to_have_count(0)
        expect(page).to_have_url(f"{server.url}/console/topics?search=ord")
        expect(page.get_by_label("name contains")).to_have_value("typed before")
        expect(page.get_by_role("button", name="Create a topic")).to_be_visible()

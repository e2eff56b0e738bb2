"""What the console does to topics, groups, jobs, dead letters, workers, streams and schedules, in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.support.console import HOSTILE, Tab, serious_findings


def test_a_topic_is_created_used_changed_and_deleted(tab: Tab):
    page = tab.open("topics", "Topics")
    tab.press("Create a topic")
    tab.field("Name").fill("made-here")
    tab.confirm("Create")
    expect(page.get_by_role("heading", level=1)).to_have_text("made-here")
    tab.press("Send a test message")
    tab.field("Value").fill("by hand")
    tab.confirm("Send")
    expect(page.get_by_text("by hand")).to_be_visible()
    page = tab.open("topics/made-here?tab=settings", "made-here")
    tab.press("Change")
    tab.field("lease_ms").fill("5000")
    tab.field("keep_unread").select_option("all")
    shown = page.locator(".figures dd").first.inner_text()
    tab.server.call("POST", "/v1/produce", {"topic": "made-here", "value": "by another one"})
    expect(page.locator(".figures dd").first).not_to_have_text(shown)  # the page is drawn again
    tab.confirm("Change")
    expect(page.locator("dialog")).to_have_count(0)
    config = tab.server.call("GET", "/v1/topics/made-here").json()["config"]
    assert (config["lease_ms"], config["keep_unread"]) == (5_000, "all")
    tab.press("Delete")
    expect(page.locator("dialog")).to_contain_text("2 messages")
    tab.confirm("Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert tab.server.call("GET", "/v1/topics/made-here").status == 404
    tab.is_clean()


def test_a_bad_name_is_refused_with_the_reason_and_the_dialog_stays(tab: Tab):
    page = tab.open("topics", "Topics")
    tab.press("Create a topic")
    tab.field("Name").fill("no blanks, please")
    tab.confirm("Create")
    expect(page.locator("dialog .failure")).to_be_visible()


def test_messages_of_a_topic_are_moved_and_purged_after_a_dry_run(tab: Tab):
    for name in ("here", "there"):
        tab.server.call("POST", "/v1/topics", {"name": name, "partitions": 2})
    tasks = [{"value": HOSTILE, "task": task} for task in ("a", "a", "b", "b", "b")]
    tab.server.call("POST", "/v1/produce/batch", {"topic": "here", "messages": tasks})
    claim = {"topic": "here", "group": "g", "owner": "o", "max": 1, "task": "b"}
    assert len(tab.server.call("POST", "/v1/claim", claim).json()["messages"]) == 1

    def messages(topic: str) -> int:
        return sum(row["messages"] for row in tab.server.call("GET", f"/v1/topics/{topic}").json()["partitions"])

    page = tab.open("topics/here", "here")
    tab.press("Move")
    assert serious_findings(page) == []
    tab.field("To topic").fill("there")
    tab.field("Task").fill("a")
    tab.confirm("Dry run")
    expect(page.locator(".preview")).to_have_text("2 messages will be moved to there.")
    assert messages("there") == 0
    tab.confirm("Move")
    expect(page.locator(".preview")).to_have_text("2 messages moved to there.")
    assert messages("there") == 2
    tab.confirm("Close")
    tab.press("Purge")
    expect(page.locator(".preview")).to_have_text("5 messages will be dropped, 1 in flight.")
    assert messages("here") == 5  # also those that were moved, which are settled
    tab.confirm("Purge")
    expect(page.locator("dialog")).to_have_count(0)
    assert messages("here") == 0
    tab.is_clean()


def test_a_group_is_paused_resumed_moved_after_a_preview_and_deleted(tab: Tab):
    tab.server.call("POST", "/v1/topics", {"name": "moves", "partitions": 1})
    tab.server.call("POST", "/v1/produce/batch", {"topic": "moves", "messages": [{"value": "x"}] * 10})
    claim = {"topic": "moves", "group": "g", "owner": "o", "max": 4}
    for item in tab.server.call("POST", "/v1/claim", claim).json()["messages"]:
        settled = {"partition": item["partition"], "offset": item["offset"], "token": item["token"], "owner": "o"}
        tab.server.call("POST", "/v1/ack", {"topic": "moves", "group": "g", **settled})
    page = tab.open("groups/moves/g", "g")
    tab.press("Pause")
    tab.confirm("Pause")
    expect(page.locator(".badge", has_text="paused")).to_be_visible()
    tab.press("Resume")
    tab.confirm("Resume")
    expect(page.locator(".badge", has_text="paused")).to_have_count(0)
    tab.press("Seek")
    tab.confirm("Preview")
    expect(page.locator(".preview")).to_have_text(
        "Up to 4 messages will be delivered again; 0 unsettled messages will be skipped."
    )
    tab.confirm("Seek")
    expect(page.locator("dialog")).to_have_count(0)
    assert tab.server.call("GET", "/v1/topics/moves/groups/g").json()["lag"] == 10
    tab.press("Delete")
    tab.confirm("Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    assert tab.server.call("GET", "/v1/topics/moves/groups/g").status == 404
    tab.is_clean()


def test_a_dead_letter_is_edited_and_sent_back_after_a_dry_run(tab: Tab):
    before = tab.server.call("GET", "/v1/topics/orders").json()["dead_letters"]
    page = tab.open("dead-letters/orders", "Dead letters of orders")
    tab.press("Edit, send back")
    tab.field("Value").fill("mended")
    tab.confirm("Dry run")
    expect(page.locator(".preview")).to_have_text("1 letter will be sent back.")
    expect(page.locator(".diff .plus")).to_contain_text("mended")
    assert tab.server.call("GET", "/v1/topics/orders").json()["dead_letters"] == before
    tab.confirm("Send back")
    expect(page.locator(".preview")).to_have_text("1 letter sent back.")
    assert tab.server.call("GET", "/v1/topics/orders").json()["dead_letters"] == before - 1
    tab.is_clean()


def test_letters_are_exported_moved_and_deleted_after_a_dry_run(tab: Tab):
    reject(tab, "spoilt", 4, reason=HOSTILE)
    reject(tab, "spoilt", 2, reason="no answer")

    def left() -> int:
        count = tab.server.call("GET", "/v1/topics/spoilt").json()["dead_letters"]
        assert isinstance(count, int)
        return count

    page = tab.open("dead-letters/spoilt?error=answer", "Dead letters of spoilt")
    tab.press("Export all that fit")
    with page.expect_download() as download:
        tab.confirm("Export all that fit")
    assert download.value.suggested_filename == "dlq.spoilt.ndjson"
    lines = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
    assert [line["dlq"]["last_error"] for line in lines] == ["no answer"] * 2
    tab.press("Delete all that fit")
    expect(page.locator(".preview")).to_have_text("2 letters will be deleted. They cannot be sent back any more.")
    assert left() == 6
    tab.confirm("Delete all that fit")
    expect(page.get_by_text("No letter fits.")).to_be_visible()
    assert left() == 4
    page = tab.open("dead-letters/spoilt", "Dead letters of spoilt")
    tab.press("Send back")
    tab.field("To topic").fill("emails")
    tab.field("At most").fill("1")
    tab.confirm("Dry run")
    expect(page.locator(".preview")).to_have_text("1 letter will be moved to emails.")
    tab.confirm("Send back")
    expect(page.locator(".preview")).to_have_text("1 letter moved to emails.")
    tab.confirm("Close")
    letters = page.get_by_role("region", name="Letters", exact=True).locator("tbody tr")
    expect(letters).to_have_count(3)
    letters.first.get_by_role("button", name="Delete").click()
    expect(page.locator(".preview")).to_contain_text("1 letter will be deleted.")
    tab.confirm("Delete")
    expect(letters).to_have_count(2)
    assert left() == 2
    tab.open("topics/spoilt/0/3", "Message 3")
    tab.press("Retry now")
    expect(page.locator("dialog")).to_contain_text("Its dead letter is sent back")
    tab.confirm("Retry now")
    expect(page.locator("dialog")).to_have_count(0)
    assert left() == 1
    tab.press("Retry now")
    tab.confirm("Retry now")
    expect(page.locator("dialog .failure")).to_contain_text("no dead letter that could be sent back")
    tab.is_clean()


def test_jobs_are_retried_one_by_one_and_together(tab: Tab):
    for number in range(4):
        job = {"topic": "emails", "value": "v", "task": "later", "id": f"later-{number}", "delay_ms": 3_600_000}
        tab.server.call("POST", "/v1/jobs", job)
    plain = {"topic": "emails", "value": "v", "delay_ms": 3_600_000}
    place = tab.server.call("POST", "/v1/produce", plain).json()

    def states() -> list[str]:
        return [tab.server.call("GET", f"/v1/jobs/emails/later-{number}").json()["state"] for number in range(4)]

    page = tab.open("jobs/emails/later-0", "later-0")
    tab.press("Retry now")
    tab.confirm("Retry now")
    expect(page.locator(".headline .badge")).to_have_text("ready")
    expect(page.get_by_role("button", name="Retry now")).to_have_count(0)
    tab.open(f"topics/emails/{place['partition']}/{place['offset']}", f"Message {place['offset']}")
    tab.press("Retry now")
    tab.confirm("Retry now")
    expect(page.get_by_role("button", name="Retry now")).to_have_count(0)
    page = tab.open("jobs?topic=emails&task=later", "Jobs")
    page.get_by_label("Select emails/later-1").check()
    tab.press("Retry 1")
    expect(page.locator(".preview")).to_contain_text("1 job")
    tab.confirm("Retry 1")
    expect(page.get_by_role("status").filter(has_text="1 job due now")).to_be_visible()
    assert states() == ["ready", "ready", "scheduled", "scheduled"]
    tab.press("Retry all that fit")
    expect(page.locator("dialog .preview")).to_contain_text("2 jobs")
    tab.confirm("Retry all that fit")
    expect(page.get_by_role("status").filter(has_text="2 jobs due now")).to_be_visible()
    assert states() == ["ready"] * 4
    tab.is_clean()


def test_jobs_are_selected_counted_and_cancelled_together(tab: Tab):
    for number in range(3):
        tab.server.call("POST", "/v1/jobs", {"topic": "emails", "value": "v", "task": "bulk", "id": f"bulk-{number}"})
    page = tab.open("jobs?topic=emails&task=bulk", "Jobs")
    page.get_by_label("Select emails/bulk-0").check()
    page.get_by_label("Select emails/bulk-1").check()
    tab.press("Cancel 2")
    expect(page.locator(".preview")).to_contain_text("2 jobs")
    tab.confirm("Cancel 2")
    expect(page.locator("dialog")).to_have_count(0)
    states = [tab.server.call("GET", f"/v1/jobs/emails/bulk-{number}").json()["state"] for number in range(3)]
    assert states[:2] == ["cancelled", "cancelled"]
    assert states[2] != "cancelled"
    tab.is_clean()


def test_what_did_not_end_of_a_run_is_cancelled(tab: Tab):
    for step in ("plan", "act"):
        envelope = {"run_id": "run-8", "step_id": step, "parent_step_id": "plan" if step == "act" else ""}
        tab.server.call("POST", "/v1/produce", {"topic": "emails", "value": "v", "envelope": envelope})
    page = tab.open("runs/run-8", "run-8")
    expect(page.get_by_role("region", name="Steps").locator("tbody tr")).to_have_count(2)
    tab.press("Cancel")
    expect(page.locator("dialog")).to_contain_text("2 steps")
    tab.confirm("Cancel")
    expect(page.locator(".headline .badge", has_text="cancelled")).to_be_visible()
    tab.is_clean()


def test_a_worker_is_asked_to_drain(tab: Tab):
    heartbeat = {"host": "host-1", "pid": 1, "version": HOSTILE}
    tab.server.call("PUT", "/v1/workers/worker-1", heartbeat)
    page = tab.open("workers", "Workers")
    tab.press("Drain")
    tab.confirm("Drain")
    expect(page.get_by_text("asked to drain")).to_be_visible()
    reply = tab.server.call("PUT", "/v1/workers/worker-1", heartbeat).json()
    assert reply["command"] == "drain"


def test_a_stream_is_created_appended_closed_and_deleted(tab: Tab):
    page = tab.open("streams", "Streams")
    tab.press("Create a stream")
    tab.field("Path").fill("made/here")
    tab.confirm("Create")
    expect(page.get_by_role("heading", level=1)).to_have_text("made/here")
    tab.press("Append")
    tab.field("application/json").fill('{"token": "hello"}')
    tab.confirm("Append")
    expect(page.get_by_label("Content of the stream")).to_contain_text("hello")
    tab.press("Close")
    tab.confirm("Close")
    expect(page.locator(".badge", has_text="closed").first).to_be_visible()
    tab.press("Delete")
    tab.confirm("Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    assert tab.server.call("HEAD", "/v1/stream/made/here").status == 404


def reject(tab: Tab, topic: str, count: int, reason: str) -> None:
    """Produce messages that become dead letters."""
    tab.server.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    tab.server.call("POST", "/v1/produce/batch", {"topic": topic, "messages": [{"value": "x", "task": "t"}] * count})
    claim = {"topic": topic, "group": "g", "owner": "o", "max": count}
    held = tab.server.call("POST", "/v1/claim", claim).json()["messages"]
    letters = [{key: item[key] for key in ("partition", "offset", "token")} for item in held]
    rejected = {"topic": topic, "group": "g", "owner": "o", "reason": reason, "messages": letters}
    assert tab.server.call("POST", "/v1/reject", rejected).status == 200


def test_many_letters_are_sent_back_at_a_rate_until_they_are_stopped(tab: Tab):
    reject(tab, "slow", 300, reason="no answer")
    page = tab.open("dead-letters/slow", "Dead letters of slow")
    tab.press("Send back")
    tab.field("Per second").fill("20")
    tab.confirm("Dry run")
    expect(page.locator(".preview")).to_have_text("300 letters will be sent back.")
    tab.confirm("Send back")
    expect(page.locator(".preview")).to_contain_text(re.compile("^[1-9][0-9]* letters sent back of 300"))
    tab.confirm("Stop")
    expect(page.locator(".preview")).to_have_text(re.compile("^[0-9]+ letters sent back.$"))
    sent = int(page.locator(".preview").inner_text().split()[0])
    assert 20 <= sent < 300
    assert tab.server.call("GET", "/v1/topics/slow").json()["dead_letters"] == 300 - sent
    tab.is_clean()


def test_a_schedule_is_created_run_paused_resumed_and_deleted(tab: Tab):
    page = tab.open("schedules", "Schedules")
    tab.press("Create a schedule")
    tab.field("Name").fill("hourly")
    tab.field("Topic").fill("emails")
    tab.field("Value").fill('{"report": 1}')
    tab.field("Cron").fill("0 * * * *")
    tab.confirm("Create")
    expect(page.get_by_role("heading", level=1)).to_have_text("hourly")
    expect(page.locator(".times li")).to_have_count(10)
    tab.press("Pause")
    tab.confirm("Pause")
    expect(page.locator(".headline .badge")).to_have_text("paused")
    tab.press("Resume")
    tab.confirm("Resume")
    expect(page.locator(".headline .badge")).to_have_text("active")
    tab.press("Run now")
    tab.confirm("Run now")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Message")
    expect(page.locator(".payload pre").first).to_contain_text("report")
    page = tab.open("schedules/hourly", "hourly")
    tab.press("Delete")
    tab.confirm("Delete")
    expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    assert tab.server.call("GET", "/v1/schedules/hourly").status == 404
    tab.is_clean()


def test_what_is_typed_stays_while_the_page_is_drawn_again(tab: Tab):
    page = tab.open("topics/emails", "emails")
    tab.press("Send a test message")
    tab.field("Value").fill("half a sentence")
    shown = page.locator(".figures dd").first.inner_text()
    tab.server.call("POST", "/v1/produce", {"topic": "emails", "value": "by another one"})
    expect(page.locator(".figures dd").first).not_to_have_text(shown)
    expect(tab.field("Value")).to_have_value("half a sentence")

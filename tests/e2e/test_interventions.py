"""What operators do to messages, through the client and the command line: retry now, unique jobs, purge, move, delete
and export dead letters, and `--watch`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from driftq.client.api import DriftQ
from driftq.client.errors import InvalidCall, NotFound

WAIT_S = 30.0


@driftq.task("mail.send", topic="mail", unique=True)
def send_mail(to: str, subject: str = "hello") -> str:
    return f"{to}: {subject}"


@pytest.fixture
def run(server, monkeypatch, tmp_path):
    monkeypatch.setenv("DRIFTQ_URL", server.url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run_command(*argv: str, text: bytes | None = None, code: int = 0) -> str:
        result = CliRunner().invoke(main, argv, input=text)
        assert result.exit_code == code, (argv, result.output, result.stderr, result.exception)
        return result.stdout if code == 0 else result.stderr

    return run_command


@pytest.fixture
def as_json(run):
    return lambda *argv: json.loads(run(*argv, "--json"))


@pytest.fixture
def fresh(broker: DriftQ, request) -> str:
    """A topic whose messages wait long for their next attempt."""
    name = f"acts.{request.node.name.removeprefix('test_')[:150]}"
    broker.topics.create(name, retry={"max_attempts": 9, "backoff_ms": 600_000})
    return name


def take(broker: DriftQ, topic: str, count: int = 10) -> list[driftq.Message]:
    return list(broker.claim(topic, "g", max=count))


def test_a_call_of_a_unique_task_is_enqueued_once_until_its_job_has_ended(broker: DriftQ):
    broker.topics.create("mail")
    first = send_mail.enqueue(broker, "ann")
    again = send_mail.enqueue(broker, to="ann", subject="hello")
    other = send_mail.enqueue(broker, "bob")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (again.id, again.offset) == (first.id, first.offset) != (other.id, other.offset)
    plain = send_mail.options_for(unique=False).enqueue(broker, "ann")
    assert not plain.duplicate
    kept = send_mail.options_for(id_ttl_ms=600_000)
    _work(broker, "mail")
    assert not kept.enqueue(broker, "ann").duplicate
    _work(broker, "mail")
    assert kept.enqueue(broker, "ann").duplicate, "its id is taken for ten minutes after the end"


def _work(broker: DriftQ, topic: str) -> None:
    for message in broker.claim(topic, "workers", max=100):
        message.ack()


def test_jobs_of_any_kind_can_be_unique_by_their_arguments(broker: DriftQ, fresh: str):
    first = broker.jobs.enqueue(fresh, {"a": 1, "b": [2]}, task="t", unique=True)
    again = broker.jobs.enqueue(fresh, {"b": [2], "a": 1}, task="t", unique=True)
    assert (again.duplicate, again.id) == (True, first.id)
    assert not broker.jobs.enqueue(fresh, {"a": 1, "b": [3]}, task="t", unique=True).duplicate
    assert not broker.jobs.enqueue(fresh, {"a": 1, "b": [2]}, task="u", unique=True).duplicate
    with pytest.raises(InvalidCall, match="not by both"):
        broker.jobs.enqueue(fresh, {}, task="t", id="x", unique=True)
    with pytest.raises(InvalidCall, match="name the task"):
        broker.jobs.enqueue(fresh, {}, unique=True)
    with pytest.raises(InvalidCall, match="no JSON"):
        broker.jobs.enqueue(fresh, object(), task="t", unique=True)


def test_jobs_are_retried_with_the_client_and_the_command_line(broker: DriftQ, fresh: str, run):
    for id in ("a", "b", "c", "d"):
        broker.jobs.enqueue(fresh, id, task="t", id=id)
    waiting = take(broker, fresh)
    for message in waiting[:3]:
        message.nack("no luck")
    waiting[3].reject("bad")
    assert broker.jobs.handle(fresh, "a").retry().retried
    assert run("jobs", "retry", fresh, "b") == "b: due now\n"
    assert "nothing to retry" in run("jobs", "retry", fresh, "b", code=Exit.REFUSED)
    assert json.loads(run("jobs", "retry", fresh, "--all", "--dry-run", "--json"))["matched"] == 4
    counts = json.loads(run("jobs", "retry", fresh, "--state", "retrying,dead", "--json"))
    assert (counts["retried"], counts["redriven"]) == (1, 1)
    assert {message.job_id for message in take(broker, fresh)} == {"a", "b", "c", "d"}
    assert "by their ids" in run("jobs", "retry", fresh, code=Exit.USAGE)
    assert "not both" in run("jobs", "cancel", fresh, "a", "--all", code=Exit.USAGE)
    assert run("jobs", "cancel", fresh, "a", "b", "unknown") == "2 of 2 cancelled\n"


def test_a_topic_is_purged_and_its_messages_are_moved(broker: DriftQ, fresh: str, run):
    target = f"{fresh}.to"
    broker.topics.create(target)
    broker.send_many(fresh, ["a", "b", "c", "d"])
    assert run("topics", "move", fresh, target, "--dry-run") == "4 would be moved; nothing was changed\n"
    assert run("topics", "move", fresh, target, "--limit", "3") == f"3 of 3 moved to {target}\n"
    assert json.loads(run("topics", "move", fresh, target, "--json"))["moved"] == 1
    assert [message.value for message in take(broker, target)] == [b"a", b"b", b"c", b"d"]
    assert "4 messages would be dropped" in run("topics", "purge", target, "--dry-run")
    assert "--yes" in run("topics", "purge", target, code=Exit.USAGE)
    assert json.loads(run("topics", "purge", target, "--yes", "--json"))["in_flight"] == 4
    assert broker.topics.purge(target).messages == 0


def test_dead_letters_are_exported_read_back_deleted_and_sent_elsewhere(
    broker: DriftQ, fresh: str, run, tmp_path: Path
):
    target = f"{fresh}.review"
    broker.topics.create(target)
    broker.send(fresh, b"\xff\x00", key="k")
    broker.send(fresh, "text", task="t", tenant="acme")
    for message in take(broker, fresh):
        message.reject(f"bad {message.offset}")
    exported = list(broker.dead_letters.export(fresh))
    assert [json.loads(line)["dlq"]["last_error"] for line in exported] == ["bad 0", "bad 1"]
    assert list(broker.dead_letters.export(fresh, error="bad 1")) == exported[1:]
    assert run("dlq", "export", fresh).encode() == b"".join(exported)
    file = tmp_path / "letters.ndjson"
    assert "2 dead letters" in run("dlq", "export", fresh, "--output", str(file))
    assert json.loads(run("produce", target, "--ndjson", str(file), "--json"))["produced"] == 2
    binary, text = take(broker, target)
    assert (binary.value, binary.key, text.value, text.task) == (b"\xff\x00", "k", b"text", "t")

    async def export() -> list[bytes]:
        async with driftq.connect_async(broker.url) as other:
            return [line async for line in other.dead_letters.export(fresh)]

    assert asyncio.run(export()) == exported
    assert run("dlq", "redrive", fresh, "0:1", "--to", target) == "1 of 1 redriven\n"
    assert [message.value for message in take(broker, target)] == [b"text"]
    assert run("dlq", "delete", fresh, "--dry-run") == "1 would be deleted; nothing was changed\n"
    assert "--yes" in run("dlq", "delete", fresh, code=Exit.USAGE)
    gone = "1 named letter is not there"
    assert gone in run("dlq", "redrive", fresh, "0:1", code=Exit.NOTHING_THERE)
    assert gone in run("dlq", "delete", fresh, "0:1", "0:0", "--error", "bad", "--yes", code=Exit.NOTHING_THERE)
    assert run("dlq", "delete", fresh, "--error", "bad 0", "--yes") == "0 of 0 deleted\n", "a filter may find none"
    assert broker.dead_letters.list(fresh) == []
    with pytest.raises(NotFound):
        list(broker.dead_letters.export("no.such.topic"))


def test_messages_are_changed_by_hand(broker: DriftQ, fresh: str, run, as_json, tmp_path: Path):
    wide = f"{fresh}.wide"
    broker.topics.create(wide, partitions=2)
    for id in ("a", "b", "c"):
        broker.jobs.enqueue(fresh, id, task="t", id=id, delay_ms=60_000)
    assert run("jobs", "retry", fresh, "a") == "a: due now\n"
    assert as_json("jobs", "retry", fresh, "--all") == {"dry_run": False, "matched": 2, "retried": 2, "redriven": 0}
    assert run("topics", "move", fresh, wide, "--limit", "1") == f"1 of 1 moved to {wide}\n"
    for message in broker.claim(fresh, "g", max=9):
        message.reject("bad")
    letters = tmp_path / "letters.ndjson"
    assert len(run("dlq", "export", fresh).splitlines()) == 2
    assert as_json("dlq", "export", fresh, "-o", str(letters))["exported"] == len(letters.read_text().splitlines()) == 2
    assert run("dlq", "delete", fresh, "0:0", "--yes") == "1 of 1 deleted\n"
    assert as_json("dlq", "delete", fresh, "--dry-run") == {"status": "dry run", "matched": 1, "deleted": 0}
    assert as_json("topics", "move", fresh, wide)["matched"] == 0
    assert run("topics", "purge", wide, "--yes") == f"{wide}: 1 messages dropped (0 in flight, 0 waiting)\n"
    assert as_json("topics", "purge", wide, "--dry-run")["messages"] == 0


# --- --watch ---


def _driftq(server, *arguments: str, **streams: object) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "DRIFTQ_URL": server.url, "TERM": "xterm"}
    command = [sys.executable, "-m", "driftq.cli.main", *arguments]
    return subprocess.Popen(command, env=environ, **streams)  # type: ignore[call-overload, no-any-return]


def test_a_list_is_shown_again_and_again_in_a_pipe_and_ends_with_the_interrupt(server, broker: DriftQ, fresh: str):
    process = _driftq(server, "groups", "list", fresh, "--watch", "--every", "50ms", stdout=subprocess.PIPE)
    assert process.stdout is not None
    broker.send(fresh, "a")
    take(broker, fresh)
    lines: list[bytes] = []
    while sum(line.startswith(b"TOPIC") for line in lines) < 3:
        lines.append(process.stdout.readline())
        assert lines[-1], "the output ended"
    assert b"\x1b" not in b"".join(lines)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    process.stdout.close()


def test_a_terminal_shows_the_newest_round_alone(server):
    leader, follower = pty.openpty()
    process = _driftq(server, "status", "--watch", "--every", "50ms", stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    deadline_s = time.monotonic() + WAIT_S
    while shown.count(b"\x1b[2J\x1b[H") < 3:
        assert time.monotonic() < deadline_s, shown
        if select.select([leader], [], [], 1)[0]:
            shown += os.read(leader, 4_096)
    assert b"durability" in shown
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    os.close(leader)


def test_a_reader_that_leaves_ends_a_watch(server):
    process = _driftq(server, "topics", "list", "--watch", "--every", "50ms", "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    assert [type(json.loads(line)) for line in (first, second)] == [list, list]
    process.stdout.close()
    assert process.wait(WAIT_S) == 0

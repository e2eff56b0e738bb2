"""Every command against a real server, as text and as JSON."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from tests.support.server import running
from tests.support.wait import until_now


@pytest.fixture(scope="module")
def broker(server):
    with driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        yield broker


@pytest.fixture(autouse=True)
def place(server, tmp_path, monkeypatch):
    """A temporary home folder, and the server of these tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DRIFTQ_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.delenv("DRIFTQ_CONTEXT", raising=False)
    monkeypatch.delenv("DRIFTQ_TOKEN", raising=False)


@pytest.fixture
def topic(broker, request):
    name = request.node.name.removeprefix("test_")[:200].replace("[", ".").replace("]", "")
    broker.topics.create(name)
    return name


@pytest.fixture
def wide(broker, request):
    """A topic of two partitions."""
    name = f"wide.{request.node.name.removeprefix('test_')[:200]}"
    broker.topics.create(name, partitions=2)
    return name


def run(*argv: str, text: str | bytes | None = None, code: int = 0) -> str:
    """What a command prints. Fails if it ends otherwise than it should."""
    result = CliRunner().invoke(main, argv, input=text)
    assert result.exit_code == code, (argv, result.output, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


def as_json(*argv: str, text: str | bytes | None = None, code: int = 0):
    return json.loads(run(*argv, "--json", text=text, code=code))


def as_lines(*argv: str, text: str | bytes | None = None):
    return [json.loads(line) for line in run(*argv, "--json", text=text).splitlines()]


# --- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_shown_changed_and_deleted():
    assert run("topics", "create", "life", "--partitions", "3", "--retention", "7d") == "life: created, partitions: 3\n"
    assert as_json("topics", "create", "life", "-p", "3") == {"status": "exists", "name": "life", "partitions": 3}
    assert {"retention_ms", "604800000"} <= set(run("topics", "show", "life").split())
    assert as_json("topics", "show", "life")["config"]["retention_ms"] == 604_800_000
    assert "retry max_attempts" in run("topics", "set", "life", "--max-attempts", "4", "--backoff", "2s")
    changed = as_json("topics", "set", "life", "--lease", "1m", "--keep-unread", "all")["config"]
    assert (changed["lease_ms"], changed["retry"]["backoff_ms"], changed["keep_unread"]) == (60_000, 2_000, "all")
    assert "nothing to change" in run("topics", "set", "life", code=Exit.USAGE)
    assert [line.split()[:3] for line in run("topics", "list").splitlines() if line.startswith("life")] == [
        ["life", "3", "0"]
    ]
    assert {"name": "life", "partitions": 3, "messages": 0, "bytes": 0, "groups": 0, "dead_letters": 0} in as_json(
        "topics", "list"
    )
    assert "--yes" in run("topics", "delete", "life", code=Exit.USAGE)
    assert run("topics", "delete", "life", "--yes") == "life: deleted\n"
    run("topics", "create", "life")
    assert as_json("topics", "delete", "life", "-y") == {"topic": "life", "status": "deleted"}


def test_messages_are_peeked_without_a_claim(topic, broker):
    broker.send_many(topic, ["a", "b", b"\xff\x00"])
    assert run("topics", "peek", topic, "-n", "3").splitlines()[:2] == ["0:0  a", "0:1  b"]
    assert "2 bytes, not text" in run("topics", "peek", topic)
    assert [message["offset"] for message in as_lines("topics", "peek", topic, "--offset", "1")] == [1, 2]
    assert run("topics", "offsets", topic).splitlines()[1].split() == ["0", "0", "3"]
    assert as_json("topics", "offsets", topic, "--at", "1h")["partitions"][0]["at"] == 0
    assert not broker.groups.list(topic)


# --- produce ----------------------------------------------------------------------------------------------------------


def test_produce_prints_the_offset_and_an_idempotency_key_stores_it_once(topic):
    first = run("produce", topic, "hello", "--key", "user:1", "--idempotency-key", "k")
    assert first.startswith(f"{topic} ")
    assert "nothing changed" in run("produce", topic, "hello", "--key", "user:1", "--idempotency-key", "k")
    assert as_json("produce", topic, "other")["offset"] >= 0


def test_an_idempotency_key_is_refused_for_several_messages(topic, broker):
    for word in ("--idempotency-key", "--id"):
        assert "belongs to one message" in run("produce", topic, "a", "b", word, "k", code=Exit.USAGE)
    lines = "".join(json.dumps({"value": text, "envelope": {"idempotency_key": text}}) + "\n" for text in "aab")
    assert as_json("produce", topic, "--ndjson", "-", text=lines)["produced"] == 3
    assert [message.value for message in broker.topics.peek(topic)] == ["a", "b"]


def test_every_option_of_a_message_arrives(wide, broker):
    run(
        "produce", wide, "v", "--key", "k", "--task", "mail", "--id", "j1", "--priority", "3", "--tenant", "acme",
        "--label", "a=1", "--label", "b=2", "--run-id", "r", "--step-id", "s", "--parent-step-id", "p",
        "--partition", "1", "--max-attempts", "2", "--backoff", "1s", "--max-backoff", "1m", "--deadline", "1h",
        "--timeout", "5s",
    )  # fmt: skip
    (message,) = broker.claim(wide, "g")
    envelope = message.envelope
    assert (message.partition, message.key, message.task, message.job_id, message.timeout_ms) == (
        1,
        "k",
        "mail",
        "j1",
        5_000,
    )
    assert (envelope.tenant_id, envelope.labels, envelope.run_id) == ("acme", {"a": "1", "b": "2"}, "r")
    assert (envelope.retry_policy.max_attempts, envelope.retry_policy.max_backoff_ms) == (2, 60_000)
    assert envelope.deadline


@pytest.mark.parametrize("way", [(), ("--packed",), ("--packed", "--compress")])
def test_lines_files_and_ndjson_are_messages(broker, tmp_path, way, request):
    topic = f"sources-{'-'.join(way)}"
    broker.topics.create(topic)
    assert run("produce", topic, *way, text="a\nb\r\n") == f"{topic}: 2 produced\n"
    (tmp_path / "f.bin").write_bytes(b"\x00whole\nfile")
    assert as_json("produce", topic, "c", "--file", str(tmp_path / "f.bin"), *way)["produced"] == 2
    objects = '{"value": {"n": 1}, "key": "k"}\n\n{"value_base64": "/w=="}\n'
    assert as_json("produce", topic, "--ndjson", "-", *way, text=objects)["produced"] == 2
    messages = broker.topics.peek(topic, offset=0, limit=10)
    assert [message.value for message in messages] == ["a", "b", "c", "\x00whole\nfile", '{"n":1}', ""]
    assert (messages[4].key, messages[5].value_base64) == ("k", "/w==")


def test_an_error_names_the_line_that_is_no_message(topic):
    assert "line 2" in run("produce", topic, "--ndjson", "-", text='{"value": "a"}\n{"valu": 1}\n', code=Exit.BAD_INPUT)


def test_many_messages_of_which_some_are_refused_are_counted(topic):
    lines = '{"value": "a"}\n{"value": "b", "envelope": {"target_topic": "nowhere"}}\n'
    output = run("produce", topic, "--ndjson", "-", text=lines, code=Exit.REFUSED)
    assert "line 2 was refused" in output


# --- consume, claim, settle -------------------------------------------------------------------------------------------


def test_consume_prints_acks_and_releases_the_rest(topic, broker):
    broker.send_many(topic, ["a", "b", "c"])
    assert run("consume", topic, "looks", "--drain", "--no-ack").splitlines() == ["0:0  a", "0:1  b", "0:2  c"]
    assert broker.groups.describe(topic, "looks").lag == 3
    assert run("consume", topic, "g", "-n", "2", "--raw") == "a\nb\n"
    assert [message["value"] for message in as_lines("consume", topic, "g", "--drain")] == ["c"]
    assert broker.groups.describe(topic, "g").lag == 0


def test_claimed_messages_are_settled_with_each_command(topic, broker):
    broker.send_many(topic, [str(number) for number in range(12)])
    held = as_lines("claim", topic, "g", "-n", "11", "--lease", "5m")
    token = held[0]["token"]
    assert run("ack", topic, "g", "0:0", "0:1-2", "--token", token) == "3 done\n"
    piped = "".join(json.dumps(message) + "\n" for message in held[3:5])
    assert as_json("ack", topic, "g", "-", text=piped) == {"refused": []}
    assert run("extend", topic, "g", "0:5", "--token", token, "--lease", "10m") == "1 extended\n"
    assert "lease_until" in as_json("extend", topic, "g", "0:5", "--token", token)
    assert run("nack", topic, "g", "0:5", "--token", token, "--reason", "no", "--delay", "1h") == "1 failed\n"
    assert as_json("nack", topic, "g", "0:6", "--token", token) == {"refused": []}
    assert run("release", topic, "g", "0:7", "--token", token, "--delay", "1h") == "1 released\n"
    assert as_json("release", topic, "g", "0:8", "--token", token) == {"refused": []}
    assert run("reject", topic, "g", "0:9", "--token", token, "--reason", "never") == "1 rejected\n"
    assert as_json("reject", topic, "g", "0:10", "--token", token) == {"refused": []}
    assert [letter.dlq.reason for letter in broker.dead_letters.list(topic)] == ["rejected", "rejected"]
    # A settled message: an ack is fine again, a nack with a wrong token is an error, and so is an ack of a dead letter.
    assert run("ack", topic, "g", "0:0", "--token", token) == "1 done\n"
    assert "settled already" in run("nack", topic, "g", "0:1", "--token", "x", code=Exit.REFUSED)
    assert "dead letter" in run("ack", topic, "g", "0:9", "--token", token, code=Exit.REFUSED)
    assert run("reject", topic, "g", "0:9", "--token", token) == "1 rejected\n"


def test_a_claim_prints_the_next_command_and_another_owner_is_refused(topic, broker):
    broker.send(topic, "a")
    assert run("claim", topic, "g", "--owner", "ann") == "0:0  a\n"
    assert "1 of 1 were refused" in run("ack", topic, "g", "0:0", "--owner", "bob", code=Exit.REFUSED)
    assert "--token TOKEN" in run("ack", topic, "g", "0:0", code=Exit.REFUSED)
    assert run("ack", topic, "g", "0:0", "--owner", "ann") == "1 done\n"
    assert "is not PARTITION:OFFSET" in run("ack", topic, "g", "0/0", code=Exit.USAGE)


def test_tail_reads_and_claims_nothing(topic, broker):
    broker.send_many(topic, [str(number) for number in range(30)])
    assert run("tail", topic, "--no-follow", "-n", "2").splitlines() == ["0:28  28", "0:29  29"]
    assert run("tail", topic, "--from", "earliest", "--count", "3", "--raw") == "0\n1\n2\n"
    assert len(as_lines("tail", topic, "--no-follow", "--from", "1h", "-p", "0")) == 30
    assert run("tail", topic, "--no-follow", "--from", "latest") == ""
    assert "no partition 7" in run("tail", topic, "-p", "7", code=Exit.USAGE)
    assert not broker.groups.list(topic)


def test_explain_names_every_gate(topic, broker):
    broker.send(topic, "a", delay_ms=3_600_000)
    broker.claim(topic, "g")
    broker.groups.pause(topic, "g")
    explanation = run("explain", topic, "0:0")
    assert "paused" in explanation
    assert "delayed" in explanation
    assert "opens when the group is resumed" in explanation
    gates = as_json("explain", topic, "0:0", "--group", "g")["groups"][0]["gates"]
    assert [gate["gate"] for gate in gates] == ["paused", "delayed"]


def test_route_shows_the_target_of_a_message(wide, broker):
    assert "partition 1" in run("route", wide, "v", "--partition", "1")
    assert as_json("route", wide, "v", "--key", "a")["routed_topic"] == wide
    assert broker.topics.offsets(wide).partitions[1].end == 0


# --- groups, dead letters, jobs, streams ------------------------------------------------------------------------------


def test_a_group_shows_its_gaps(topic, broker):
    broker.send_many(topic, ["a", "b", "c", "d"])
    claimed = broker.claim(topic, "g", max=4)
    broker.ack([claimed[1], claimed[3]])
    header, row = run("groups", "show", topic, "g").splitlines()[-2:]
    assert header.split()[-1] == "GAPS"
    assert row.split()[-1] == "2"


def test_a_message_in_backoff_is_waiting_for_people_and_resting_in_the_api(topic, broker):
    broker.send(topic, "later")
    (message,) = broker.claim(topic, "g")
    broker.nack([message], delay_ms=600_000)
    for command in (["list", topic], ["show", topic, "g"]):
        header, row = (line.split("  ") for line in run("groups", *command).splitlines()[-2:])
        columns = dict(zip(filter(None, map(str.strip, header)), filter(None, map(str.strip, row)), strict=False))
        assert columns["WAITING"] == "1", columns
    assert as_json("groups", "show", topic, "g")["resting"] == 1
    assert "group g: waiting, attempt 1" in run("explain", topic, "0:0")
    assert as_json("explain", topic, "0:0")["groups"][0]["state"] == "resting"


def test_groups_are_listed_moved_paused_and_deleted(topic, broker):
    broker.send_many(topic, ["a", "b", "c"])
    broker.ack(broker.claim(topic, "g", max=3))
    assert run("groups", "list", topic).splitlines()[1].split()[:3] == [topic, "g", "0"]
    assert as_json("groups", "list")[0]["group"]
    assert run("groups", "seek", topic, "g", "earliest") == f"g of {topic}: moved to earliest\n"
    assert as_json("groups", "show", topic, "g")["lag"] == 3
    assert "add --partition" in run("groups", "seek", topic, "g", "2", code=Exit.USAGE)
    assert as_json("groups", "seek", topic, "g", "2", "--partition", "0")["to"] == "2"
    assert run("groups", "show", topic, "g").splitlines()[-1].split()[:5] == ["0", "2", "2", "3", "1"]
    assert run("groups", "pause", topic, "g") == f"g of {topic}: paused\n"
    assert "paused" in run("groups", "list", topic)
    assert as_json("groups", "resume", topic, "g")["status"] == "resumed"
    assert as_json("groups", "pause", topic, "g")["status"] == "paused"
    assert run("groups", "resume", topic, "g") == f"g of {topic}: resumed\n"
    assert run("groups", "delete", topic, "g", "--yes") == f"g of {topic}: deleted\n"
    broker.claim(topic, "h")
    assert as_json("groups", "delete", topic, "h", "--yes")["status"] == "deleted"


def test_dead_letters_are_listed_grouped_shown_and_redriven(topic, broker):
    broker.send_many(topic, ["a", "b", "c", "d"])
    broker.reject(broker.claim(topic, "g", max=3), "no user 7")
    broker.reject(broker.claim(topic, "g", max=1), "timeout")
    assert run("dlq", "list", topic).count("no user 7") == 3
    assert [letter["value"] for letter in as_lines("dlq", "list", topic, "--error", "timeout")] == ["d"]
    assert run("dlq", "errors", topic).splitlines()[1].split()[0] == "3"
    assert as_json("dlq", "errors", topic)["errors"][1]["count"] == 1
    shown = run("dlq", "show", topic, "0:3")
    assert "timeout" in shown
    assert shown.endswith("\nd\n")
    assert as_json("dlq", "show", topic, "0:0")["dlq"]["group"] == "g"
    assert "nothing was changed" in run("dlq", "redrive", topic, "--dry-run")
    assert as_json("dlq", "redrive", topic, "--dry-run", "--error", "timeout")["matched"] == 1
    assert as_json("dlq", "redrive", topic, "0:0", "--value", "fixed")["redriven"] == 1
    assert run("dlq", "redrive", topic, "--rate", "1000") == "3 of 3 redriven\n"
    assert run("dlq", "redrive", topic) == "0 of 0 redriven\n"
    assert run("dlq", "list", topic) == ""
    assert [message.text for message in broker.claim(topic, "g", max=9)] == ["fixed", "b", "c", "d"]


def test_jobs_are_enqueued_shown_with_their_attempts_and_cancelled(topic, broker):
    assert run("jobs", "enqueue", topic, "v", "--task", "mail", "--id", "j1").startswith("j1  ")
    assert as_json("jobs", "enqueue", topic, "v", "--task", "mail", "--id", "j1")["duplicate"] is True
    (job,) = broker.claim(topic, "g")
    job.nack("smtp is down", delay_ms=3_600_000)
    shown = run("jobs", "show", topic, "j1")
    assert "group g: retrying" in shown
    assert "smtp is down" in shown
    assert as_json("jobs", "show", topic, "j1")["groups"][0]["attempts"][0]["error"] == "smtp is down"
    assert run("jobs", "cancel", topic, "j1") == "j1: cancelled\n"
    assert run("jobs", "enqueue", topic, "v", "--id", "j2").startswith("j2  ")
    assert "has not ended yet" in run("jobs", "result", topic, "j2", code=Exit.IN_USE)
    (job,) = broker.claim(topic, "g")
    job.report({"rows": 7})
    assert 'progress: {"rows":7}' in run("jobs", "show", topic, "j2")
    place = f"{job.partition}:{job.offset}"
    assert "not JSON" in run("ack", topic, "g", place, "--token", job.token, "--result", "{", code=Exit.USAGE)
    run("ack", topic, "g", place, "--token", job.token, "--result", '{"rows": 9}')
    assert as_json("jobs", "result", topic, "j2", "--wait", "5s") == {"rows": 9}
    assert as_json("jobs", "cancel", topic, "j1") == {"id": "j1", "cancelled": False}
    assert "already ended" in run("jobs", "cancel", topic, "j1", code=Exit.REFUSED)
    assert "--task" in run("jobs", "enqueue", topic, "v", code=Exit.USAGE)


def test_jobs_and_runs_are_listed_and_a_run_is_shown(topic):
    run("jobs", "enqueue", topic, "v", "--task", "mail", "--id", "job-7", "--run-id", "run-7", "--step-id", "first")
    assert run("jobs", "list", topic, "--state", "ready").count("job-7") == 1
    assert [job["id"] for job in as_json("jobs", "list", topic)] == ["job-7"]
    assert run("jobs", "list", topic, "--state", "dead") == ""
    assert "run-7" in run("runs", "list")
    assert "run-7" in [listed["run_id"] for listed in as_json("runs", "list")]
    assert f"{topic} 0:0" in run("runs", "show", "run-7")
    assert [step["step_id"] for step in as_json("runs", "show", "run-7")["steps"]] == ["first"]


def test_top_shows_the_groups_with_their_lag(topic, broker):
    broker.send_many(topic, ["a", "b"])
    broker.claim(topic, "g")
    row = next(line.split() for line in run("top", "--limit", "1000").splitlines() if line.startswith(topic))
    assert row[:3] == [topic, "g", "2"]
    shown = as_json("top", "--limit", "1000")
    assert shown["overview"]["version"] == driftq.__version__
    assert (topic, 2) in [(group["topic"], group["lag"]) for group in shown["groups"]]


def test_a_tenant_is_created_shown_changed_and_deleted():
    assert "messages_per_s" in run("tenants", "create", "acme", "--messages-per-s", "1000")
    assert as_json("tenants", "create", "other", "--stored-bytes", "1GiB")["quotas"]["stored_bytes"] == 2**30
    assert "messages_per_s=1000" in run("tenants", "list")
    assert {"acme", "other"} <= {tenant["name"] for tenant in as_json("tenants", "list")}
    assert "of 1000" in run("tenants", "show", "acme")
    assert as_json("tenants", "show", "acme")["quotas"]["messages_per_s"] == 1_000
    assert "name a quota to change" in run("tenants", "set", "acme", code=Exit.USAGE)
    assert "of 20" in run("tenants", "set", "acme", "--topics", "20")
    assert as_json("tenants", "set", "acme", "--topics", "30")["quotas"]["topics"] == 30
    assert "Add --yes" in run("tenants", "delete", "acme", code=Exit.USAGE)
    assert run("tenants", "delete", "acme", "--yes") == "acme: deleted\n"
    assert as_json("tenants", "delete", "other", "--yes") == {"tenant": "other", "status": "deleted"}
    assert run("tenants", "show", "acme", code=Exit.NOTHING_THERE)


def test_streams_are_created_written_read_trimmed_and_deleted():
    output = run("streams", "create", "runs/1", "--type", "application/json", "--ttl", "1h")
    assert output == "runs/1: created, application/json\n"
    assert as_json("streams", "create", "runs/1", "--type", "application/json", "--ttl", "1h")["created"] is False
    run("streams", "append", "runs/1", '{"n": 1}', '{"n": 2}')
    before = as_json("streams", "show", "runs/1")["next_offset"]
    end = as_json("streams", "append", "runs/1", text='{"n": 3}\n\n{"n": 4}\n')["next_offset"]
    assert run("streams", "read", "runs/1").splitlines() == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']
    assert as_lines("streams", "read", "runs/1")[0]["messages"][3] == {"n": 4}
    assert "Another client was faster" in run(
        "streams", "append", "runs/1", "5", "--if-match", before, code=Exit.REFUSED
    )
    assert "runs/1" in run("streams", "list", "runs/")
    assert as_json("streams", "list", "runs/")[0]["next_offset"] == end
    assert end in run("streams", "show", "runs/1")
    assert as_json("streams", "show", "runs/1")["ttl_s"] == 3_600
    assert run("streams", "trim", "runs/1", end) == "runs/1: trimmed\n"
    assert as_json("streams", "trim", "runs/1", end)
    run("streams", "append", "runs/1", '"last"', "--close")
    assert run("streams", "follow", "runs/1", "--offset", end) == '"last"\n'
    assert as_lines("streams", "follow", "runs/1", "--offset", end)[0]["closed"] is True
    assert run("streams", "delete", "runs/1", "--yes") == "runs/1: deleted\n"
    run("streams", "create", "runs/1")
    assert as_json("streams", "delete", "runs/1", "-y") == {"path": "runs/1", "status": "deleted"}


def test_a_stream_keeps_bytes_unchanged():
    run("streams", "create", "bytes", "--type", "application/octet-stream")
    run("streams", "append", "bytes", "--close", text=b"\x00\xff\n\r\n")
    result = CliRunner().invoke(main, ["streams", "read", "bytes"])
    assert result.stdout_bytes == b"\x00\xff\n\r\n"
    assert as_lines("streams", "read", "bytes")[0]["data_base64"] == "AP8KDQo="


# --- the server, contexts, errors -------------------------------------------------------------------------------------


def test_a_token_is_created_shown_narrowed_rotated_and_revoked(tmp_path):
    text = run("tokens", "create", "shop", "--grant", "produce:orders", "--grant", "observe", "--expires", "1h").strip()
    token_id = text.split("_")[1]
    assert as_json("tokens", "create", "other", "--grant", "admin")["grants"] == ["admin"]
    assert "a token needs at least one --grant" in run("tokens", "create", "none", code=Exit.USAGE)
    assert token_id in run("tokens", "list")
    assert text not in run("tokens", "list")
    assert "shop" in [token["name"] for token in as_json("tokens", "list")]
    assert "produce:orders" in run("tokens", "show", token_id)
    assert as_json("tokens", "show", token_id)["name"] == "shop"
    assert "observe" not in run("tokens", "narrow", token_id, "--grant", "produce:orders")
    assert as_json("tokens", "narrow", token_id, "--expires", "30m")["grants"] == ["produce:orders"]
    assert "can only lose rights" in run("tokens", "narrow", token_id, "--grant", "admin", code=Exit.USAGE)
    assert run("tokens", "rotate", token_id, "--overlap", "1h").startswith(f"dq_{token_id}_")
    file = tmp_path / "token"
    assert as_json("tokens", "rotate", token_id, "--to", str(file)) == {
        "id": token_id, "name": "shop", "grants": ["produce:orders"], "file": str(file),
    }  # fmt: skip
    assert file.read_text().startswith(f"dq_{token_id}_")
    assert "nothing to derive from" in run("tokens", "derive", "--grant", "read:runs/42", code=Exit.USAGE)
    assert "error" in as_json("tokens", "derive", "--grant", "read:runs/42", code=Exit.USAGE)
    assert "Add --yes" in run("tokens", "revoke", token_id, code=Exit.USAGE)
    assert run("tokens", "revoke", token_id, "--yes") == f"{token_id}: revoked\n"
    other = next(token["id"] for token in as_json("tokens", "list") if token["name"] == "other")
    assert as_json("tokens", "revoke", other, "--yes")["status"] == "revoked"
    assert "no access token" in run("tokens", "show", token_id, code=Exit.NOTHING_THERE)


def test_the_clock_is_shown_and_accepted():
    assert "machine" in run("clock", "show")
    assert not as_json("clock", "show")["held"]
    assert "Add --yes" in run("clock", "accept", code=Exit.USAGE)
    assert abs(as_json("clock", "accept", "--yes")["ahead_ms"]) < 1_000


def test_the_server_shows_its_status_and_version(topic, server):
    assert f"http://127.0.0.1:{server.port}" in run("status")
    assert topic in [listed["name"] for listed in as_json("status")["topics"]]
    assert run("health").endswith(": ready\n")
    assert as_json("health") == {"alive": True, "status": "ready"}
    assert run("version").splitlines()[0] == f"client  {driftq.__version__}"
    assert as_json("version")["server"]["version"] == driftq.__version__


def test_a_server_that_is_not_ready_is_reported_at_once():
    class Recovering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ready = self.path == "/v1/healthz"
            body = b'{"status":"ok"}' if ready else b'{"error":"UNAVAILABLE","message":"recovering: not ready yet"}'
            self.send_response(200 if ready else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Recovering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        argv = ["health", "--url", f"http://127.0.0.1:{server.server_port}"]
        began_s = time.monotonic()
        result = CliRunner().invoke(main, argv)
        taken_s = time.monotonic() - began_s
        server.shutdown()
        thread.join()
    assert result.exit_code == Exit.IN_USE
    assert "recovering" in result.stdout
    assert taken_s < 12  # retries would take 15 s


def test_bench_measures_and_deletes_its_topic(broker):
    before = broker.topics.list()
    assert "produce, in bulk" in run("bench", "--time", "50ms")
    assert len(as_json("bench", "--time", "50ms", "--size", "1kB", "-p", "2")["results"]) == 3
    assert broker.topics.list() == before


def test_contexts_are_added_listed_used_and_removed(server, monkeypatch, tmp_path):
    monkeypatch.delenv("DRIFTQ_URL")
    url = f"http://127.0.0.1:{server.port}"
    assert run("context", "add", "here", url) == "here: in use\n"
    assert (
        as_json("context", "add", "there", "http://127.0.0.1:1", "--token", "-", text="secret\n")["status"] == "added"
    )
    file = tmp_path / "driftq" / "contexts.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "secret" in file.read_text()
    assert run("health").startswith(url)
    assert "secret" not in run("context", "list")
    assert [context["current"] for context in as_json("context", "list")] == [True, False]
    assert run("context", "use", "there") == "there: in use\n"
    assert "context there (the context in use)" in run("health", code=Exit.UNREACHABLE)
    assert run("health", "--context", "here").startswith(url)
    assert run("--context", "here", "health").startswith(url)
    assert as_json("context", "use", "here")["status"] == "in use"
    assert run("context", "remove", "there") == "there: removed\n"
    assert as_json("context", "remove", "here")["status"] == "removed"
    assert "there is no context 'here'" in run("context", "use", "here", code=Exit.NOTHING_THERE)
    assert "not both" in run("health", "--url", url, "--context", "x", code=Exit.USAGE)


def test_errors_name_what_to_do(topic):
    assert "Is the server running?" in run("topics", "list", "--url", "http://127.0.0.1:1", code=Exit.UNREACHABLE)
    near = topic[:-1]
    assert f"Did you mean {topic}" in run("topics", "show", near, code=Exit.NOTHING_THERE)
    assert json.loads(run("topics", "show", near, "--json", code=Exit.NOTHING_THERE))["error"] == "NOT_FOUND"
    assert "has no groups yet" in run("groups", "show", topic, "g", code=Exit.NOTHING_THERE)
    assert "is not a duration" in run("claim", topic, "g", "--lease", "30", code=Exit.USAGE)
    result = CliRunner().invoke(main, ["topic", "list"])
    assert result.exit_code == Exit.USAGE
    assert "Did you mean topics" in result.stderr


def test_workers_are_listed_and_asked_to_end(server):
    assert run("workers", "list") == ""
    worker = {"name": "app.send", "topic": "emails", "group": "g", "task": "send.v1", "concurrency": 4, "busy": 1}
    body = {"host": "h", "pid": 4242, "version": "1.0", "workers": [worker, {**worker, "task": ""}]}
    server.call("PUT", "/v1/workers/w1", body)
    try:
        row = run("workers", "list").splitlines()[1].split()
        assert (row[0], row[1], row[2], row[4]) == ("w1", "h", "4242", "2/8")
        assert row[-3:] == ["running", "send.v1,", "emails/g"]
        assert as_json("workers", "list")[0]["busy"] == 2
        assert "app.send" in run("workers", "show", "w1")
        assert as_json("workers", "show", "w1")["pid"] == 4242
        assert run("workers", "drain", "w1") == "w1: asked to drain\n"
        assert as_json("workers", "drain", "--all")[0]["command"] == "drain"
        assert run("workers", "stop", "--all") == "w1: asked to stop\n"
        assert as_json("workers", "stop", "w1")[0]["command"] == "stop"
        assert " stop " in run("workers", "list"), "what it was asked, until it says that it drains"
        assert "no such worker: w2" in run("workers", "stop", "w1", "w2", code=Exit.NOTHING_THERE)
        assert "no worker 'w2' runs" in run("workers", "show", "w2", code=Exit.NOTHING_THERE)
        assert "name the workers, or use --all" in run("workers", "drain", code=Exit.USAGE)
    finally:
        server.call("DELETE", "/v1/workers/w1")


def test_an_archive_is_listed_verified_and_restored(tmp_path):
    (tmp_path / "archive").mkdir()
    url = str(tmp_path / "archive")
    with running(str(tmp_path / "data"), f"archive.url={url}", "archive.interval_ms=20") as server:
        server.call("POST", "/v1/topics", {"name": "kept"})

        def is_shipped() -> bool:
            archive = server.call("GET", "/v1/readyz").json()["archive"]
            return archive["state"] == "shipping" and not archive["lag_bytes"]

        until_now(is_shipped, 30)
    assert run("archive", "list", url)
    assert as_json("archive", "list", url)
    assert run("archive", "verify", url)
    assert as_json("archive", "verify", url)
    assert "lsn" in run("restore", url, str(tmp_path / "first"))
    assert as_json("restore", url, str(tmp_path / "second"))["gap"] is None
    with running(str(tmp_path / "second")) as restored:
        assert restored.call("GET", "/v1/topics/kept").status == 200


def test_job_batches_are_listed_shown_awaited_and_cancelled(server, topic):
    for name in ("nightly", "hourly", "daily"):
        jobs = [{"topic": topic, "value": "v", "id": f"{name}.{number}"} for number in (1, 2)]
        server.call("POST", "/v1/job-batches", {"id": name, "jobs": jobs})
    assert [line.split()[0] for line in run("job-batches", "list").splitlines()] == ["ID", "daily", "hourly", "nightly"]
    assert as_json("job-batches", "list", "--limit", "1")[0]["counts"]["running"] == 2
    assert "nightly.2" in run("job-batches", "show", "nightly")
    assert [job["id"] for job in as_json("job-batches", "show", "nightly")["jobs"]] == ["nightly.1", "nightly.2"]
    assert "there is no job batch weekly" in run("job-batches", "show", "weekly", code=Exit.NOTHING_THERE)
    claimed = server.call("POST", "/v1/claim", {"topic": topic, "group": "workers", "owner": "w", "max": 2}).json()
    acks = [{**{key: message[key] for key in ("partition", "offset", "token")}, "result": message["offset"]}
            for message in claimed["messages"]]  # fmt: skip
    server.call("POST", "/v1/ack/batch", {"topic": topic, "group": "workers", "owner": "w", "messages": acks})
    assert "succeeded" in run("job-batches", "wait", "nightly")
    assert as_json("job-batches", "wait", "nightly")["counts"]["succeeded"] == 2
    assert len(run("job-batches", "results", "nightly").splitlines()) == 2
    assert [item["result"] for item in as_lines("job-batches", "results", "nightly")] == [0, 1]
    assert "hourly" in run("job-batches", "cancel", "hourly")
    assert as_json("job-batches", "cancel", "daily")


def test_the_audit_and_the_caller_of_a_server_without_identities():
    assert "audit.mode=on" in run("audit", code=Exit.NOTHING_THERE)
    assert as_json("audit", code=Exit.NOTHING_THERE)["error"] == "NOT_FOUND"
    assert "admin" in run("tokens", "whoami")
    assert as_json("tokens", "whoami")["grants"] == ["admin"]

"""`driftq produce` of many lines that ends early: at a bad line, or because the broker is gone. Nothing read is lost,
and resuming stores every line once."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import driftq
from driftq.cli import command, produce
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from tests.support.server import Server, running
from tests.support.wait import until_now

WAYS = [(), ("--packed",)]
GOOD = 1_234


def line(number: int) -> str:
    return json.dumps({"value": f"v{number}"}) + "\n"


def run(url: str, *argv: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["--url", url, *argv], input=text)


def stored(url: str, topic: str) -> list[str]:
    with driftq.connect(url) as broker:
        partitions = broker.topics.describe(topic).partitions
        return sorted(
            message.value
            for part in partitions
            for offset in range(0, part.end_offset, 1_000)
            for message in broker.topics.peek(topic, part.partition, offset=offset, limit=1_000)
        )


@pytest.mark.parametrize("way", WAYS, ids=["batches", "packed"])
@pytest.mark.parametrize("through", ["pipe", "file"])
def test_everything_before_a_bad_line_is_stored_and_from_line_resumes_there(server, broker, tmp_path, way, through):
    topic = f"bad-line-{through}{''.join(way)}"
    broker.topics.create(topic, partitions=2)
    after = "".join(line(number) for number in range(GOOD + 1, GOOD + 11))
    before = "".join(line(number) for number in range(GOOD))
    path = tmp_path / "lines.ndjson"

    def produce_lines(text: str, *more: str) -> Result:
        path.write_text(text)
        source = "-" if through == "pipe" else str(path)
        return run(server.url, "produce", topic, "--ndjson", source, *way, *more, text=text)

    ended = produce_lines(before + '{"valu": 1}\n' + after)
    assert ended.exit_code == Exit.BAD_INPUT
    assert ended.stdout == f"{topic}: {GOOD} produced\n"
    assert f"line {GOOD + 1} is not a message" in ended.stderr
    assert f"--from-line {GOOD + 1}" in ended.stderr
    assert stored(server.url, topic) == sorted(f"v{number}" for number in range(GOOD))

    resumed = produce_lines(before + line(GOOD) + after, "--from-line", str(GOOD + 1))
    assert (resumed.exit_code, resumed.stdout) == (0, f"{topic}: 11 produced\n")
    assert stored(server.url, topic) == sorted(f"v{number}" for number in range(GOOD + 11))


@pytest.mark.parametrize("way", WAYS, ids=["batches", "packed"])
def test_the_json_error_has_the_line_number(server, broker, way):
    topic = f"json-line{''.join(way)}"
    broker.topics.create(topic)
    ended = run(server.url, "--json", "produce", topic, "--ndjson", "-", *way, text=line(0) + "\n" + "no json\n")
    assert json.loads(ended.stdout) == {"topic": topic, "produced": 1, "failed": 0}
    error = json.loads(ended.stderr)
    assert (error["error"], error["line"]) == ("BAD_INPUT", 3)
    assert "--from-line 3" in error["hint"]


def test_a_line_with_a_key_is_stored_once_by_a_producer(server, broker):
    broker.topics.create("keyed-line")
    keyed = json.dumps({"value": "b", "envelope": {"idempotency_key": "k"}}) + "\n"
    ended = run(server.url, "produce", "keyed-line", "--packed", "--ndjson", "-", text=line(0) + keyed + keyed)
    assert ended.exit_code == 0, ended.stderr
    assert sorted(stored(server.url, "keyed-line")) == ["b", "v0"]


def test_from_line_belongs_to_one_file_of_lines(server, broker):
    broker.topics.create("few")
    assert run(server.url, "produce", "few", "a", "--from-line", "2").exit_code == Exit.USAGE
    assert run(server.url, "produce", "few", "--from-line", "2", text="a\nb\nc\n").stdout == "few: 2 produced\n"
    assert stored(server.url, "few") == ["b", "c"]


def test_a_full_partition_ends_the_sending_and_names_the_first_line_that_was_refused(server, broker):
    broker.topics.create("narrow", backlog_messages_max=500)
    broker.claim("narrow", "g")
    text = "".join(line(number) for number in range(1_500))
    ended = run(server.url, "produce", "narrow", "--ndjson", "-", text=text)
    assert ended.exit_code == Exit.REFUSED
    assert "--from-line 501" in ended.stderr
    assert stored(server.url, "narrow") == sorted(f"v{number}" for number in range(500))


@pytest.mark.parametrize("way", WAYS, ids=["batches", "packed"])
def test_lines_that_a_killed_broker_did_not_store_are_named(tmp_path, monkeypatch, way):
    monkeypatch.setattr(produce, "DELIVERY_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(command, "CALL_TIMEOUT_MS", 2_000)
    folder = str(tmp_path / "data")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    server = Server(folder)
    with driftq.connect(server.url) as broker:
        broker.topics.create("orders")
    results: list[Result] = []
    arguments = ("produce", "orders", "--ndjson", str(fifo), *way)
    sending = threading.Thread(target=lambda: results.append(run(server.url, *arguments)))
    sending.start()
    with fifo.open("w") as lines:
        lines.writelines(line(number) for number in range(500))
        lines.flush()
        until_now(lambda: len(stored(server.url, "orders")) == 500, 30)
        server.kill()
        lines.writelines(line(number) for number in range(500, 1_200))
    sending.join(60)
    (ended,) = results
    assert ended.exit_code == Exit.UNREACHABLE, ended.stderr
    assert "--from-line 501" in ended.stderr

    path = Path(tmp_path / "all.ndjson")
    path.write_text("".join(line(number) for number in range(1_200)))
    with running(folder) as again:
        resumed = run(again.url, "produce", "orders", "--ndjson", str(path), *way, "--from-line", "501")
        assert resumed.stdout == "orders: 700 produced\n"
        assert stored(again.url, "orders") == sorted(f"v{number}" for number in range(1_200))

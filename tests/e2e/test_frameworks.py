"""The examples for FastAPI and Django, as their own text says: with crashes in the middle."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import driftq
from tests.support.server import request, running
from tests.support.wait import until_now

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server():
    with running(None) as started:
        yield started


@contextmanager
def web(url: str, **env: str):
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", "0"]
    environment = {**os.environ, "DRIFTQ_URL": url, **env}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=EXAMPLES) as process:
        assert process.stderr is not None
        printed = ""
        while not (port := re.search(r"http://127\.0\.0\.1:(\d+)", printed)):
            line = process.stderr.readline()
            assert line, printed
            printed += line
        try:
            yield process, int(port[1])
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def test_a_background_task_of_fastapi_survives_a_kill_and_has_its_effect_once(server, tmp_path):
    receipts = tmp_path / "receipts.txt"
    with driftq.connect(server.url) as broker:
        with web(server.url, RECEIPTS=str(receipts), RENDER_S="600") as (process, port):
            assert request(port, "POST", "/orders?number=7").json() == {"job": "order-7"}
            assert request(port, "POST", "/orders?number=7").status == 202
            until_now(lambda: broker.jobs.find("receipts", "order-7")["state"] == "running", 20.0)
            process.kill()
            process.wait()
        assert not receipts.exists()
        with web(server.url, RECEIPTS=str(receipts), RENDER_S="0") as (_, port):
            until_now(lambda: request(port, "GET", "/orders/7").json() == {"state": "succeeded"}, 30.0)
        assert receipts.read_text() == "receipt 7\n"


def test_jobs_of_django_follow_the_commit_or_are_part_of_it(server, tmp_path):
    database = tmp_path / "shop.sqlite3"

    def manage(*arguments: str, code: int = 0, **env: str) -> str:
        command = [sys.executable, "manage.py", *arguments]
        environment = {**os.environ, "DRIFTQ_URL": server.url, "DATABASE": str(database), **env}
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=50, env=environment,
            cwd=EXAMPLES / "django_shop",
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    manage("migrate")
    manage("makemigrations", "--check")
    manage("order", "1")
    manage("order", "2", "--fail", code=1)
    manage("order", "3", "--outbox")
    manage("order", "4", "--outbox", "--fail", code=1)
    assert manage("run_workers", "--burst") == "charged 1\n"
    manage("relay_outbox", "--once", code=1, CRASH="before the delete")
    manage("relay_outbox", "--once")
    assert manage("run_workers", "--burst") == "charged 3\n"
    with sqlite3.connect(database) as connection:
        assert connection.execute("select number, is_paid from shop_order order by number").fetchall() == [
            (1, 1),
            (3, 1),
        ]
        assert connection.execute("select count(*) from outbox_outboxjob").fetchone() == (0,)
    connection.close()

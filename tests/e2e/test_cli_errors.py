"""Errors of commands, as text and as JSON: the reason, and what to do."""

from __future__ import annotations

import json
import pydoc
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from tests.support.server import Server, running

PROGRAM = [sys.executable, "-m", "driftq.cli.main"]


def run(server: Server, *argv: str) -> Result:
    return CliRunner().invoke(main, ["--url", server.url, *argv])


def test_an_append_to_a_missing_stream_names_the_stream(server):
    ended = run(server, "streams", "append", "runs/7", "x")
    assert ended.exit_code == Exit.NOTHING_THERE
    assert "there is no stream runs/7" in ended.stderr
    assert "driftq streams create runs/7" in ended.stderr


@pytest.mark.parametrize("words", [("topics", "show"), ("topics", "delete", "--yes"), ("dlq", "list")])
def test_the_hint_for_an_unknown_topic_fits_the_command(server, broker, words):
    broker.topics.create("orders")
    ended = run(server, *words, "ordres")
    assert ended.exit_code == Exit.NOTHING_THERE
    assert "Did you mean orders?" in ended.stderr
    assert "topics create" not in ended.stderr
    assert "driftq topics create ordres" in run(server, "produce", "ordres", "x").stderr


def test_a_deadline_that_has_passed_is_explained(server, broker):
    broker.topics.create("late")
    ended = run(server, "produce", "late", "x", "--deadline", "2020-01-01T00:00:00Z")
    assert "later --deadline" in ended.stderr


@pytest.mark.parametrize("argv", [("topics", "nope"), ("produce",), ("topics", "create", "t", "--partitions", "many")])
def test_a_wrong_command_line_is_refused_in_json_too(server, argv):
    ended = CliRunner().invoke(main, ["--json", *argv])
    assert ended.exit_code == Exit.USAGE
    error = json.loads(ended.stderr)
    assert error["error"] == "USAGE"
    assert error["message"]
    assert "Usage:" in CliRunner().invoke(main, argv).stderr


def test_a_repair_of_a_held_folder_is_refused_in_json_too(tmp_path):
    with running(str(tmp_path / "data")):
        ended = CliRunner().invoke(main, ["repair", "truncate", str(tmp_path / "data"), "--json"])
    assert ended.exit_code == Exit.IN_USE
    assert json.loads(ended.stderr)["error"] == "IN_USE"


def test_the_settings_of_a_pipeline_are_json_if_asked(server):
    pytest.importorskip("pyspark")
    shown = json.loads(run(server, "--json", "pipeline", "show", "archive", "--topic", "orders", "--table", "t").stdout)
    assert shown["source"]["topics"] == ["orders"]


def test_deletions_print_the_same_kind_of_reply(server, broker):
    broker.topics.create("gone")
    broker.stream("gone").create()
    assert json.loads(run(server, "--json", "topics", "delete", "gone", "-y").stdout) == {
        "topic": "gone",
        "status": "deleted",
    }
    assert json.loads(run(server, "--json", "streams", "delete", "gone", "-y").stdout) == {
        "path": "gone",
        "status": "deleted",
    }


def test_every_command_that_takes_a_data_folder_has_the_same_default(tmp_path):
    folders = set()
    for name, sub in (
        ("serve", None),
        ("demo", None),
        ("repair", "truncate"),
        ("inspect", "verify"),
        ("inspect", "stats"),
    ):
        command = main.get_command(None, name)
        command = command.get_command(None, sub) if sub else command
        (param,) = [option for option in command.params if option.name in ("data", "folder")]
        folders.add(param.default)
    assert folders == {"./data"}


def test_an_untrusted_certificate_is_reported_with_a_remedy(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    tls = (f"listen.tls_certificate={certificate}", f"listen.tls_key={key}")
    with running(str(tmp_path / "data"), *tls) as server:
        command = [*PROGRAM, "--url", f"https://127.0.0.1:{server.port}", "topics", "list"]
        refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert refused.returncode == Exit.UNREACHABLE
        assert "SSL_CERT_FILE" in refused.stderr
        assert "Is the server running" not in refused.stderr
        trusting = {"PATH": "", "HOME": str(tmp_path), "SSL_CERT_FILE": str(certificate)}
        trusted = subprocess.run(command, capture_output=True, text=True, env=trusting, check=False, timeout=60)
        assert trusted.returncode == 0, trusted.stderr


def test_a_client_names_the_remedy_for_a_url_with_the_wrong_scheme_or_an_untrusted_certificate(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make_certificate(certificate, key)
    with running(None, f"listen.tls_certificate={certificate}", f"listen.tls_key={key}") as server:
        with (
            driftq.connect(f"https://127.0.0.1:{server.port}") as broker,
            pytest.raises(driftq.errors.NotConnected, match="SSL_CERT_FILE"),
        ):
            broker.topics.list()
        ended = CliRunner().invoke(main, ["--url", f"http://127.0.0.1:{server.port}", "status"])
        assert ended.exit_code == Exit.UNREACHABLE
        assert "https://" in ended.stderr


def test_https_to_a_server_without_a_certificate_is_reported(server):
    url = f"https://127.0.0.1:{server.port}"
    with driftq.connect(url) as broker, pytest.raises(driftq.errors.NotConnected, match="http:// URL"):
        broker.topics.list()
    ended = CliRunner().invoke(main, ["--url", url, "status"])
    assert ended.exit_code == Exit.UNREACHABLE
    assert "starts with http://" in ended.stderr


def make_certificate(certificate: Path, key: Path) -> None:
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    ssl.create_default_context().load_verify_locations(certificate)


def test_help_of_a_command_shows_its_arguments(broker):
    text = pydoc.plain(pydoc.render_doc(broker.send))
    assert "idempotency_key" in text
    assert "it is on disk when this returns" in text
    assert driftq.RetryPolicy(max_attempts=3).max_attempts == 3
    assert driftq.Envelope(run_id="r").run_id == "r"

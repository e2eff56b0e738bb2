"""`driftq doctor` with a real broker: what it says of one that works, that is gone, and whose certificate expires."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from tests.support.certificates import Authority
from tests.support.server import running


def doctor(*arguments: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the results by the name of their check."""
    ended = CliRunner().invoke(main, ["doctor", "--json", *map(str, arguments)])
    document = json.loads(ended.stdout)
    assert document["ok"] == (ended.exit_code == Exit.OK)
    assert all(result["remedy"] or result["level"] == "ok" for result in document["checks"]), document
    return ended.exit_code, {result["check"]: result for result in document["checks"]}


def test_a_broker_that_works_has_no_problems(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(str(data)) as server:
        code, results = doctor("--data", data, "--url", server.url)
        text = CliRunner().invoke(main, ["doctor", "--data", str(data), "--url", server.url])
    assert code == Exit.OK, results
    assert f"in use by process {server.process.pid}" in results["data folder"]["message"]
    for check in ("broker", "broker version", "readiness", "broker clock", "TLS", "permissions", "fsync"):
        assert results[check]["level"] == "ok" or check == "fsync", results[check]
    assert "0 problems" in text.stdout.splitlines()[-1]


def test_a_broker_that_is_gone_or_in_memory_is_reported_with_a_remedy(tmp_path: Path) -> None:
    with running(None) as server:
        code, results = doctor("--data", tmp_path / "data", "--url", server.url)
        assert (code, results["broker version"]["level"]) == (Exit.OK, "warning")
        assert "--data" in results["broker version"]["remedy"]
        url = server.url
    code, results = doctor("--data", tmp_path / "data", "--url", url)
    assert (code, results["broker"]["level"]) == (Exit.REFUSED, "problem")
    assert "driftq serve" in results["broker"]["remedy"]


def test_certificates_are_checked_on_the_wire_and_in_their_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.server(days=5)
    files.key.chmod(0o644)
    settings = (f"listen.tls_certificate={files.certificate}", f"listen.tls_key={files.key}")
    sets = [part for setting in settings for part in ("--set", setting)]
    with running(None, *settings) as server:
        url = f"https://127.0.0.1:{server.port}"
        _, trusted = doctor("--data", tmp_path / "data", "--url", url, "--ca", authority.ca, *sets)
        code, untrusted = doctor("--data", tmp_path / "data", "--url", url)
    assert trusted["TLS"]["level"] == "warning"
    assert "TLSv1.3" in trusted["TLS"]["message"]
    assert trusted["TLS files"]["remedy"] == f"chmod 600 {files.key}"
    assert (code, untrusted["broker"]["level"]) == (Exit.REFUSED, "problem")
    assert "ca=" in untrusted["broker"]["remedy"]
    nowhere = ("--set", "listen.tls_certificate=nowhere.pem", "--set", "listen.tls_key=nowhere.key")
    code, broken = doctor("--data", tmp_path / "data", "--url", url, *nowhere)
    assert (code, broken["TLS files"]["level"]) == (Exit.REFUSED, "problem")


def test_too_few_file_descriptors_are_a_problem(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "driftq.cli.main", "doctor", "--json", "--data", str(tmp_path / "data")]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150)),
    )  # fmt: skip
    results = {result["check"]: result for result in json.loads(ended.stdout)["checks"]}
    assert (ended.returncode, results["file descriptors"]["level"]) == (Exit.REFUSED, "problem")
    assert "LimitNOFILE=" in results["file descriptors"]["remedy"]

"""The published conformance suite of the Durable Streams protocol, whole, against a real server on a real disk."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support import node
from tests.support.server import running

TEST_MS = 60_000
TESTS = 338  # tests in version 0.3.6: a smaller suite would prove less


@pytest.mark.timeout(900)
def test_every_test_of_the_published_suite_passes(tmp_path, profile):
    folder = node.packages(profile)
    shutil.copy(node.PINS / "suite.test.mjs", folder)
    report = tmp_path / "report.json"
    # A producer's batches are in flight on several connections and may overtake each other. How long one waits for its
    # predecessor is 100 ms by default; on a busy machine that is not enough to start a thread.
    with running(str(tmp_path / "data"), "streams.long_poll_ms=500", "streams.park_ms=2000") as server:
        url = f"http://127.0.0.1:{server.port}"
        # On a busy machine a test may need more than vitest's default of five seconds.
        patience = [f"--testTimeout={TEST_MS}", f"--hookTimeout={TEST_MS}"]
        command = ["npx", "vitest", "run", "suite.test.mjs", *patience, "--reporter=json", f"--outputFile={report}"]
        done = subprocess.run(
            command,
            cwd=folder,
            env=node.environment(DRIFTQ_URL=url),
            capture_output=True,
            text=True,
            timeout=880,
            check=False,
        )
        assert report.exists(), done.stderr[-4_000:]
    results = json.loads(report.read_text())
    failed = [
        f"{' > '.join(test['ancestorTitles'])} > {test['title']}: {(test['failureMessages'] or ['?'])[0][:300]}"
        for file in results["testResults"]
        for test in file["assertionResults"]
        if test["status"] != "passed"
    ]
    assert not failed, "\n".join(failed)
    assert results["numPassedTests"] == results["numTotalTests"] == TESTS

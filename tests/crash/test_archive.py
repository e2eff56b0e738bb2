"""A machine is lost under load, again and again: what the archive promises is there on the next one. And an archive
that is full or read-only."""

from __future__ import annotations

import pytest

from tests.crash.lost_machine import run_cycles
from tests.crash.mounts import run, tmpfs
from tests.support.cold_segments import fill
from tests.support.server import running
from tests.support.wait import until_now

CYCLES = {"quick": 1, "dev": 2, "ci": 3, "release": 50}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_was_promised_is_there_on_the_next_machine(tmp_path, profile, seed, mode):
    (tmp_path / "archive").mkdir()
    audit = run_cycles(tmp_path, str(tmp_path / "archive"), mode, CYCLES[profile], seed)
    assert audit.cycles == CYCLES[profile]
    assert len(audit.stored) > 20
    print(f"{mode}: {audit.cycles} machines lost, {len(audit.stored)} there, {audit.lost} lost within the lag")


def test_an_archive_that_is_full_or_read_only_is_reported_and_the_broker_serves(tmp_path, profile):
    with tmpfs(tmp_path / "archive", 1 << 20, profile) as archive:
        setting = f"archive.url={archive}"
        with running(str(tmp_path / "data"), setting, "archive.interval_ms=20") as server:

            def state():
                return server.call("GET", "/v1/readyz").json()["archive"]["state"]

            server.call("POST", "/v1/topics", {"name": "t"})
            for options, reason in (("size=16m", "has no room"), ("rw", "Read-only file system")):
                if options == "rw":
                    run("mount", "-o", "remount,ro", str(archive))
                fill(server, "t", 700)  # about 1.4 MB
                until_now(lambda: state() == "failing", 30)
                reply = server.call("GET", "/v1/readyz")
                assert reply.status == 200
                assert reason in reply.json()["warnings"][0]
                assert 'driftq_archive_up{state="failing"} 1' in server.call("GET", "/v1/metrics").body.decode()
                fill(server, "t", 20)
                run("mount", "-o", f"remount,{options}", str(archive))
                until_now(
                    lambda: state() == "shipping" and not server.call("GET", "/v1/readyz").json().get("warnings"), 30
                )
        for reason in ("has no room", "Read-only file system", "shipping"):
            assert any(reason in line for line in server.lines), reason

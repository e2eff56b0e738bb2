"""`driftq backup` over HTTP and from a folder, of a running and a stopped broker; what is refused, and what is left
when it fails."""

from __future__ import annotations

import http.client
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from driftq.storage.backup import HOLD, BackupFailed, FolderCopy, freeze
from driftq.storage.backup_stream import archive, unpack
from tests.support.server import Server, running
from tests.support.wait import until_now

VALUE = "x" * 2_000


def backup(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["backup", *map(str, arguments)])


def filled(broker: driftq.DriftQ, count: int = 200) -> None:
    broker.topics.create("orders", partitions=2)
    broker.send_many("orders", [f"{number} {VALUE}" for number in range(count)])
    broker.stream("log", content_type="text/plain").create()


def messages(url: str) -> list[str]:
    with driftq.connect(url) as broker:
        batches = broker.claims("orders", "audit", max=500, drain=True)
        return sorted(message.value.decode().partition(" ")[0] for batch in batches for message in batch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(str(tmp_path / "data")) as started:
        with driftq.connect(started.url) as broker:
            filled(broker)
        yield started


def test_a_running_broker_is_copied_over_http_and_the_copy_serves(server: Server, tmp_path: Path) -> None:
    ended = backup(tmp_path / "copy", "--url", server.url, "--json")
    assert ended.exit_code == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["topics"], document["streams"]) == (1, 1)
    assert document["lsn"] > 0
    expected = messages(server.url)
    with running(str(tmp_path / "copy")) as restored:
        assert not any("shorter than its size" in line for line in restored.lines)
        assert messages(restored.url) == expected == sorted(map(str, range(200)))
        with driftq.connect(restored.url) as broker:
            broker.send("orders", "after")  # the copy takes writes like any other folder
    assert not list((tmp_path / "data").glob(f"{HOLD}*"))


def test_a_folder_is_copied_while_its_broker_runs_and_after_it_stopped(server: Server, tmp_path: Path) -> None:
    text = backup(tmp_path / "running", "--data", tmp_path / "data")
    assert (text.exit_code, "verified; 1 topics, 1 streams" in text.stdout) == (0, True), text.stderr
    assert f"Restore: driftq serve --data {tmp_path / 'running'}" in text.stdout
    assert server.stop() == 0
    stopped = backup(tmp_path / "stopped", "--data", tmp_path / "data")
    assert stopped.exit_code == 0, stopped.stderr
    for copy in ("running", "stopped"):
        with running(str(tmp_path / copy)) as restored:
            assert len(messages(restored.url)) == 200


def test_the_archive_is_an_ordinary_tar_that_any_program_unpacks(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "unpacked"
    target.mkdir()
    archived = server.call("GET", "/v1/backup")
    assert (archived.status, archived.headers["content-type"]) == (200, "application/x-tar")
    subprocess.run(["tar", "x", "-C", str(target)], input=archived.body, check=True)
    with tarfile.open(fileobj=io.BytesIO(archived.body)) as members:
        assert members.getnames()[-1] == "FORMAT"
    with running(str(target)) as restored:
        assert len(messages(restored.url)) == 200


def test_what_cannot_be_copied_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with running(None) as server:
        memory = backup(tmp_path / "copy", "--url", server.url)
    assert (memory.exit_code, "keeps its data in memory" in memory.stderr) == (Exit.REFUSED, True)
    assert not (tmp_path / "copy").exists()
    missing = backup(tmp_path / "copy", "--data", tmp_path / "nowhere", "--json")
    assert (missing.exit_code, "no data folder at" in json.loads(missing.stderr)["message"]) == (Exit.IN_USE, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("mine")
    full = backup(tmp_path / "full", "--data", tmp_path)
    assert (full.exit_code, "is not empty" in full.stderr) == (Exit.CANNOT_CREATE, True)
    assert (tmp_path / "full" / "letter").read_text() == "mine"


def test_a_second_backup_at_the_same_time_is_refused(server: Server, tmp_path: Path) -> None:
    with driftq.connect(server.url) as broker:
        for _ in range(8):  # more than the buffers between the two hold
            broker.send_many("orders", [VALUE * 250 for _ in range(8)])
    first = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    first.request("GET", "/v1/backup")
    reply = first.getresponse()
    assert reply.status == 200
    second = server.call("GET", "/v1/backup")
    assert (second.status, second.json()["error"]) == (409, "BUSY")
    reply.read(1)
    first.close()  # a reader that leaves ends it
    until_now(lambda: server.call("GET", "/v1/backup").status == 200, 30)
    until_now(lambda: not list((tmp_path / "data").glob(f"{HOLD}*")), 30)


def test_a_broker_that_is_killed_in_the_middle_leaves_no_half_copy(server: Server, tmp_path: Path) -> None:
    with driftq.connect(server.url) as broker:
        for _ in range(8):
            broker.send_many("orders", [VALUE * 250 for _ in range(8)])
        pieces = broker.backup()
        copy = FolderCopy(str(tmp_path / "half"))
        reading = threading.Event()
        killed = threading.Event()

        def slowly() -> Iterator[bytes]:
            for piece in pieces:
                yield piece
                reading.set()
                assert killed.wait(30)

        errors: list[BaseException] = []

        def receive() -> None:
            try:
                unpack(slowly(), copy)
                copy.finish()
            except (BackupFailed, driftq.errors.OutcomeUnknown) as error:
                errors.append(error)

        receiver = threading.Thread(target=receive)
        receiver.start()
        assert reading.wait(30)
        server.kill()
        killed.set()
        receiver.join(60)
    assert errors, "a copy that is cut short is an error"
    assert not (tmp_path / "half" / "FORMAT").exists(), "and no data folder"
    assert list((tmp_path / "data").glob(f"{HOLD}*")), "the links of the killed process are still there"
    with running(str(tmp_path / "data")) as restarted:
        assert not list((tmp_path / "data").glob(f"{HOLD}*")), "until the next start"
        assert len(messages(restarted.url)) == 200 + 64


def test_a_damaged_original_gives_no_copy(tmp_path: Path) -> None:
    with running(str(tmp_path / "data")) as server, driftq.connect(server.url) as broker:
        filled(broker)
    (segment,) = (tmp_path / "data" / "journal").glob("*.journal")
    with segment.open("r+b") as file:
        file.seek(4_096 + 60)
        byte = file.read(1)
        file.seek(4_096 + 60)
        file.write(bytes([byte[0] ^ 1]))
    ended = backup(tmp_path / "copy", "--data", tmp_path / "data")
    assert (ended.exit_code, "driftq inspect verify" in ended.stderr) == (Exit.DAMAGED, True), ended.stderr
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "logs/1/../../x", "journal/link", "FORMAT/x"])
def test_an_archive_with_other_files_is_refused(tmp_path: Path, name: str) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as members:
        member = tarfile.TarInfo(name)
        member.size = 1
        members.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(BackupFailed, match="not a backup of driftq"):
        unpack(iter([data.getvalue()]), FolderCopy(str(tmp_path / "copy")))
    assert list(tmp_path.rglob("*")) == [tmp_path / "copy"]


def test_an_archive_that_is_cut_anywhere_makes_no_data_folder(server: Server, tmp_path: Path) -> None:
    frozen = freeze(str(tmp_path / "data"))
    whole = b"".join(archive(frozen, 0))
    frozen.close()
    for cut in range(0, len(whole) - 1_024, max(1, len(whole) // 40)):
        copy = FolderCopy(str(tmp_path / f"cut-{cut}"))

        def restore(copy: FolderCopy = copy, cut: int = cut) -> None:
            unpack(iter([whole[:cut]]), copy)
            copy.finish()

        with pytest.raises(BackupFailed):
            restore()
        assert not (tmp_path / f"cut-{cut}" / "FORMAT").exists()

"""`driftq inspect` and `driftq repair` on real folders: output, exit codes and effects."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from driftq.cli.exit_codes import Exit
from driftq.core.model import commands as c
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import StorageOptions
from driftq.storage.disk import OsDisk
from driftq.storage.journal_files import HEADER_BYTES
from driftq.wire import records
from tests.crash.broker_run import BrokerProcess
from tests.support.broker_fixture import held, packed, produce
from tests.support.server import running
from tests.support.wait import until
from tests.tidy.sources import SRC

OPTIONS = StorageOptions(journal_segment_bytes=16 << 10, log_segment_bytes=8 << 10, share_bytes=4_000)
SHARE = 2_000  # produces during one inspect command


def driftq(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "driftq.cli.main", *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(SRC.parent)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=60)


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file with its content and its time: reading must not change them."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def fill(folder: str) -> None:
    """A topic with a group that is behind, a stream, a checkpoint in the middle, and a clean stop."""
    engine = await Engine.open(folder, options=OPTIONS)
    await engine.submit(c.CreateTopic("orders", 2))
    await engine.submit(c.CreateStream("/s/a", "text/plain"))
    for number in range(240):
        await engine.submit(produce(f"order {number} {'.' * 60}", topic="orders", partition=number % 2, key=b"k"))
        if number % 20 == 0:
            await engine.submit(c.AppendStream("/s/a", "text/plain", *packed(f"chunk {number}\x1b[31m")))
            claimed = await engine.claim(c.Claim("orders", "workers", "w", 3))
            for delivery in claimed.deliveries[:1]:
                runs = held((delivery.first, delivery.first + 1), partition=delivery.partition, token=claimed.token)
                await engine.submit(c.Ack("orders", "workers", "w", runs))
        if number == 120:
            await until(lambda: has_snapshot(folder), 30)
    await engine.close()


async def has_snapshot(folder: str) -> bool:
    return any(name.endswith(".snapshot") for name in OsDisk().list(f"{folder}/snapshots"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "data"
    asyncio.run(fill(str(folder)))
    return folder


@pytest.fixture
def copy(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def journal(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.journal"))


def flip_last_frames(folder: Path) -> None:
    """Damage after the snapshot: state that only the journal has."""
    flip(journal(folder)[-1], HEADER_BYTES + 200)


# ---------------------------------------------------------------------------------------------------------------- dump


def test_dump_shows_names_offsets_and_escaped_previews_one_line_each(sound):
    done = driftq("inspect", "dump", sound)
    assert done.returncode == Exit.OK
    lines = done.stdout.splitlines()
    assert any("Appended" in line and "log=orders/1 offsets=3" in line and '"k: order 7 ' in line for line in lines)
    assert any("Settled" in line and "group=workers" in line for line in lines)
    assert any("log=/s/a" in line and "chunk 0\\x1b[31m" in line for line in lines)
    assert "\x1b" not in done.stdout


def test_dump_can_be_narrowed_by_lsn_log_topic_and_kind(sound):
    def shown(*more: object) -> list[dict]:
        done = driftq("inspect", "dump", sound, "--json", *more)
        assert done.returncode == Exit.OK, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    everything = shown()
    assert {fact["lsn"] for fact in shown("--from", 10, "--to", 12)} == {10, 11, 12}
    assert {fact["fact"] for fact in shown("--type", "Settled")} == {"Settled"}
    stream = shown("--topic", "/s/a")
    assert {fact["log"] for fact in stream} == {"/s/a"}
    assert shown("--log", stream[0]["log_id"]) == stream
    assert 0 < len(shown("--topic", "orders", "--type", "Appended")) == 240 < len(everything)


def test_dump_shows_a_snapshot_too(sound):
    done = driftq("inspect", "dump", sound, "--snapshot")
    assert "CursorState" in done.stdout
    assert "TopicState      topic=orders" in done.stdout


# -------------------------------------------------------------------------------------------------------- verify, stats


def test_a_sound_folder_is_found_sound_and_no_byte_of_it_changes(sound):
    before = fingerprint(sound)
    done = driftq("inspect", "verify", sound, "--json")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["ok"]
    assert verdict["compared_with_the_journal"] == verdict["snapshots"]
    assert verdict["frames"] == verdict["last_lsn"]
    for command in ("dump", "stats"):
        assert driftq("inspect", command, sound).returncode == Exit.OK
    assert fingerprint(sound) == before


def test_a_sound_folder_that_has_no_snapshot_yet_has_none_and_not_none_readable(tmp_path):
    async def create() -> None:
        engine = await Engine.open(str(tmp_path / "data"), options=OPTIONS)
        await engine.submit(c.CreateTopic("orders", 2))
        await engine.close()

    asyncio.run(create())
    done = driftq("inspect", "verify", tmp_path / "data")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "snapshots  none yet"


def test_stats_count_topics_groups_streams_and_facts(sound):
    statistics = json.loads(driftq("inspect", "stats", sound, "--json").stdout)
    orders = next(topic for topic in statistics["topics"] if topic["topic"] == "orders")
    assert [log["end"] for log in orders["partitions"]] == [120, 120]
    group = orders["groups"][0]
    assert 0 < group["lag"] < 240
    assert group["in_flight"] + group["resting"] > 0
    assert [stream["path"] for stream in statistics["streams"]] == ["/s/a"]
    assert statistics["journal"]["facts"]["Appended"] == 252
    assert statistics["snapshot"]["age_ms"] >= 0
    assert "lag" in driftq("inspect", "stats", sound).stdout


def test_a_missing_data_folder_has_its_own_exit_code(tmp_path):
    for command in (("inspect", "verify"), ("inspect", "stats"), ("inspect", "dump"), ("repair", "truncate")):
        assert driftq(*command, tmp_path).returncode == Exit.NOTHING_THERE
    assert driftq("inspect", "verify", tmp_path / "nowhere").returncode == Exit.USAGE


def test_damage_in_the_journal_is_named_with_what_it_affects(copy):
    flip_last_frames(copy)
    before = fingerprint(copy)
    done = driftq("inspect", "verify", copy)
    assert done.returncode == Exit.DAMAGED
    assert journal(copy)[-1].name in done.stdout
    assert "cut: every change of lsn" in done.stdout
    assert fingerprint(copy) == before


@pytest.mark.parametrize("place", ["shared", "1"])
def test_damage_in_a_log_file_is_named_by_topic_and_offsets(copy, place):
    path = sorted((copy / "logs" / place).glob("*.log"))[0]
    flip(path, 500)
    done = driftq("inspect", "verify", copy, "--json")
    assert done.returncode == Exit.DAMAGED
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["part"] == "log"
    assert ("orders/1, offsets 0" if place == "shared" else "orders/0, offsets ") in finding["affected"]
    assert path.name in finding["file"]


def test_damage_in_a_snapshot_is_found(copy):
    paths = list((copy / "snapshots").glob("*.snapshot"))
    for path in paths:
        flip(path, path.stat().st_size // 2)
    done = driftq("inspect", "verify", copy)
    assert done.returncode == Exit.DAMAGED
    assert done.stdout.splitlines()[0] == "snapshots  none readable"
    assert all(path.name in done.stdout for path in paths)


def test_a_snapshot_that_differs_from_the_journal_is_found(copy):
    from msgspec.structs import replace

    from driftq.core.model.facts import Fact
    from driftq.core.model.frames import decode, encode
    from driftq.core.model.snapshot_facts import CursorState
    from driftq.storage import snapshots
    from driftq.storage.data_folder import find_folder

    disk = OsDisk()
    folder = find_folder(disk, str(copy))
    assert folder is not None
    snapshot = snapshots.load_newest(disk, folder.snapshots, folder.store).snapshot
    assert snapshot is not None
    frames = list(snapshots.read_frames(disk, snapshot, folder.store))

    def altered(fact: Fact) -> Fact:
        return replace(fact, cursor=fact.cursor + 1) if isinstance(fact, CursorState) else fact

    changed = [encode([altered(fact) for fact in decode(frame)]) for frame in frames]
    os.unlink(snapshot.path)
    snapshots.save(disk, folder.snapshots, folder.store, snapshot.lsn, changed, chain_crc=snapshot.chain_crc)
    done = driftq("inspect", "verify", copy)
    assert done.returncode == Exit.DAMAGED
    assert "another state than the journal" in done.stdout


def test_a_torn_tail_is_no_damage(copy):
    path = journal(copy)[-1]
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    end += -end % 8
    data[end : end + 12] = b"DQJ\x01 torn..."
    path.write_bytes(data)
    assert driftq("inspect", "verify", copy).returncode == Exit.OK


def test_a_running_broker_can_be_inspected_and_its_moving_tail_is_no_damage(tmp_path):
    async def story() -> None:
        folder = str(tmp_path / "data")
        broker = await BrokerProcess.start(folder)
        await broker.ask("topic", topic="t", partitions=2)

        # A share for each command: if it always went on, a slow look would have ever more to look at.
        shares = asyncio.Semaphore(0)

        async def load() -> None:
            number = 0
            while await shares.acquire():
                values = [f"p:{number + index}" for index in range(5)]
                await broker.ask("produce", topic="t", partition=number % 2, values=values)
                number += 1

        loading = asyncio.ensure_future(load())
        loop = asyncio.get_running_loop()
        for command in ("verify", "dump", "stats", "verify", "verify"):
            for _ in range(SHARE):
                shares.release()
            done = await loop.run_in_executor(None, driftq, "inspect", command, folder)
            assert done.returncode == Exit.OK, done.stdout + done.stderr
            assert "Traceback" not in done.stderr
        for _ in range(SHARE):
            shares.release()
        salvage = ("repair", "salvage", folder, "--to", tmp_path / "out", "--json")
        done = await loop.run_in_executor(None, driftq, *salvage)
        assert done.returncode == Exit.OK, done.stdout + done.stderr
        assert {log["log"] for log in json.loads(done.stdout)["salvaged"]} == {"t/0", "t/1"}
        assert (await loop.run_in_executor(None, driftq, "repair", "truncate", folder)).returncode == Exit.IN_USE
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        assert await broker.stop() == 0

    asyncio.run(story())


# --------------------------------------------------------------------------------------------------------------- repair


async def records_of(folder: Path, topic: str) -> list[list[str]]:
    """What a broker serves of each partition, offset by offset."""
    engine = await Engine.open(str(folder), options=OPTIONS)
    partitions: list[list[str]] = []
    for log_id in engine.latest_state.topics[topic].log_ids:
        log = engine.latest_state.logs[log_id]
        batches = engine.read(log_id, log.start, log.end, 1 << 20)
        partitions.append([record.value.decode().rstrip(" .") for batch in batches for record in records.unpack(batch)])
    await engine.close()
    return partitions


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


EXPECTED = [[f"order {number}" for number in range(240) if number % 2 == partition] for partition in range(2)]


def test_a_sound_folder_is_not_truncated(copy):
    before = {name: content for name, content in fingerprint(copy).items() if name != "LOCK"}
    done = driftq("repair", "truncate", copy, "--accept-loss")
    assert done.returncode == Exit.OK
    assert "the journal is not damaged" in done.stdout
    assert {name: content for name, content in fingerprint(copy).items() if name != "LOCK"} == before


def test_truncate_shows_what_would_be_cut_until_the_loss_is_accepted_and_changes_nothing(copy):
    flip_last_frames(copy)
    before = {name: content for name, content in fingerprint(copy).items() if name != "LOCK"}
    done = driftq("repair", "truncate", copy)
    assert done.returncode == Exit.DAMAGED
    assert "cut: every change of lsn" in done.stdout
    assert "cut: orders/0, offsets" in done.stdout
    assert "--accept-loss" in done.stderr
    assert {name: content for name, content in fingerprint(copy).items() if name != "LOCK"} == before


@pytest.mark.parametrize("which", [-1, -2])
def test_truncate_leaves_the_prefix_and_keeps_what_is_cut(copy, which):
    flip(journal(copy)[which], HEADER_BYTES + 200)
    damaged = {path.name: path.read_bytes() for path in journal(copy)}
    done = driftq("repair", "truncate", copy, "--accept-loss")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    kept = {path.name: path.read_bytes() for path in (copy / "journal.damaged-1").glob("*.journal")}
    assert kept == damaged, "the damaged files are kept as they were"
    assert driftq("inspect", "verify", copy).returncode == Exit.OK
    for partition, values in enumerate(asyncio.run(records_of(copy, "orders"))):
        assert 0 < len(values) < 120
        cut = lines_of(copy / "journal.salvaged-1" / "topics" / f"orders-{partition}.ndjson")
        assert values + [line["value"].rstrip(" .") for line in cut] == EXPECTED[partition]
        assert [line["offset"] for line in cut] == list(range(len(values), 120))


def test_salvaged_records_can_be_produced_again(copy):
    flip_last_frames(copy)
    assert driftq("repair", "truncate", copy, "--accept-loss").returncode == Exit.OK
    with running(str(copy)) as server:
        for partition in range(2):
            path = copy / "journal.salvaged-1" / "topics" / f"orders-{partition}.ndjson"
            done = driftq("produce", "orders", "--ndjson", path, "--url", server.url)
            assert done.returncode == Exit.OK, done.stderr
        assert server.stop() == 0
    assert asyncio.run(records_of(copy, "orders")) == EXPECTED


def test_salvage_writes_every_readable_record_to_files_and_changes_nothing(copy, tmp_path):
    flip_last_frames(copy)
    flip(sorted((copy / "logs" / "1").glob("*.log"))[0], 500)
    before = fingerprint(copy)
    done = driftq("repair", "salvage", copy, "--to", tmp_path / "out", "--json")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert fingerprint(copy) == before
    salvaged = {log["log"]: log for log in json.loads(done.stdout)["salvaged"]}
    assert salvaged.keys() == {"orders/0", "orders/1", "/s/a"}
    assert salvaged["orders/1"]["records"] == 120
    assert 118 <= salvaged["orders/0"]["records"] <= 120, "at most the batch with the flipped bit is missing"
    stream = lines_of(tmp_path / "out" / "streams" / "%2Fs%2Fa.ndjson")
    assert [line["value"] for line in stream] == [f"chunk {number}\x1b[31m" for number in range(0, 240, 20)]
    first = lines_of(Path(salvaged["orders/1"]["file"]))[0]
    assert first.keys() == {"offset", "timestamp_ms", "key", "value", "envelope"}
    assert (first["offset"], first["key"], first["envelope"]) == (0, "k", {"partition_override": 1})
    again = driftq("repair", "salvage", copy, "--to", tmp_path / "out")
    assert again.returncode == Exit.USAGE
    assert "not an empty folder" in again.stderr


def test_a_damaged_snapshot_is_put_aside_when_the_journal_has_everything(copy):
    path = next((copy / "snapshots").glob("*.snapshot"))
    flip(path, path.stat().st_size // 2)
    done = driftq("repair", "truncate", copy, "--accept-loss")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert "nothing is lost" in done.stdout
    assert (copy / "snapshots" / f"{path.name}.damaged-1").exists()
    assert asyncio.run(records_of(copy, "orders")) == EXPECTED


def test_a_folder_without_a_readable_start_is_not_truncated_to_nothing(copy, tmp_path):
    for path in (copy / "snapshots").glob("*.snapshot"):
        flip(path, path.stat().st_size // 2)
    flip(journal(copy)[0], HEADER_BYTES + 40)
    before = {name: content for name, content in fingerprint(copy).items() if name != "LOCK"}
    done = driftq("repair", "truncate", copy, "--accept-loss")
    assert done.returncode == Exit.DAMAGED
    assert "driftq repair salvage" in done.stderr
    assert {name: content for name, content in fingerprint(copy).items() if name != "LOCK"} == before
    assert driftq("repair", "salvage", copy, "--to", tmp_path / "out").returncode == Exit.OK


def test_a_truncation_that_was_interrupted_between_its_renames_is_completed_by_the_next(copy):
    flip_last_frames(copy)
    assert driftq("repair", "truncate", copy, "--accept-loss").returncode == Exit.OK
    (copy / "journal").rename(copy / "journal.repaired")
    done = driftq("repair", "truncate", copy, "--accept-loss")
    assert done.returncode == Exit.OK, done.stdout + done.stderr
    assert driftq("inspect", "verify", copy).returncode == Exit.OK


def test_the_command_of_earlier_versions_names_its_replacement(copy):
    for arguments in ((copy,), (copy, "--accept-loss"), ("--accept-loss", copy)):
        done = driftq("repair", *arguments)
        assert done.returncode == Exit.USAGE
        assert "driftq repair truncate DIR --accept-loss" in done.stderr
        assert "driftq repair salvage DIR --to FOLDER" in done.stderr


def test_the_reference_lists_every_exit_code():
    text = (SRC.parents[1] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    for code in Exit:
        assert f"\n| {code.value} | " in text, code

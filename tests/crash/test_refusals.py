"""A folder that is in use, of a later version, damaged or torn: what a real process reports, and its exit code."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from driftq.cli.exit_codes import Exit
from driftq.storage.journal_files import HEADER_BYTES, checksum
from tests.crash.broker_run import BrokerProcess, Ended

OPTIONS = ("--journal-segment", str(16 << 10), "--chores", "60")  # no checkpoint: the journal has everything


async def filled(folder: str, count: int = 300) -> None:
    broker = await BrokerProcess.start(folder, *OPTIONS)
    await broker.ask("topic", topic="t", partitions=2)
    asks = (broker.ask("produce", topic="t", partition=n % 2, values=[f"p:{n}" + "." * 60]) for n in range(count))
    for ask in asks:
        assert (await ask)["reply"] == "Produced"
    assert await broker.stop() == 0


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A folder with several journal segments, cleanly stopped."""
    folder = tmp_path_factory.mktemp("sound") / "data"
    asyncio.run(filled(str(folder)))
    assert len(segments(folder)) > 4
    return folder


@pytest.fixture
def copy(sound, tmp_path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.journal"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("LOCK", "spare.tmp")
    }


def refused(folder: Path) -> Ended:
    """How a process that opens this folder ends. It must not change anything."""
    before = contents(folder)
    with pytest.raises(Ended) as ended:
        asyncio.run(BrokerProcess.start(str(folder), *OPTIONS))
    assert contents(folder) == before
    assert "Traceback" not in ended.value.errors
    return ended.value


def opened(folder: Path) -> tuple[dict, list[list]]:
    async def look() -> tuple[dict, list[list]]:
        broker = await BrokerProcess.start(str(folder), *OPTIONS)
        partitions = [
            (await broker.ask("read", topic="t", partition=partition, offset=0))["records"] for partition in range(2)
        ]
        assert await broker.stop() == 0
        return broker.ready, partitions

    return asyncio.run(look())


def test_a_sound_folder_opens_with_everything_in_it(copy):
    _, partitions = opened(copy)
    assert [len(records) for records in partitions] == [150, 150]


def test_a_second_process_ends_at_once_and_names_the_first(copy):
    async def both() -> tuple[int, Ended]:
        first = await BrokerProcess.start(str(copy))
        with pytest.raises(Ended) as ended:
            await BrokerProcess.start(str(copy))
        assert (await first.ask("stats"))["reply"] == "Stats", "the first process still works"
        assert await first.stop() == 0
        return first.ready["ready"], ended.value

    pid, ended = asyncio.run(both())
    assert ended.code == Exit.IN_USE
    assert f"process {pid}" in ended.errors


def test_a_folder_of_a_newer_format_is_refused_with_both_numbers(copy):
    text = (copy / "FORMAT").read_text().replace("format 2\n", "format 4\n")
    body = text[: text.index("crc32c ")].encode()
    (copy / "FORMAT").write_bytes(body + b"crc32c " + checksum(body).hex().encode() + b"\n")
    ended = refused(copy)
    assert ended.code == Exit.TOO_NEW
    assert "format 4" in ended.errors
    assert "up to format 3" in ended.errors


def test_a_missing_segment_is_refused_by_name(copy):
    path = segments(copy)[1]
    path.unlink()
    ended = refused(copy)
    assert ended.code == Exit.DAMAGED
    assert path.name in ended.errors
    assert "missing" in ended.errors


def test_swapped_segments_are_refused_by_name(copy):
    first, second = segments(copy)[1:3]
    first.rename(copy / "aside")
    second.rename(first)
    (copy / "aside").rename(second)
    ended = refused(copy)
    assert ended.code == Exit.DAMAGED
    assert first.name in ended.errors
    assert "under the name of" in ended.errors


@pytest.mark.parametrize("which", [1, -1], ids=["in the middle", "the last"])
def test_a_truncated_segment_is_refused_with_its_position(copy, which):
    path = segments(copy)[which]
    with path.open("r+b") as file:
        file.truncate(HEADER_BYTES + 1_000)
    ended = refused(copy)
    assert ended.code == Exit.DAMAGED
    assert path.name in ended.errors
    (position,) = map(int, re.findall(rf"{path.name}, byte (\d+)", ended.errors))
    assert HEADER_BYTES <= position <= HEADER_BYTES + 1_000, "the incomplete block"


@pytest.mark.parametrize("which", [0, 2, -1], ids=["the first", "in the middle", "the last"])
def test_a_flipped_byte_below_the_watermark_is_refused_with_its_position_its_range_and_a_remedy(copy, which):
    path = segments(copy)[which]
    flip(path, HEADER_BYTES + 300)
    ended = refused(copy)
    assert ended.code == Exit.DAMAGED
    for part in (path.name, "byte ", "lsn ", "driftq inspect verify", "driftq repair truncate", "every change"):
        assert part in ended.errors, part
    # In the first segment it may be the block that creates the topic, and then its name is not readable.
    assert which == 0 or "cut: t/" in ended.errors


def test_a_damaged_watermark_is_refused(copy):
    path = copy / "journal" / "watermark"
    path.write_bytes(bytes(len(path.read_bytes())))
    assert refused(copy).code == Exit.DAMAGED


def test_a_torn_tail_is_cut_kept_aside_and_reported(copy):
    path = segments(copy)[-1]
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    end += -end % 8
    data[end : end + 40] = b"DQJ\x01" + b"torn by a power cut, never synced..."
    path.write_bytes(data)
    ready, partitions = opened(copy)
    assert ready["torn_bytes"] > 0
    assert [len(records) for records in partitions] == [150, 150]
    assert list((copy / "journal").glob("torn-*.bytes"))
    assert opened(copy)[0]["torn_bytes"] == 0


def test_a_folder_that_cannot_be_created_has_its_own_exit_code(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Ended) as ended:
        asyncio.run(BrokerProcess.start(str(tmp_path / "file" / "data")))
    assert ended.value.code == Exit.CANNOT_CREATE

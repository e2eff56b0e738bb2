"""What is read from a checkpoint of Spark, and what it identifies."""

from __future__ import annotations

import json
from pathlib import Path

from driftq.spark.checkpoint import Checkpoint


def write(folder: Path, batch_id: int, *sources: object, done: bool = True) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(exist_ok=True)
    lines = ["v1", '{"batchTimestampMs":1}', *(json.dumps(source) for source in sources)]
    (folder / "offsets" / str(batch_id)).write_text("\n".join(lines))
    (folder / "offsets" / f".{batch_id}.crc").write_text("crc")
    if done:
        (folder / "commits" / str(batch_id)).write_text("v1\n{}")


def ends(first: int, second: int, **more: object) -> dict[str, object]:
    return {"version": 1, "offsets": {"t": {"0": first, "1": second}}, **more}


def test_content_is_identified_by_the_offsets_and_not_by_how_they_are_split(tmp_path: Path) -> None:
    write(tmp_path, 0, ends(8, 2, splits=1))
    write(tmp_path, 1, ends(8, 2, splits=4, seen={"t": {"0": [9, "x"]}}))
    write(tmp_path, 2, ends(5, 5))
    write(tmp_path, 3, ends(8, 2, made={"t": "later"}))
    write(tmp_path, 4, ends(8, 2), ends(8, 2))
    contents = [Checkpoint(str(tmp_path)).content(number) for number in range(5)]

    assert contents[0] == contents[1]
    assert len(set(contents)) == 4
    assert Checkpoint(tmp_path.as_uri()).content(0) == contents[0]


def test_what_does_not_identify_rows_or_cannot_be_read_has_no_content(tmp_path: Path) -> None:
    write(tmp_path, 0, {"logOffset": 3})
    write(tmp_path, 1, ends(8, 2), 7)
    write(tmp_path, 2)
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n{broken")

    assert [Checkpoint(str(tmp_path)).content(number) for number in range(5)] == [""] * 5
    assert Checkpoint("s3a://bucket/checkpoint").content(0) == Checkpoint("").content(0) == ""


def test_what_a_query_has_passed_is_between_the_first_batch_that_is_kept_and_the_last_that_is_done(
    tmp_path: Path,
) -> None:
    assert Checkpoint(str(tmp_path)).passed() == ({}, {})
    write(tmp_path, 9, ends(5, 5))
    write(tmp_path, 10, ends(8, 6))
    write(tmp_path, 11, ends(80, 60), done=False)

    checkpoint = Checkpoint(str(tmp_path))

    assert (checkpoint.batches(), checkpoint.done()) == ([9, 10, 11], 10)
    assert checkpoint.passed() == ({("t", 0): 5, ("t", 1): 5}, {("t", 0): 8, ("t", 1): 6})


def test_what_a_power_failure_has_torn_is_removed_with_all_that_follows(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, number, ends(number, number))
    (tmp_path / "metadata").write_text('{"id":"x"}')
    (tmp_path / "offsets" / "3").write_text("")
    (tmp_path / "commits" / "2").write_text("\0\0\0")
    checkpoint = Checkpoint(str(tmp_path))

    assert checkpoint.mend() == ["offsets/3", "offsets/4", "commits/2", "commits/3", "commits/4"]

    assert (checkpoint.batches(), checkpoint.done()) == ([0, 1, 2], 1)
    assert not list(tmp_path.rglob("*.crc"))
    assert (tmp_path / "metadata").read_text() == '{"id":"x"}'
    assert checkpoint.mend() == []


def test_a_torn_identity_of_the_query_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("")

    assert Checkpoint(str(tmp_path)).mend() == ["metadata"]

    assert json.loads((tmp_path / "metadata").read_text())["id"]
    assert Checkpoint(str(tmp_path / "nothing")).mend() == Checkpoint("s3a://bucket/checkpoint").mend() == []

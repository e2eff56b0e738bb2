"""The log of a table: every version is made once and is whole, also when a process ends at any step; delta-rs agrees.

Data files are not needed here: neither our log nor delta-rs opens them to list a version.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import deltalake
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftq.spark.tables import storage
from driftq.spark.tables.actions import (
    TableDamaged,
    add_action,
    encoded,
    first_actions,
    info_action,
    log_actions,
    remove_action,
    writer_actions,
)
from driftq.spark.tables.delta_log import DeltaLog
from driftq.spark.tables.ledger import DataFile, FileSpan, Ledger
from driftq.spark.tables.storage import LocalFiles

SCHEMA = '{"type":"struct","fields":[{"name":"offset","type":"long","nullable":true,"metadata":{}}]}'
NAMES = (f"{number}.parquet" for number in itertools.count())


def log_in(folder: Path, files: LocalFiles | None = None) -> DeltaLog:
    return DeltaLog(files or LocalFiles(folder), checkpoint_every=3)


def file_of(offset: int, *, topic: str = "a/b é") -> DataFile:
    spans = (FileSpan(topic, 3, offset, offset, 1, (1 << 64) - 1 - offset),)
    return DataFile(f"x %2F={next(NAMES)}", 1, 10, spans, {}, '{"numRecords":1}', f"attempt {offset}")


def append(log: DeltaLog, offset: int) -> bool:
    state = log.load()
    file = file_of(offset)
    actions = [info_action("WRITE", 1, {}), *writer_actions("w", offset, 7), *log_actions(state.ledger, [file])]
    if state.metadata is None:
        actions += first_actions(SCHEMA, (), "id", 1)
    return log.commit(state, [*actions, add_action(file, 1)])


def compact(log: DeltaLog) -> bool:
    state = log.load()
    old = list(state.ledger.files.values())
    new = DataFile(next(NAMES), len(old), 10, tuple(span for file in old for span in file.spans), attempt="c")
    return log.commit(state, [*(remove_action(file, 1) for file in old), add_action(new, 1, data_change=False)])


def offsets(ledger: Ledger) -> list[int]:
    return sorted(span.first for file in ledger.files.values() for span in file.spans)


def assert_delta_rs_agrees(folder: Path, ledger: Ledger) -> None:
    reader = deltalake.DeltaTable(folder)
    assert reader.version() == ledger.version
    assert {unquote(path) for path in reader.get_add_actions().column("path").to_pylist()} == set(ledger.files)
    assert reader.transaction_version("driftq/writer/w") == ledger.writers["w"]
    assert reader.transaction_version("driftq/log/a/b é/3") == ledger.ends["a/b é", 3]


def test_a_version_is_made_once_and_delta_rs_reads_the_same(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for offset in range(8):
        assert append(log, offset)
    assert compact(log)
    assert append(log, 8)

    known, fresh = log.load().ledger, log_in(tmp_path).load().ledger

    assert known == fresh
    assert (fresh.version, fresh.writers, fresh.contents) == (9, {"w": 8}, {"w": 7})
    assert fresh.ends == {("a/b é", 3): 8}
    assert offsets(fresh) == list(range(9))
    assert_delta_rs_agrees(tmp_path, fresh)
    assert deltalake.DeltaTable(tmp_path).history(1)[0]["engineInfo"].startswith("driftq/")


def test_of_two_writers_of_the_same_version_only_one_succeeds(tmp_path: Path) -> None:
    one, other = log_in(tmp_path), log_in(tmp_path)
    append(one, 0)
    state = other.load()
    append(one, 1)

    assert not other.commit(state, [info_action("WRITE", 1, {}), add_action(file_of(99), 1)])
    assert offsets(other.load().ledger) == [0, 1]
    assert append(other, 2)
    assert_delta_rs_agrees(tmp_path, one.load().ledger)


class Ended(BaseException):
    """The process ends here."""


def ending_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """End the process before the nth sync, link, rename or deletion. Returns how many steps there were."""
    steps = itertools.count()

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(steps) == step:
                raise Ended
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(storage, "sync", counted(storage.sync))
    monkeypatch.setattr("driftq.spark.tables.delta_log.sync", counted(storage.sync))
    monkeypatch.setattr(os, "link", counted(os.link))
    monkeypatch.setattr(Path, "replace", counted(Path.replace))
    return lambda: next(steps)


@pytest.mark.parametrize("act", [lambda log: append(log, 3), compact], ids=["append", "compact"])
def test_a_process_that_ends_at_any_step_leaves_a_whole_version_or_none(
    act: Callable[[DeltaLog], bool], tmp_path: Path
) -> None:
    """Version 3 also makes a checkpoint."""
    for step in itertools.count():
        folder = tmp_path / str(step)
        folder.mkdir()
        for offset in range(3):
            append(log_in(folder), offset)
        with pytest.MonkeyPatch.context() as patch:
            steps = ending_at(step, patch)
            try:
                act(log_in(folder))
            except Ended:
                pass
            else:
                assert steps() > 5, "the steps were not reached"
                break
        ledger = log_in(folder).load().ledger
        assert ledger.version in (2, 3)
        assert_delta_rs_agrees(folder, ledger)
        append(log_in(folder), 10)
        append(log_in(folder), 11)
        assert {10, 11} < set(offsets(log_in(folder).load().ledger))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["append", "compact", "checkpoint", "fresh"]), max_size=14))
def test_a_log_is_the_same_however_it_was_read(tmp_path_factory: pytest.TempPathFactory, acts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("log")
    log = log_in(folder)
    append(log, 0)
    for offset, act in enumerate(acts, start=1):
        if act == "append":
            append(log, offset)
        elif act == "compact":
            compact(log)
        elif act == "checkpoint":
            log.checkpoint()
        else:
            log = log_in(folder)

    assert log.load() == log_in(folder).load()
    assert_delta_rs_agrees(folder, log.load().ledger)
    assert not list((folder / "_driftq").glob("*")), "private copies are removed"


def test_old_versions_are_removed_and_the_table_stays(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for offset in range(3):
        append(log, offset)
    week_ago_s = time.time() - 7 * 86_400
    for path in (tmp_path / "_delta_log").iterdir():
        os.utime(path, (week_ago_s, week_ago_s))
    append(log, 3)

    assert "00000000000000000000.json" not in {path.name for path in (tmp_path / "_delta_log").iterdir()}
    assert offsets(log_in(tmp_path).load().ledger) == [0, 1, 2, 3]
    assert_delta_rs_agrees(tmp_path, log_in(tmp_path).load().ledger)


def test_files_that_no_version_of_the_last_day_names_are_found(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    append(log, 0)
    (name,) = log.load().ledger.files
    week_ago_s = time.time() - 7 * 86_400
    for path in (name, "orphan %2F.parquet", "young.parquet"):
        (tmp_path / path).write_bytes(b"x")
        if path != "young.parquet":
            os.utime(tmp_path / path, (week_ago_s, week_ago_s))

    assert log.unused_files() == ["orphan %2F.parquet"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("00000000000000000001.json", b'{"add"', "cannot be read"),
        ("00000000000000000001.json", encoded([{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}]), "3/7"),
        ("_last_checkpoint", b'{"version":0,"parts":2}', "of a kind that DriftQ does not read"),
        ("_last_checkpoint", b'{"version":0}', "there is no such checkpoint"),
    ],
)
def test_what_is_damaged_or_too_new_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    append(log_in(tmp_path), 0)
    (tmp_path / "_delta_log" / name).write_bytes(data)

    with pytest.raises(TableDamaged, match=message):
        log_in(tmp_path).load()


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    append(log_in(tmp_path), 0)
    append(log_in(tmp_path), 1)
    (tmp_path / "_delta_log" / "00000000000000000000.json").unlink()

    with pytest.raises(TableDamaged, match="neither the first one nor a checkpoint"):
        log_in(tmp_path).load()

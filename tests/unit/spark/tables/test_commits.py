"""The commit log with the process killed at every single step: a batch is in the table once or not at all.

Data files are a few bytes of text here; the commit log does not read them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftq.spark.tables.commits import CommitLog, TableBusy, TableDamaged, file_lock
from driftq.spark.tables.ledger import BatchKnown, Commit, DataFile, FileSpan, Ledger, check_batch

ATTEMPTS = itertools.count()  # every attempt has a folder of its own
SCHEMA = '{"type":"struct","fields":[]}'


class Killed(BaseException):
    """The process dies here."""


def killed_at(step: int) -> Callable[[str], None]:
    """Kills the process at the step with this number, counted from 0."""
    steps_left = [step]

    def fault_hook(_: str) -> None:
        if steps_left[0] == 0:
            raise Killed
        steps_left[0] -= 1

    return fault_hook


def log_in(folder: Path, fault_hook: Callable[[str], None] = lambda _: None) -> CommitLog:
    return CommitLog(folder, fault_hook=fault_hook, snapshot_every=3)


def append(log: CommitLog, batch_id: int) -> bool:
    """Commit a batch of two files. False if it is in the table already."""
    with log.writer_lock(1.0) as ledger:
        if isinstance(check_batch(ledger, "w", batch_id), BatchKnown):
            return False
        attempt = f"attempt-{next(ATTEMPTS)}"
        added = tuple(
            staged(log, attempt, f"topic=t/v{ledger.version + 1}-{n}.parquet", 2 * batch_id + n) for n in (0, 1)
        )
        log.commit(ledger, Commit(ledger.version + 1, "append", "w", batch_id, 0, attempt, SCHEMA, ("topic",), added))
        return True


def compact(log: CommitLog) -> None:
    with log.writer_lock(1.0) as ledger:
        old = tuple(ledger.files)
        spans = [span for file in ledger.files.values() for span in file.spans]
        attempt = f"compact-{next(ATTEMPTS)}"
        path = f"topic=t/v{ledger.version + 1}-c.parquet"
        staged(log, attempt, path, 0)
        text = "".join((log.root / name).read_text() for name in sorted(old))
        (log.staged(attempt) / path).write_text(text)
        added = (DataFile(path, len(spans), len(text), tuple(spans)),)
        version = ledger.version + 1
        log.commit(ledger, Commit(version, "compact", "", 0, 0, attempt, SCHEMA, ("topic",), added, old))


def staged(log: CommitLog, attempt: str, path: str, offset: int) -> DataFile:
    target = log.staged(attempt) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{offset} ")
    return DataFile(path, 1, 2, (FileSpan("t", 0, offset, offset, 1, offset),))


def visible_offsets(folder: Path) -> list[int]:
    """What a plain reader reads: every visible file, whatever the commits say."""
    texts = [path.read_text() for path in folder.rglob("*.parquet") if "_driftq" not in path.parts]
    return sorted(int(number) for text in texts for number in text.split())


def committed_offsets(ledger: Ledger) -> list[int]:
    return sorted(span.first for file in ledger.files.values() for span in file.spans)


def steps_of(act: Callable[[CommitLog], object], folder: Path) -> list[str]:
    """The names of all steps of an act."""
    names: list[str] = []
    act(log_in(folder, names.append))
    return names


def prepared(folder: Path) -> CommitLog:
    log = log_in(folder)
    for batch_id in (0, 1):
        append(log, batch_id)
    return log


ACTS: dict[str, Callable[[CommitLog], object]] = {"append": lambda log: append(log, 2), "compact": compact}


@pytest.mark.parametrize("act", ACTS)
def test_a_process_that_ends_at_any_step_leaves_all_of_a_version_or_nothing(act: str, tmp_path: Path) -> None:
    prepared(tmp_path / "model")
    steps = steps_of(ACTS[act], tmp_path / "model")
    assert {"stage.sync", "commit.link", "place.move", "snapshot.rename", "snapshot.trim"} <= set(steps)

    for step in range(len(steps)):
        folder = tmp_path / f"{act}-{step}"
        prepared(folder)
        with pytest.raises(Killed):
            ACTS[act](log_in(folder, killed_at(step)))
        between = visible_offsets(folder)
        assert len(between) == len(set(between)), f"a plain reader sees a row twice after {steps[step]}"

        after = log_in(folder).load()

        assert after.version in (1, 2), steps[step]
        assert visible_offsets(folder) == committed_offsets(after), steps[step]
        complete = list(range(6 if act == "append" and after.version == 2 else 4))
        assert committed_offsets(after) == complete, steps[step]


@pytest.mark.parametrize("act", ACTS)
def test_the_moment_of_the_commit_is_the_creation_of_its_file(act: str, tmp_path: Path) -> None:
    prepared(tmp_path / "model")
    steps = steps_of(ACTS[act], tmp_path / "model")

    for step, name in enumerate(steps):
        folder = tmp_path / f"{act}-{step}"
        prepared(folder)
        with pytest.raises(Killed):
            ACTS[act](log_in(folder, killed_at(step)))

        assert (log_in(folder).load().version == 2) == (step > steps.index("commit.link")), name


def test_a_batch_that_is_retried_after_a_crash_is_in_the_table_once(tmp_path: Path) -> None:
    prepared(tmp_path / "model")
    for step in range(len(steps_of(ACTS["append"], tmp_path / "model"))):
        folder = tmp_path / str(step)
        prepared(folder)
        with pytest.raises(Killed):
            append(log_in(folder, killed_at(step)), 2)

        append(log_in(folder), 2)

        assert visible_offsets(folder) == list(range(6))
        assert list((folder / "_driftq" / "staging").iterdir()) == []


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(["append", "compact", "again"]), st.integers(0, 40)), max_size=12))
def test_after_any_batches_compactions_and_crashes_each_batch_is_in_the_table_once(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    batch_id = 0
    for act, step in history:
        log = log_in(folder, killed_at(step))
        try:
            if act == "compact" and batch_id:
                compact(log)
            elif act == "append" or batch_id == 0:
                append(log, batch_id)
            else:
                append(log, batch_id - 1)
        except Killed:
            pass
        ledger = log_in(folder).load()
        batch_id = ledger.writers.get("w", -1) + 1
        assert visible_offsets(folder) == committed_offsets(ledger) == list(range(2 * batch_id))
        assert [held.last for held in ledger.held.get("t", {}).get("0", [])] == ([2 * batch_id - 1] if batch_id else [])


def test_only_one_of_two_writers_gets_a_version(tmp_path: Path) -> None:
    """Even if locks do not work: here the second writer ignores them."""
    log = prepared(tmp_path)
    with log.writer_lock(1.0) as ledger:
        added = (staged(log, "mine", "topic=t/mine.parquet", 4),)
        commit = Commit(2, "append", "w", 2, 0, "mine", SCHEMA, ("topic",), added)
        other = log_in(tmp_path)
        (tmp_path / "_driftq" / "staging" / "theirs").mkdir()
        other.commit(ledger, Commit(2, "append", "x", 0, 0, "theirs", SCHEMA, ("topic",)))

        with pytest.raises(TableBusy, match="version 2"):
            log.commit(ledger, commit)

    assert log_in(tmp_path).load().writers == {"w": 1, "x": 0}


def test_a_second_writer_waits_for_the_lock(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    with log.writer_lock(1.0), pytest.raises(TableBusy, match="turn"), log_in(tmp_path).writer_lock(0.0):
        pass


def test_a_shared_lock_only_excludes_the_exclusive_one(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with file_lock(lock, shared=True), file_lock(lock, shared=True), pytest.raises(TableBusy), file_lock(lock):
        pass


def test_a_missing_version_is_damage(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    (log.commits / f"{0:020d}.json").unlink()

    with pytest.raises(TableDamaged, match="version 0 is missing"):
        log.load()


def test_a_commit_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    (log.commits / f"{1:020d}.json").write_text("{")

    with pytest.raises(TableDamaged, match=r"0001\.json"):
        log.load()


def test_a_commit_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    log = prepared(tmp_path)
    path = log.commits / f"{1:020d}.json"
    path.write_text(path.read_text().replace('"format":1', '"format":2'))

    with pytest.raises(TableDamaged, match="format 2"):
        log.load()


def test_commits_that_are_in_a_snapshot_are_deleted(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for batch_id in range(7):
        append(log, batch_id)

    assert sorted(path.stem for path in log.commits.iterdir()) == [f"{number:020d}" for number in (5, 6)]
    assert committed_offsets(log_in(tmp_path).load()) == list(range(14))

"""An audit is exact when the table is, and finds every way in which it is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import driftq
from driftq.spark.pipelines.archive import dated, start_archive
from driftq.spark.pipelines.audit import PeriodicAudit, audit, audit_archive, run_audit
from driftq.spark.pipelines.audit_report import AuditReport
from driftq.spark.pipelines.query_monitor import QueryFailed, Stop
from driftq.spark.pipelines.settings import Configuration, from_tree
from driftq.spark.tables import DeltaTable
from driftq.spark.tables.delta_log import DeltaLog
from tests.support.server import Server, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from driftq.client.api import DriftQ

ROWS = 50


class Archived(NamedTuple):
    """A topic with two partitions of 50, and its table."""

    server: Server
    broker: DriftQ
    table: Path


@pytest.fixture(scope="module")
def archived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archived]:
    folder = tmp_path_factory.mktemp("audit")
    with running(str(folder / "broker")) as server, driftq.connect(server.url) as broker:
        broker.topics.create("orders", partitions=2)
        for partition in (0, 1):
            with broker.producer("orders") as producer:
                for number in range(ROWS):
                    producer.send(f"value {number}", key=f"k{number}", partition=partition)
        rows = spark.read.format("driftq").options(url=server.url, subscribe="orders").load()
        DeltaTable(spark, str(folder / "table"), ("topic", "date")).commit("w", 0, dated(rows))
        yield Archived(server, broker, folder / "table")


def first_file(table: Path) -> Path:
    return min(table.glob("topic=*/*/*.parquet"))


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def act(table: Path) -> None:
        path = first_file(table)
        pq.write_table(change(pq.ParquetFile(path).read().sort_by("offset")), path)

    return act


def without_a_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 20), rows.slice(21)])


def with_a_row_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(20, 1)])


def with_one_row_in_place_of_another(rows: pa.Table) -> pa.Table:
    """The count stays the same."""
    return pa.concat_tables([rows.slice(0, 20), rows.slice(19, 1), rows.slice(21)])


def with_another_byte(rows: pa.Table) -> pa.Table:
    values = rows.column("value").to_pylist()
    values[20] = values[20][:-1] + b"!"
    return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


def with_two_values_exchanged(rows: pa.Table) -> pa.Table:
    """The same rows, counted and hashed without their offsets."""
    for name in ("key", "value"):
        values = rows.column(name).to_pylist()
        values[20], values[21] = values[21], values[20]
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, pa.binary()))
    return rows


def with_an_invented_row(rows: pa.Table) -> pa.Table:
    more = rows.slice(ROWS - 1, 1)
    return pa.concat_tables([rows, more.set_column(more.schema.get_field_index("offset"), "offset", [[ROWS]])])


TAMPERED: dict[str, tuple[Callable[[Path], None], dict[str, int]]] = {
    "a row is deleted": (rewritten(without_a_row), {"missing": 1}),
    "a row is doubled": (rewritten(with_a_row_twice), {"repeated": 1}),
    "a row takes another's place": (rewritten(with_one_row_in_place_of_another), {"missing": 1, "repeated": 1}),
    "a byte is changed": (rewritten(with_another_byte), {"changed": 1}),
    "two values change places": (rewritten(with_two_values_exchanged), {"changed": 2}),
    "a row is invented": (rewritten(with_an_invented_row), {"extra": 1}),
}


def audited(spark: SparkSession, archived: Archived, table: Path, mismatches: int = 20) -> AuditReport:
    tables = [DeltaTable(spark, str(table))]
    return audit(spark, tables, archived.broker, {"url": archived.server.url}, mismatches=mismatches)


def test_a_table_that_was_left_alone_is_exact(spark: SparkSession, archived: Archived) -> None:
    lines: list[str] = []
    configuration = from_tree(
        {
            "pipeline": {"name": "audit"},
            "source": {"url": archived.server.url, "topics": ["orders"]},
            "sink": {"table": str(archived.table)},
        }
    )

    assert run_audit(spark, configuration, Stop(), lines.append) == 0

    assert lines[0].startswith("orders/0: offsets 0–49, 50 rows, checksum ")
    assert lines[-1] == "verdict: exact. 100 rows of 2 partitions are what the log holds, each once"


@pytest.mark.parametrize("what", TAMPERED)
def test_a_table_that_was_changed_differs(spark: SparkSession, archived: Archived, tmp_path: Path, what: str) -> None:
    act, counts = TAMPERED[what]
    table = tmp_path / "table"
    shutil.copytree(archived.table, table)
    act(table)

    report = audited(spark, archived, table, mismatches=2)

    assert report.code == 1, what
    assert dict(report.counts) == counts, report.lines()
    assert report.problems, "the table's own commits notice it too"
    assert len(report.mismatches) == min(2, sum(counts.values()))
    assert [partition.differs for partition in report.partitions].count(True) == 1
    assert report.lines()[-1] == "verdict: the table DIFFERS from the log"


def test_a_file_that_was_not_committed_is_not_part_of_the_table(
    spark: SparkSession, archived: Archived, tmp_path: Path
) -> None:
    """Such files are left by tasks that failed or ran twice."""
    table = tmp_path / "table"
    shutil.copytree(archived.table, table)
    path = first_file(table)
    shutil.copy(path, path.with_name("copy.parquet"))

    assert audited(spark, archived, table).code == 0


def test_a_version_that_delta_rs_reads_otherwise_is_a_problem(
    spark: SparkSession, archived: Archived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaLog, "paths_by_another_reader", lambda *_: set())

    report = audited(spark, archived, archived.table)

    assert report.code == 1
    assert report.problems == ("delta-rs reads other files in version 0 of the log",)


def test_a_file_that_is_gone_is_named(spark: SparkSession, archived: Archived, tmp_path: Path) -> None:
    table = tmp_path / "table"
    shutil.copytree(archived.table, table)
    deleted = first_file(table)
    deleted.unlink()

    report = audited(spark, archived, table)

    assert report.code == 1
    assert any(deleted.name in problem and "is missing" in problem for problem in report.problems)


def archive_of(archived: Archived, folder: Path, name: str = "audit", **archive: str) -> Configuration:
    return from_tree(
        {
            "pipeline": {"name": name, "once": True, "checkpoint": str(folder / "checkpoint")},
            "source": {"url": archived.server.url, "topics": ["orders"]},
            "sink": {"table": str(folder / "table")},
            **({"archive": archive} if archive else {}),
        }
    )


def test_rows_that_the_query_has_passed_and_the_table_lacks_are_missing(
    spark: SparkSession, archived: Archived, tmp_path: Path
) -> None:
    """The table is put back from a copy, and its checkpoint is not."""
    start_archive(spark, archive_of(archived, tmp_path, "archive")).awaitTermination()
    assert run_audit(spark, archive_of(archived, tmp_path), Stop(), str) == 0
    shutil.rmtree(tmp_path / "table")
    rows = spark.read.format("driftq").options(url=archived.server.url, subscribe="orders").load()
    DeltaTable(spark, str(tmp_path / "table"), ("topic", "date")).commit("w", 0, dated(rows.where("offset < 45")))

    report = audit_archive(spark, archive_of(archived, tmp_path))

    assert (report.code, dict(report.counts)) == (1, {"missing": 10}), report.lines()
    assert [log.ahead for log in report.partitions] == [0, 0]
    shutil.rmtree(tmp_path / "checkpoint")
    alone = audit_archive(spark, archive_of(archived, tmp_path))
    assert (alone.code, [log.ahead for log in alone.partitions]) == (0, [5, 5])


def test_an_archive_is_audited_at_intervals_and_ends_when_it_differs(
    spark: SparkSession, archived: Archived, tmp_path: Path
) -> None:
    now_s, lines = [100.0], list[str]()
    shutil.copytree(archived.table, tmp_path / "table")
    configuration = archive_of(archived, tmp_path, "archive", audit_every="10m")
    audits = PeriodicAudit(spark, configuration, lines.append, lambda: now_s[0])
    for second in (101.0, 699.0, 700.0, 701.0):
        now_s[0] = second
        audits.poll()
    assert len(lines) == 1
    assert lines[0].startswith("archive-orders: audit: verdict: exact. 100 rows")

    rewritten(without_a_row)(tmp_path / "table")
    now_s[0] = 1_300.0
    with pytest.raises(QueryFailed, match=r"the audit found that .*table differs from the log"):
        audits.poll()

    assert any("missing   orders/" in line for line in lines)
    never = PeriodicAudit(spark, archive_of(archived, tmp_path, "archive"), lines.append, lambda: now_s[0])
    now_s[0] = 1e9
    never.poll()


def test_a_table_with_no_rows_proves_nothing(spark: SparkSession, archived: Archived, tmp_path: Path) -> None:
    report = audited(spark, archived, tmp_path / "nothing")

    assert report.code == 2
    assert report.doubts == ("the table holds no rows",)


def test_if_the_log_is_gone_the_table_is_compared_with_its_commits(
    spark: SparkSession, archived: Archived, tmp_path: Path
) -> None:
    """Audited against a broker that has never heard of the topic."""
    table = tmp_path / "table"
    shutil.copytree(archived.table, table)
    with running(None) as other, driftq.connect(other.url) as broker:
        tables = [DeltaTable(spark, str(table))]
        whole = audit(spark, tables, broker, {"url": other.url})
        rewritten(with_another_byte)(table)
        changed = audit(spark, tables, broker, {"url": other.url})

    assert whole.code == 2
    assert "offsets 0–49 are no longer in the log" in whole.lines()[0]
    assert changed.code == 1
    assert any("some of them differ" in problem for problem in changed.problems)

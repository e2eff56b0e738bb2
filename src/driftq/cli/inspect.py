"""`driftq inspect`: read a data folder, also of a running broker. Formats what `driftq.repair` reports."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from driftq.cli.command import as_json_option
from driftq.cli.exit_codes import Exit, cut_by_truncate, exit_on_error
from driftq.cli.serve import DEFAULT_DATA

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.repair.names import Names
    from driftq.repair.verify import Finding, VerifyReport

PROGRESS_BYTES = 8 << 20  # a smaller folder is read before a progress bar would be seen


@click.group()
def command() -> None:
    """Read a data folder without changing it. A broker may be running on it."""


FOLDER = click.argument("folder", metavar="[DIR]", default=DEFAULT_DATA, type=click.Path(exists=True, file_okay=False))


@command.command()
@FOLDER
@click.option("--from", "from_lsn", type=click.IntRange(1), default=1, metavar="LSN", help="Start at this lsn.")
@click.option("--to", "to_lsn", type=click.IntRange(1), metavar="LSN", help="End with this lsn.")
@click.option("--log", "log_id", type=int, metavar="N", help="Only facts about this log.")
@click.option("--topic", metavar="NAME", help="Only facts about this topic or stream path.")
@click.option("--type", "kind", metavar="FACT", help="Only facts of this kind, e.g. Appended.")
@click.option("--snapshot", is_flag=True, help="The newest readable snapshot instead of the journal.")
@as_json_option
def dump(
    folder: str,
    from_lsn: int,
    to_lsn: int | None,
    log_id: int | None,
    topic: str | None,
    kind: str | None,
    snapshot: bool,
    as_json: bool,
) -> None:
    """Print every fact of the journal, one line each.

    Example: driftq inspect dump ./data --topic orders --from 1000 --to 1100
    """
    from driftq.cli.fact_lines import json_line, line
    from driftq.repair.names import Names, logs_of

    names = Names()
    with exit_on_error():
        source = _snapshot_facts(folder, names) if snapshot else _journal_facts(folder, names, from_lsn, to_lsn)
        for lsn, fact in source:
            if isinstance(fact, str):
                click.echo(f"-- {fact}", err=True)
                continue
            if kind is not None and type(fact).__name__ != kind:
                continue
            logs = logs_of(fact)
            if log_id is not None and log_id not in logs:
                continue
            if topic is not None and topic != getattr(fact, "topic", None) and topic not in map(names.topic, logs):
                continue
            click.echo((json_line if as_json else line)(lsn, fact, names))


def _journal_facts(folder: str, names: Names, from_lsn: int, to_lsn: int | None) -> Iterator[tuple[int, Fact | str]]:
    from driftq.core.model.frames import decode
    from driftq.repair.folder_reader import Damage, read_journal, require_folder, snapshot_facts
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    data = require_folder(disk, folder)
    for fact in snapshot_facts(disk, data):
        names.note(fact)
    for item in read_journal(disk, data):
        if isinstance(item, Damage):
            yield item.first_lsn, f"damage: {item.file}, byte {item.position}: {item.reason}"
            continue
        if to_lsn is not None and item.lsn > to_lsn:
            return
        for fact in decode(item.frame):
            names.note(fact)
            if item.lsn >= from_lsn:
                yield item.lsn, fact


def _snapshot_facts(folder: str, names: Names) -> Iterator[tuple[int, Fact | str]]:
    from driftq.core.model.frames import decode
    from driftq.repair.folder_reader import require_folder
    from driftq.storage import snapshots
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    data = require_folder(disk, folder)
    newest = snapshots.load_newest(disk, data.snapshots, data.store)
    for error in newest.damaged:
        yield 0, f"damage: {error}"
    if newest.snapshot is None:
        yield 0, "there is no snapshot"
        return
    for frame in snapshots.read_frames(disk, newest.snapshot, data.store):
        for fact in decode(frame):
            names.note(fact)
            yield newest.snapshot.lsn, fact


@command.command(short_help="Check every byte, and show what is damaged.")
@FOLDER
@as_json_option
def verify(folder: str, as_json: bool) -> None:
    """Check every byte that matters, and show what is damaged and what it affects. Ends with 74 if anything is damaged.

    Example: driftq inspect verify ./data
    """
    from driftq.repair.names import Names
    from driftq.repair.verify import verify
    from driftq.storage.disk import OsDisk

    with exit_on_error():
        with _progress(folder, "verifying") as on_bytes:
            report = verify(OsDisk(), folder, on_bytes)
        cut = cut_by_truncate(folder) if any(finding.part != "log" for finding in report.findings) else []
        names = Names.of(report.broker.state)
        if as_json:
            click.echo(json.dumps(_report_object(report, cut, names)))
        else:
            click.echo("\n".join(_report_lines(report, cut, names)))
    sys.exit(Exit.DAMAGED if report.findings else Exit.OK)


def _report_object(report: VerifyReport, cut: list[str], names: Names) -> dict[str, Any]:
    return {
        "ok": not report.findings,
        "snapshots": report.snapshots,
        "compared_with_the_journal": report.compared,
        "first_lsn": report.first_lsn,
        "last_lsn": report.last_lsn,
        "frames": report.frames,
        "logs": report.logs,
        "records": report.records,
        "findings": [
            {
                "part": finding.part,
                "file": finding.file,
                "position": finding.position,
                "reason": finding.reason,
                "first_lsn": finding.first_lsn or None,
                "last_lsn": finding.last_lsn or None,
                "affected": _affected_offsets(finding, names),
            }
            for finding in report.findings
        ],
        "lost_if_repaired": cut,
    }


def _report_lines(report: VerifyReport, cut: list[str], names: Names) -> Iterator[str]:
    readable = f"{', '.join(f'lsn {lsn}' for lsn in report.snapshots)} readable" if report.snapshots else "none yet"
    if not report.snapshots and any(finding.part == "snapshot" for finding in report.findings):
        readable = "none readable"
    compared = f", {len(report.compared)} equal to the journal's fold" if report.compared else ""
    yield f"snapshots  {readable}{compared}"
    yield f"journal    lsn {report.first_lsn} to {report.last_lsn}, {report.frames} frames folded"
    yield f"logs       {report.logs}, with {report.records} records that only their files hold"
    if not report.findings:
        yield "ok         nothing is damaged"
        return
    for finding in report.findings:
        lsns = f" (lsn {finding.first_lsn} to {finding.last_lsn or 'the end'})" if finding.first_lsn else ""
        damage = f"{finding.file}, byte {finding.position}: {finding.reason}"
        yield f"DAMAGED    {damage}{lsns}{_affected_offsets(finding, names)}"
    if any(finding.part == "log" for finding in report.findings):
        yield "Damaged log files do not stop a broker: reads of these offsets fail, everything else is served."
    if any(finding.part != "log" for finding in report.findings):
        yield "`driftq repair truncate DIR --accept-loss` would mean:"
        yield from (f"  {line}" for line in cut or ["nothing is lost"])
    yield "`driftq repair salvage DIR --to FOLDER` writes every readable record to files."


def _affected_offsets(finding: Finding, names: Names) -> str:
    from driftq.cli.fact_lines import span

    where = finding.offsets
    return f": {names.log(where.log_id)}, offsets {span(where.first_offset, where.end_offset)}" if where else ""


@command.command(short_help="Count files, facts, topics, groups, streams.")
@FOLDER
@as_json_option
def stats(folder: str, as_json: bool) -> None:
    """Count files, facts by kind, topics, groups with their lag, streams, keys and snapshots.

    Example: driftq inspect stats ./data --json
    """
    from driftq.repair import statistics
    from driftq.storage.disk import OsDisk

    with exit_on_error():
        with _progress(folder, "counting") as on_bytes:
            stats = statistics.stats(OsDisk(), folder, int(time.time() * 1_000), on_bytes)
        click.echo(json.dumps(stats) if as_json else "\n".join(_stats_lines(stats)))


def _stats_lines(stats: dict[str, Any]) -> Iterator[str]:
    yield f"store      {stats['store']}, as of lsn {stats['as_of_lsn']}"
    for part, size in stats["sizes"].items():
        yield f"{part:<10} {size['files']} file{'s' * (size['files'] != 1)}, {size['bytes']:,} bytes"
    snapshot = stats["snapshot"]
    yield f"snapshot   lsn {snapshot['lsn']}, {snapshot['age_ms'] / 1_000:.0f} s old" if snapshot else "snapshot   none"
    facts = stats["journal"]["facts"]
    yield f"facts      {sum(facts.values()):,} in {stats['journal']['frames']:,} frames"
    yield from (f"  {name:<16} {count:>10,}" for name, count in facts.items())
    for topic in stats["topics"]:
        yield f"topic      {topic['topic']}"
        for number, log in enumerate(topic["partitions"]):
            yield f"  {number:<4} {_log_line(log)}"
        for group in topic["groups"]:
            paused = ", paused" if group["paused"] else ""
            yield (
                f"  group {group['group']}: lag {group['lag']:,}, in flight {group['in_flight']:,},"
                f" waiting {group['resting']:,}{paused}"
            )
    for stream in stats["streams"]:
        yield f"stream     {stream['path']}  {_log_line(stream)}{', closed' if stream['closed'] else ''}"
    for name in ("producers", "idempotency_keys", "effects", "stages"):
        yield f"{name.replace('_', ' '):<16} {stats[name]:,}"


def _log_line(log: dict[str, int]) -> str:
    return f"offsets {log['start']:,} to {log['end']:,}, {log['payload_bytes']:,} bytes"


@contextmanager
def _progress(folder: str, verb: str) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr while a large folder is read, if standard output is a terminal."""
    from driftq.repair.statistics import sizes
    from driftq.storage.disk import OsDisk

    total = sum(part["bytes"] for part in sizes(OsDisk(), folder).values())
    if not sys.stdout.isatty() or total < PROGRESS_BYTES:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(verb), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(verb, total=total)
        yield lambda size: bar.advance(task, size)

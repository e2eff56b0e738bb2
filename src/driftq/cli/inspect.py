"""`driftq inspect`: look into a data folder, also of a running broker. Reads only; formats what the engine found."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from driftq.cli.command import Exit, as_json_option, ended
from driftq.cli.serve import DEFAULT_DATA

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.repair.names import Names
    from driftq.repair.verify import Finding, VerifyReport

BIG_BYTES = 8 << 20  # below it, a progress bar only flickers


@click.group()
def command() -> None:
    """Look into a data folder without changing it. A broker may be running on it."""


FOLDER = click.argument("folder", metavar="[DIR]", default=DEFAULT_DATA, type=click.Path(exists=True, file_okay=False))


@command.command()
@FOLDER
@click.option("--from", "from_lsn", type=click.IntRange(1), default=1, metavar="LSN", help="Begin at this lsn.")
@click.option("--to", "to_lsn", type=click.IntRange(1), metavar="LSN", help="End with this lsn.")
@click.option("--log", "log_id", type=int, metavar="N", help="Only facts about this log.")
@click.option("--topic", metavar="NAME", help="Only facts about this topic or stream path.")
@click.option("--type", "kind", metavar="FACT", help="Only facts of this kind, e.g. Appended.")
@click.option("--snapshot", is_flag=True, help="The newest whole snapshot instead of the journal.")
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
    """Every fact of the journal, one line each.

    Example: driftq inspect dump ./data --topic orders --from 1000 --to 1100
    """
    from driftq.cli.fact_lines import json_line, line
    from driftq.repair.names import Names, logs_of

    names = Names()
    with ended():
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
    from driftq.repair.journal_scan import Damage
    from driftq.repair.verify import look, read_journal, snapshot_facts
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    data = look(disk, folder)
    for fact in snapshot_facts(disk, data):
        names.note(fact)
    for found in read_journal(disk, data):
        if isinstance(found, Damage):
            yield found.first_lsn, f"damage: {found.file}, byte {found.position}: {found.reason}"
            continue
        if to_lsn is not None and found.lsn > to_lsn:
            return
        for fact in decode(found.frame):
            names.note(fact)
            if found.lsn >= from_lsn:
                yield found.lsn, fact


def _snapshot_facts(folder: str, names: Names) -> Iterator[tuple[int, Fact | str]]:
    from driftq.core.model.frames import decode
    from driftq.repair.verify import look
    from driftq.storage import snapshots
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    data = look(disk, folder)
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


@command.command()
@FOLDER
@as_json_option
def verify(folder: str, as_json: bool) -> None:
    """Check every byte that matters, and say what is affected. Ends with 74 if something is damaged.

    Example: driftq inspect verify ./data
    """
    from driftq.repair import repair, verify
    from driftq.repair.names import Names
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    with ended():
        with _progress(folder, "verifying") as advance:
            verdict = verify.verify(disk, folder, advance)
        names = Names.of(verdict.broker.state)
        affected: list[str] = []
        if verdict.findings:
            planned = verify.while_it_moves(lambda: repair.plan(disk, folder))
            names = Names.of(planned.broker.state)
            affected = losses(planned.losses, names)
        if as_json:
            click.echo(json.dumps(_verdict(verdict, affected, names)))
        else:
            _print_verdict(verdict, affected, names)
    sys.exit(Exit.DAMAGED if verdict.findings else Exit.OK)


def _verdict(verdict: VerifyReport, affected: list[str], names: Names) -> dict[str, Any]:
    return {
        "ok": not verdict.findings,
        "snapshots": verdict.snapshots,
        "compared_with_the_journal": verdict.compared,
        "first_lsn": verdict.first_lsn,
        "last_lsn": verdict.last_lsn,
        "frames": verdict.frames,
        "logs": verdict.logs,
        "records": verdict.records,
        "findings": [
            {
                "part": each.part,
                "file": each.file,
                "position": each.position,
                "reason": each.reason,
                "first_lsn": each.first_lsn or None,
                "last_lsn": each.last_lsn or None,
                "affected": _stretch(each, names),
            }
            for each in verdict.findings
        ],
        "lost_if_repaired": affected,
    }


def _print_verdict(verdict: VerifyReport, affected: list[str], names: Names) -> None:
    kept = ", ".join(f"lsn {lsn}" for lsn in verdict.snapshots) or "none"
    compared = f", {len(verdict.compared)} equal to the journal's fold" if verdict.compared else ""
    click.echo(f"snapshots  {kept} whole{compared}")
    click.echo(f"journal    lsn {verdict.first_lsn} to {verdict.last_lsn}, {verdict.frames} frames folded")
    click.echo(f"logs       {verdict.logs}, with {verdict.records} records that rest on their files")
    if not verdict.findings:
        click.echo("ok         nothing is damaged")
        return
    for each in verdict.findings:
        lsns = f" (lsn {each.first_lsn} to {each.last_lsn or 'the end'})" if each.first_lsn else ""
        click.echo(f"DAMAGED    {each.file}, byte {each.position}: {each.reason}{lsns}{_stretch(each, names)}")
    click.echo("A repair (`driftq repair DIR --accept-loss`) would mean:")
    for text in affected or ["nothing that is needed is lost"]:
        click.echo(f"  {text}")


def _stretch(finding: Finding, names: Names) -> str:
    from driftq.cli.fact_lines import span

    where = finding.stretch
    return f": {names.log(where.log_id)}, offsets {span(where.first_offset, where.end_offset)}" if where else ""


def losses(found: Any, names: Names) -> list[str]:
    """What is lost, saved and left out, one line each."""
    from driftq.cli.fact_lines import span

    lines = [f"lost: every change of lsn {span(first, last + 1)}" for first, last in found.holes]
    lines += [
        f"lost: {names.log(each.log_id)}, offsets {span(each.first_offset, each.end_offset)}"
        for each in _joined(found.lost)
    ]
    lines += [
        f"saved: {names.log(each.log_id)}, offsets {span(each.first_offset, each.end_offset)}, from the log's files"
        " (without priority, delay and producer)"
        for each in _joined(found.saved)
    ]
    lines += [
        f"left out: lsn {each.lsn} ({', '.join(type(fact).__name__ for fact in each.facts)}): {each.reason}"
        for each in found.left_out
    ]
    return lines


def _joined(stretches: list[Any]) -> list[Any]:
    """Neighbours become one."""
    joined: list[Any] = []
    for each in sorted(stretches, key=lambda s: (s.log_id, s.first_offset)):
        last = joined[-1] if joined else None
        if last is not None and (last.log_id, last.end_offset) == (each.log_id, each.first_offset):
            joined[-1] = type(each)(each.log_id, last.first_offset, each.end_offset)
        else:
            joined.append(each)
    return joined


@command.command()
@FOLDER
@as_json_option
def stats(folder: str, as_json: bool) -> None:
    """Sizes, facts by kind, topics, groups with their lag, streams, keys, snapshots.

    Example: driftq inspect stats ./data --json
    """
    from driftq.repair import statistics
    from driftq.storage.disk import OsDisk

    with ended():
        with _progress(folder, "counting") as advance:
            found = statistics.stats(OsDisk(), folder, int(time.time() * 1_000), advance)
        click.echo(json.dumps(found) if as_json else "\n".join(_stats_lines(found)))


def _stats_lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"store      {found['store']}, as of lsn {found['as_of_lsn']}"
    for part, size in found["sizes"].items():
        yield f"{part:<10} {size['files']} files, {size['bytes']:,} bytes"
    snapshot = found["snapshot"]
    yield f"snapshot   lsn {snapshot['lsn']}, {snapshot['age_ms'] / 1_000:.0f} s old" if snapshot else "snapshot   none"
    facts = found["journal"]["facts"]
    yield f"facts      {sum(facts.values()):,} in {found['journal']['frames']:,} frames"
    yield from (f"  {name:<16} {count:>10,}" for name, count in facts.items())
    for topic in found["topics"]:
        yield f"topic      {topic['topic']}"
        for number, log in enumerate(topic["partitions"]):
            yield f"  {number:<4} {_log_line(log)}"
        for group in topic["groups"]:
            paused = ", paused" if group["paused"] else ""
            yield (
                f"  group {group['group']}: lag {group['lag']:,}, in flight {group['in_flight']:,},"
                f" waiting for retry {group['waiting_for_retry']:,}{paused}"
            )
    for stream in found["streams"]:
        yield f"stream     {stream['path']}  {_log_line(stream)}{', closed' if stream['closed'] else ''}"
    for name in ("producers", "idempotency_keys", "effects", "stages"):
        yield f"{name.replace('_', ' '):<16} {found[name]:,}"


def _log_line(log: dict[str, int]) -> str:
    lost = f", {log['lost']:,} lost" if log["lost"] else ""
    return f"offsets {log['start']:,} to {log['end']:,}, {log['payload_bytes']:,} bytes{lost}"


@contextmanager
def _progress(folder: str, what: str) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while a big folder is read, if a person is looking."""
    from driftq.repair.statistics import sizes
    from driftq.storage.disk import OsDisk

    total = sum(part["bytes"] for part in sizes(OsDisk(), folder).values())
    if not sys.stdout.isatty() or total < BIG_BYTES:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda size: bar.advance(task, size)

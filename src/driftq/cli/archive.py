"""`driftq restore` and `driftq archive`: a data folder from an archive, and what an archive holds."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import output
from driftq.cli.command import as_json_option
from driftq.cli.exit_codes import Exit, exit_on_error

if TYPE_CHECKING:
    from driftq.repair.restore import RestoreReport
    from driftq.storage.archive.object_store import ObjectStore

URL = click.argument("url", metavar="URL")
_generation_option = click.option(
    "--generation", metavar="NAME", default="", help="An earlier one; see `archive list`."
)


@click.command()
@URL
@click.argument("folder", metavar="DIR")
@click.option("--lsn", type=click.IntRange(1), metavar="N", help="As it was after this lsn.")
@click.option("--time", "at", metavar="TIME", help="As it was at this time (RFC 3339), by the broker's clock.")
@_generation_option
@as_json_option
def restore(url: str, folder: str, lsn: int | None, at: str | None, generation: str, as_json: bool) -> None:
    """Make a data folder from an archive. Every checksum is verified. The folder must be empty.

    Without --lsn and --time it is the newest state. The archive is not changed. A broker that is served on the folder
    with the same archive begins a generation of its own: what is there stays.

    Example: driftq restore s3://bucket/prefix ./data --time 2026-11-18T09:30:00Z
    """
    from driftq.repair.restore import RestorePoint
    from driftq.repair.restore import restore as restore_folder
    from driftq.storage.data_folder import FolderLock
    from driftq.storage.disk import OsDisk

    if lsn is not None and at is not None:
        raise click.UsageError("--lsn and --time exclude each other")
    target = RestorePoint(lsn, _time(at) if at is not None else None, generation)
    with exit_on_error():
        objects = _objects(url)
        _check_empty(folder)
        lock = FolderLock(folder)
        try:
            report = restore_folder(objects, OsDisk(), folder, target)
        finally:
            lock.release()
    if as_json:
        output.document(asdict(report))
    else:
        _show(folder, report)
    if report.gap is not None:
        sys.exit(Exit.DAMAGED)


def _show(folder: str, report: RestoreReport) -> None:
    from driftq.wire.fields import to_rfc3339

    click.echo(f"{folder} is restored up to lsn {report.tail_lsn}, from generation {report.generation}.")
    if report.base_lsn:
        click.echo(f"  base at lsn {report.base_lsn}: {report.files} files, {output.size(report.base_bytes)}")
    click.echo(f"  journal: {report.chunks} chunks, {output.size(report.journal_bytes)}")
    if report.shipped_ms:
        click.echo(f"  the last chunk was shipped at {to_rfc3339(report.shipped_ms)}")
    for line in report.damaged:
        click.echo(f"  not used, because it is damaged: {line}")
    if report.gap is not None:
        click.echo(f"  GAP: lsn {report.gap[0]} to {report.gap[1]} are missing, and what follows cannot be used")
    else:
        click.echo("  no gap")


@click.group()
def archive() -> None:
    """List and verify an archive. Nothing is changed."""


@archive.command(name="list")
@URL
@as_json_option
def list_(url: str, as_json: bool) -> None:
    """Show which points of an archive can be restored.

    Example: driftq archive list s3://bucket/prefix
    """
    from driftq.repair.archive_check import chunk_totals
    from driftq.storage.archive.history import load_manifest
    from driftq.wire.fields import to_rfc3339

    with exit_on_error():
        objects = _objects(url)
        manifest = load_manifest(objects)
        totals = list(chunk_totals(objects, [generation.name for generation in manifest.generations]))
    rows: list[dict[str, Any]] = [
        {
            "generation": generation.name,
            "first_lsn": generation.first_lsn,
            "parent": generation.parent,
            "started_at": to_rfc3339(generation.started_ms),
            "chunks": chunks,
            "size_bytes": size_bytes,
        }
        for generation, (_, chunks, size_bytes) in zip(manifest.generations, totals, strict=True)
    ]
    bases = [
        {"lsn": base.lsn, "generation": base.generation, "at": to_rfc3339(base.at_ms), "size_bytes": base.size_bytes}
        for base in manifest.bases
    ]
    if as_json:
        head = {"store": manifest.store, "head": manifest.head, "first_lsn": manifest.first_lsn}
        output.document({**head, "next_lsn": manifest.next_lsn, "generations": rows, "bases": bases})
        return
    output.fields([("archive", url), ("store", manifest.store), ("restorable from lsn", manifest.first_lsn)])
    click.echo()
    output.table(
        ("GENERATION", "FROM LSN", "PARENT", "STARTED", "CHUNKS", "SIZE"),
        [(*list(row.values())[:5], output.size(row["size_bytes"])) for row in rows],
    )
    if bases:
        click.echo()
        output.table(
            ("BASE AT LSN", "GENERATION", "ARCHIVED", "SIZE"),
            [(*list(base.values())[:3], output.size(int(str(base["size_bytes"])))) for base in bases],
        )


@archive.command()
@URL
@_generation_option
@as_json_option
def verify(url: str, generation: str, as_json: bool) -> None:
    """Compare the checksums of everything a restore may need.

    Ends with 74 if something is damaged or missing.

    Example: driftq archive verify s3://bucket/prefix
    """
    from driftq.repair.archive_check import verify_archive

    with exit_on_error():
        check = verify_archive(_objects(url), generation)
    if as_json:
        output.document(asdict(check))
    else:
        click.echo(
            f"{url}: lsn {check.first_lsn} to {check.last_lsn}, {check.bases} bases, {check.objects} objects and "
            f"{check.chunks} chunks read, {output.size(check.size_bytes)}."
        )
        for finding in check.findings:
            click.echo(f"  damaged: {finding}")
        if not check.findings:
            click.echo("  all checksums are right, and there is no gap")
    if check.findings:
        sys.exit(Exit.DAMAGED)


def _objects(url: str) -> ObjectStore:
    from driftq.storage.archive.cloud_objects import BadAddress, open_object_store

    try:
        return open_object_store(url)
    except BadAddress as error:
        raise click.UsageError(str(error)) from None


def _time(text: str) -> int:
    from driftq.wire.fields import from_rfc3339

    try:
        return from_rfc3339(text)
    except ValueError as error:
        raise click.UsageError(f"--time takes a time like 2026-11-18T09:30:00Z, not {text!r} ({error})") from None


def _check_empty(folder: str) -> None:
    from pathlib import Path

    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(entry.name != "LOCK" for entry in path.iterdir())):
        raise click.UsageError(f"{folder} is not empty; name a new or an empty folder")

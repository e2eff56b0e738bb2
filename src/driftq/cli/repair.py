"""`driftq repair`: truncate the journal at the first damage, or write the readable records to files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from driftq.cli.command import as_json_option
from driftq.cli.exit_codes import Exit, exit_on_error
from driftq.cli.inspect import FOLDER

if TYPE_CHECKING:
    from driftq.repair.salvage import SalvagedLog
    from driftq.repair.truncate import TruncatePlan

INSTEAD = (
    "`driftq repair` no longer closes gaps in a journal. `driftq repair truncate DIR --accept-loss` cuts it at the "
    "first damage; `driftq repair salvage DIR --to FOLDER` writes every readable record to files."
)


def _refuse_old_form(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        raise click.UsageError(INSTEAD)


class _RepairGroup(click.Group):
    """Explains the new commands where the form of earlier versions, `driftq repair DIR`, is used."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(context, args[0]) is None:
            raise click.UsageError(f"there is no command {args[0]!r}. {INSTEAD}")
        return super().resolve_command(context, args)


@click.group(cls=_RepairGroup)
@click.option("--accept-loss", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refuse_old_form)
def command() -> None:
    """Get a damaged data folder to open again, or its records out of it.

    Restore a backup if there is one. See `driftq inspect verify` first. Stop the broker before `truncate`.
    """


@command.command()
@FOLDER
@click.option("--accept-loss", is_flag=True, help="Do it. Without this, only what would be cut is shown.")
@as_json_option
def truncate(folder: str, accept_loss: bool, as_json: bool) -> None:
    """Cut the journal at the first damage. The folder then opens with exactly what was before it.

    Every later change is cut: messages, acks, topics. Nothing is deleted. The damaged journal stays in the folder as
    journal.damaged-N, and the readable records that are cut are written to journal.salvaged-N, as `salvage` does.

    Example: driftq repair truncate ./data --accept-loss
    """
    from driftq.repair import truncate
    from driftq.repair.folder_reader import require_folder
    from driftq.storage.data_folder import FolderLock
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    with exit_on_error():
        require_folder(disk, folder)
        lock = FolderLock(folder)
        try:
            plan = truncate.plan(disk, folder)
            if not plan.is_needed:
                text = f"{folder}: the journal is not damaged. `driftq inspect verify` checks the log files, too."
                click.echo(json.dumps({"damaged": False}) if as_json else text)
                return
            if not accept_loss:
                _refuse(folder, plan, as_json)
            done = truncate.execute(disk, plan)
        finally:
            lock.release()
    if as_json:
        salvaged = [_salvaged(log) for log in done.salvaged]
        body = {"repaired": True, "losses": plan.lines(), "kept": done.kept_as, "tail_lsn": done.tail_lsn}
        click.echo(json.dumps(body | {"salvaged": salvaged}))
        return
    click.echo(f"{folder} is truncated and opens, up to lsn {done.tail_lsn}.")
    for line in plan.lines() or ["nothing is lost"]:
        click.echo(f"  {line}")
    if done.kept_as:
        click.echo(f"The damaged files are kept: {', '.join(done.kept_as)}")
    if done.salvaged:
        count = sum(log.records for log in done.salvaged)
        click.echo(f"{count} records that were cut are in {done.salvaged_to}")


def _refuse(folder: str, plan: TruncatePlan, as_json: bool) -> NoReturn:
    reasons = [f"{damage.file}, byte {damage.position}: {damage.reason}" for damage in (plan.damage,) if damage]
    reasons += map(str, plan.damaged_snapshots)
    if as_json:
        click.echo(json.dumps({"damaged": True, "repaired": False, "findings": reasons, "losses": plan.lines()}))
        sys.exit(Exit.DAMAGED)
    for reason in reasons:
        click.echo(f"damaged: {reason}")
    click.echo("Truncating would mean:")
    for line in plan.lines() or ["nothing is lost"]:
        click.echo(f"  {line}")
    click.echo(
        f"Nothing was changed. Restore a backup, or repeat with `driftq repair truncate {folder} --accept-loss`.",
        err=True,
    )
    sys.exit(Exit.DAMAGED)


@command.command(short_help="Write every readable record to files.")
@FOLDER
@click.option("--to", "target", metavar="FOLDER", required=True, help="A new or empty folder for the files.")
@as_json_option
def salvage(folder: str, target: str, as_json: bool) -> None:
    """Write every readable record to files, one for each partition and stream. Changes nothing in DIR.

    A file is NDJSON: a line has the record's offset, time, key, value, envelope and job. To send the records of a
    partition to a broker again: driftq produce TOPIC --ndjson FILE

    Example: driftq repair salvage ./data --to ./salvaged
    """
    from driftq.repair import salvage
    from driftq.repair.folder_reader import require_folder
    from driftq.storage.disk import OsDisk

    if Path(target).exists() and (not Path(target).is_dir() or any(Path(target).iterdir())):
        raise click.UsageError(f"--to {target} is not an empty folder")
    disk = OsDisk()
    with exit_on_error():
        data = require_folder(disk, folder)
        salvaged = salvage.salvage(disk, data, str(Path(target).absolute()))
    if as_json:
        click.echo(json.dumps({"salvaged": [_salvaged(log) for log in salvaged]}))
        return
    for log in salvaged:
        click.echo(f"{log.records:>10,}  {log.log}  {log.file}")
    click.echo(f"{sum(log.records for log in salvaged):,} records of {len(salvaged)} logs are in {target}")


def _salvaged(log: SalvagedLog) -> dict[str, Any]:
    return {"log": log.log, "file": log.file, "records": log.records, "ranges": log.ranges}

"""`driftq repair`: say what a repair would lose, and do it when that is accepted. Formats; `repair.repair` works."""

from __future__ import annotations

import json
import sys

import click

from driftq.cli.command import Exit, as_json_option, ended
from driftq.cli.inspect import FOLDER, losses


@click.command()
@FOLDER
@click.option("--accept-loss", is_flag=True, help="Do it. Without this, only what would be lost is shown.")
@as_json_option
def command(folder: str, accept_loss: bool, as_json: bool) -> None:
    """Make a damaged data folder open again, keeping everything that can be read.

    Damaged files are never deleted: they stay in the folder under another name. Stop the broker first. Make a copy of
    the folder first, if there is room.

    Example: driftq repair ./data --accept-loss
    """
    from driftq.repair import repair
    from driftq.repair.names import Names
    from driftq.repair.verify import look
    from driftq.storage.data_folder import FolderLock
    from driftq.storage.disk import OsDisk

    disk = OsDisk()
    with ended():
        look(disk, folder)
        lock = FolderLock(folder)
        try:
            plan = repair.plan(disk, folder)
            if not plan:
                click.echo(json.dumps({"damaged": False}) if as_json else f"{folder}: nothing is damaged")
                return
            lines = losses(plan.losses, Names.of(plan.broker.state))
            if not accept_loss:
                _refuse(folder, [each.reason for each in plan.findings], lines, as_json)
            done = repair.execute(disk, folder)
            lines = losses(done.losses, Names.of(done.broker.state))
        finally:
            lock.release()
    if as_json:
        click.echo(json.dumps({"repaired": True, "losses": lines, "kept": done.kept, "tail_lsn": done.start.tail_lsn}))
        return
    click.echo(f"{folder} is repaired and opens, up to lsn {done.start.tail_lsn}.")
    for text in lines or ["nothing is lost"]:
        click.echo(f"  {text}")
    click.echo(f"The damaged files are kept: {', '.join(done.kept)}")


def _refuse(folder: str, reasons: list[str], lines: list[str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"damaged": True, "repaired": False, "findings": reasons, "losses": lines}))
        sys.exit(Exit.DAMAGED)
    for reason in reasons:
        click.echo(f"damaged: {reason}")
    click.echo("A repair would mean:")
    for text in lines or ["nothing that is needed is lost"]:
        click.echo(f"  {text}")
    click.echo(
        f"Nothing was changed. Restore a backup, or repeat with `driftq repair {folder} --accept-loss`.", err=True
    )
    sys.exit(Exit.DAMAGED)

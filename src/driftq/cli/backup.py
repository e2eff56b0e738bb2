"""`driftq backup`: a verified copy of a broker's data, running or stopped, in one command."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from driftq.cli import output
from driftq.cli.command import Invocation, broker_command
from driftq.cli.exit_codes import Exit, exit_on_error, fail
from driftq.extras import require

if TYPE_CHECKING:
    from driftq.storage.backup import FolderCopy


@click.command()
@click.argument("target", metavar="DIR")
@click.option("--data", metavar="FOLDER", help="Copy this data folder, instead of asking a server over HTTP.")
@broker_command
def command(invocation: Invocation, target: str, data: str | None) -> None:
    """Copy a broker's data to the new folder DIR, and check the copy. The broker may run, and need not stop.

    Everything that was acknowledged before the backup began is in it. Without --data the server sends the copy over
    HTTP. To restore, start a broker on the copy: driftq serve --data DIR

    \b
    Examples:
      driftq backup ./backups/monday
      driftq backup ./backups/monday --data /var/lib/driftq
    """
    require("a backup", "server")
    from driftq.storage.backup import BackupFailed, FolderCopy

    with exit_on_error():
        try:
            copy = FolderCopy(target)
        except BackupFailed as error:
            fail(Exit.CANNOT_CREATE, str(error), as_json=invocation.as_json)
        with _removed_on_failure(target):
            try:
                (_copy_folder if data else _download)(invocation, data or "", copy)
                copy.finish()
            except BackupFailed as error:
                fail(Exit.IN_USE, str(error), as_json=invocation.as_json)
            _verify(invocation, copy)


def _copy_folder(invocation: Invocation, data: str, copy: FolderCopy) -> None:
    from driftq.storage.backup import freeze

    frozen = freeze(data)
    try:
        with _progress() as advance:
            for entry in frozen.entries():
                copy.add(entry.name, map(advance, entry.pieces()))
    finally:
        frozen.close()


def _download(invocation: Invocation, _: str, copy: FolderCopy) -> None:
    from driftq.client.errors import OutcomeUnknown
    from driftq.storage.backup_stream import unpack

    try:
        with _progress() as advance:
            unpack(map(advance, invocation.broker.backup()), copy)
    except OutcomeUnknown as error:
        hint = "The copy was incomplete and is removed. Is the server stopping, or its disk full? Try again."
        fail(Exit.UNREACHABLE, str(error), hint, error=error, as_json=invocation.as_json)


def _verify(invocation: Invocation, copy: FolderCopy) -> None:
    from driftq.repair.verify import verify
    from driftq.storage.disk import OsDisk

    report = verify(OsDisk(), copy.path)
    if report.findings:
        finding = report.findings[0]
        message = f"the copy is damaged and is removed: {finding.file}, byte {finding.position}: {finding.reason}"
        hint = "The original probably is, too: see `driftq inspect verify`."
        fail(Exit.DAMAGED, message, hint, as_json=invocation.as_json)
    state = report.broker.state
    if invocation.as_json:
        document = {"folder": copy.path, "lsn": report.last_lsn, "files": copy.files, "bytes": copy.size_bytes}
        output.document(document | {"topics": len(state.topics) // 2, "streams": len(state.streams.by_path)})
        return
    click.echo(
        f"{copy.path}: {copy.files:,} files, {output.size(copy.size_bytes)}, up to lsn {report.last_lsn:,}, verified; "
        f"{len(state.topics) // 2:,} topics, {len(state.streams.by_path):,} streams"
    )
    click.echo(f"Restore: driftq serve --data {copy.path}")


@contextmanager
def _removed_on_failure(target: str) -> Iterator[None]:
    """A copy that is not whole and checked must not be taken for one."""
    try:
        yield
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def _progress() -> Iterator[Callable[[bytes], bytes]]:
    """Counts the bytes that pass, on a terminal."""
    with output.progress("copying", None, unit="MB") as advance:
        passed = 0

        def count(piece: bytes) -> bytes:
            nonlocal passed
            before, passed = passed // 1_000_000, passed + len(piece)
            advance(passed // 1_000_000 - before)
            return piece

        yield count
    sys.stdout.flush()

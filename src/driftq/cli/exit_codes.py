"""Exit codes: one number for each kind of end, and the functions that choose it and print the reason.

`exit_on_error` is for commands that work on a data folder. Commands that talk to a server map the client's errors in
`cli.command`. The numbers are those of sysexits.h where it has one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from driftq.client.errors import DriftQError

CUT_LINES_MAX = 10  # lines about what a truncation would cut, below the report of damage
_FOLDER_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST})


class Exit(IntEnum):
    """How a command ended."""

    OK = 0  # The command succeeded.
    REFUSED = 1  # The server refused the request, or a part of it; or `driftq doctor` found a problem.
    USAGE = 2  # The command line or the settings are wrong.
    BAD_INPUT = 65  # The contents of a file or a pipe cannot be parsed.
    NOTHING_THERE = 66  # No data folder or archive there, no topic, group, job or stream of this name, no such package.
    UNREACHABLE = 69  # No server or object store answers, or a server cannot listen at its address.
    FAILED = 70  # The disk failed, or there is a bug: nothing was acknowledged after it.
    FILES_MOVED = 72  # Files of the data folder were removed or replaced while the broker was running.
    CANNOT_CREATE = 73  # The data folder cannot be created or written.
    DAMAGED = 74  # The data folder or the archive is damaged; nothing was changed.
    IN_USE = 75  # Try later: another process uses the data folder, or the server is busy, full or starting.
    NOT_ALLOWED = 77  # The server requires a token, or another one.
    TOO_NEW = 78  # The data folder was written by a later version.
    INTERRUPTED = 130  # Ctrl-C.


@contextmanager
def exit_on_error(report: Callable[[str], None] | None = None) -> Iterator[None]:
    """Turn an exception into one line and an exit code. `report` prints the line elsewhere than on stderr."""

    def end(code: Exit, message: str) -> NoReturn:
        if report is None:
            fail(code, message, as_json=_is_json())
        report(message)
        sys.exit(code)

    from driftq.core.model.frames import UnknownFact
    from driftq.engine.archiver import ArchiveUnavailable
    from driftq.engine.lifetime import EngineStopped
    from driftq.repair.folder_reader import NoDataFolder
    from driftq.repair.restore import NotInArchive
    from driftq.server.http.listener import CannotListen
    from driftq.storage.archive.history import DamagedArchive, NoArchive
    from driftq.storage.archive.manifest import BadManifest
    from driftq.storage.archive.object_store import ObjectStoreError
    from driftq.storage.corruption import CorruptJournal, Damaged, FilesMoved, FormatTooNew
    from driftq.storage.data_folder import FolderInUse, FolderUnusable, ForeignFolder
    from driftq.storage.disk import DiskFailed, DiskFull

    try:
        yield
    except FolderInUse as error:
        end(Exit.IN_USE, str(error))
    except (CannotListen, ArchiveUnavailable, ObjectStoreError) as error:
        end(Exit.UNREACHABLE, str(error))
    except (ForeignFolder, FolderUnusable) as error:
        end(Exit.CANNOT_CREATE, str(error))
    except (DamagedArchive, BadManifest) as error:
        end(Exit.DAMAGED, str(error))
    except (NoDataFolder, NoArchive, NotInArchive) as error:
        end(Exit.NOTHING_THERE, str(error))
    except Damaged as error:
        lines = cut_by_truncate(str(Path(error.file).parents[1])) if isinstance(error, CorruptJournal) else []
        more = [f"and {len(lines) - CUT_LINES_MAX} more"] if len(lines) > CUT_LINES_MAX else []
        end(Exit.DAMAGED, "\n  ".join([str(error), *lines[:CUT_LINES_MAX], *more]))
    except (FormatTooNew, UnknownFact) as error:
        end(Exit.TOO_NEW, str(error))
    except FilesMoved as error:
        end(Exit.FILES_MOVED, str(error))
    except (DiskFailed, EngineStopped) as error:
        if isinstance(error.__cause__, FilesMoved):
            end(Exit.FILES_MOVED, str(error))
        end(Exit.FAILED, f"stopped, because the disk cannot be trusted any more: {error}")
    except DiskFull as error:
        end(Exit.CANNOT_CREATE, f"no room on the disk: {error}")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(Exit.OK)
    except OSError as error:
        end(Exit.CANNOT_CREATE if error.errno in _FOLDER_ERRORS else Exit.FAILED, str(error))


def cut_by_truncate(folder: str) -> list[str]:
    """What `driftq repair truncate` would cut, one line each, as far as the readable rest shows it."""
    from driftq.repair.folder_reader import retry_if_moved
    from driftq.repair.truncate import plan
    from driftq.storage.corruption import Damaged
    from driftq.storage.disk import OsDisk

    try:
        return retry_if_moved(lambda: plan(OsDisk(), folder)).lines()
    except Damaged as error:
        return [str(error)]
    except Exception:  # the damage is reported in any case; this only adds to it
        return []


def _is_json() -> bool:
    """Whether the command was called with --json."""
    context = click.get_current_context(silent=True)
    params = {**context.find_root().params, **context.params} if context is not None else {}
    return bool(params.get("as_json"))


def fail(
    code: Exit,
    message: str,
    hint: str = "",
    *,
    error: DriftQError | None = None,
    details: Mapping[str, Any] | None = None,
    as_json: bool = False,
) -> NoReturn:
    """Print the reason to stderr and exit. Notes that a command added to the error are part of the hint."""
    flush_output()
    hint = "\n  ".join(filter(None, [hint, *getattr(error, "__notes__", ())]))
    if as_json:
        import msgspec

        body: dict[str, Any] = {"error": str(getattr(error, "code", "") or code.name), "message": message}
        if hint:
            body["hint"] = hint
        body |= details or {}
        click.echo(msgspec.json.encode(body).decode(), err=True)
    else:
        click.echo(f"driftq: {message}" + (f"\n  {hint}" if hint else ""), err=True)
    sys.exit(code)


def flush_output() -> None:
    """Flush standard output. If its reader is gone, discard what is buffered: Python would fail to flush it at exit."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, KeyboardInterrupt):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

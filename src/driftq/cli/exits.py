"""What the process ends with: one number for each kind of end, and the one place that chooses it.

Numbers are those of sysexits.h where it has one. `docs/reference/cli.md` lists them for operators; a change here is a
change there. This module knows what the layers below raise; it prints their message and nothing else.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

import click

LINES_MAX = 10
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOENT, errno.EEXIST})


class Exit(IntEnum):
    """How a command ended."""

    OK = 0  # It did what was asked.
    REFUSED = 1  # The server said no, or did only a part of it.
    USAGE = 2  # The command line or the settings are wrong.
    BAD_INPUT = 65  # What was read from a file or a pipe cannot be understood.
    NOTHING_THERE = 66  # There is no data folder at this place, or no topic, group, job or stream of this name.
    UNREACHABLE = 69  # No server answers, or a server cannot listen at its address.
    FAILED = 70  # The disk failed, or a bug was met: nothing more was acknowledged.
    FILES_MOVED = 72  # Files of the data folder were removed or replaced while the broker was running.
    CANNOT_CREATE = 73  # The data folder cannot be made or written.
    DAMAGED = 74  # The data folder is damaged; nothing was changed.
    IN_USE = 75  # Later: another process works in the data folder, or the server is busy, full or starting.
    NOT_ALLOWED = 77  # The server wants a token, or another one.
    TOO_NEW = 78  # The data folder was written by a later version.
    INTERRUPTED = 130  # Ctrl-C.


@contextmanager
def ended(report: Callable[[str], None] | None = None) -> Iterator[None]:
    """Turn what went wrong inside into one line and the right number. `report` prints the line somewhere else."""

    def end(code: Exit, message: str) -> NoReturn:
        if report is None:
            stop(code, message)
        report(message)
        sys.exit(code)

    from driftq.core.frames import UnknownFact
    from driftq.engine.engine import EngineStopped
    from driftq.engine.inspection import NoDataFolder
    from driftq.server.http.listener import CannotListen
    from driftq.storage.damage import Damaged, FilesMoved, FormatTooNew
    from driftq.storage.disk import DiskFailed, DiskFull
    from driftq.storage.folder import ForeignFolder
    from driftq.storage.lockfile import FolderInUse, FolderUnusable

    try:
        yield
    except FolderInUse as error:
        end(Exit.IN_USE, str(error))
    except CannotListen as error:
        end(Exit.UNREACHABLE, str(error))
    except (ForeignFolder, FolderUnusable) as error:
        end(Exit.CANNOT_CREATE, str(error))
    except NoDataFolder as error:
        end(Exit.NOTHING_THERE, str(error))
    except Damaged as error:
        end(Exit.DAMAGED, "\n  ".join([str(error), *_affected(error)]))
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
        end(Exit.CANNOT_CREATE if error.errno in _NOT_ALLOWED else Exit.FAILED, str(error))


def _affected(error: Exception) -> list[str]:
    """What the damage means for topics and offsets, as far as what is left can tell."""
    from driftq.cli.inspect import losses
    from driftq.engine import repairing
    from driftq.engine.naming import Names
    from driftq.storage.damage import CorruptJournal
    from driftq.storage.disk import OsDisk

    if not isinstance(error, CorruptJournal):
        return []
    try:
        plan = repairing.plan(OsDisk(), str(Path(error.file).parents[1]))
    except Exception:  # the refusal stands as it is; this was only to say more
        return []
    lines = losses(plan.losses, Names.of(plan.broker.state))
    return lines if len(lines) <= LINES_MAX else [*lines[:LINES_MAX], f"and {len(lines) - LINES_MAX} more"]


def stop(code: Exit, message: str) -> NoReturn:
    from driftq.cli.asking import fail

    context = click.get_current_context(silent=True)
    params = {**context.find_root().params, **context.params} if context is not None else {}
    fail(code, message, as_json=bool(params.get("as_json")))

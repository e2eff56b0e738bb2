"""How the command line ends: one exit code for each kind of failure, for supervisors and scripts.

Codes follow sysexits where one fits. Whatever ends a command badly says on standard error what happened and what helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

OK = 0
USAGE = 2  # click's own
DISK_FAILED = 70  # the disk failed while running: nothing unanswered is known to be stored
CANNOT_LISTEN = 71
DAMAGED = 74  # the data folder is refused as it is
IN_USE = 75  # another process holds the data folder
FORMAT_TOO_NEW = 78


@contextmanager
def ended() -> Iterator[None]:
    """Turn what storage and engine raise into a message and an exit code."""
    from driftq.engine.engine import EngineStopped
    from driftq.storage.damage import Damaged, FormatTooNew
    from driftq.storage.disk import DiskFailed, DiskFull
    from driftq.storage.lockfile import FolderInUse

    try:
        yield
    except FolderInUse as error:
        raise _exit(IN_USE, str(error)) from None
    except Damaged as error:
        raise _exit(DAMAGED, str(error)) from None
    except FormatTooNew as error:
        raise _exit(FORMAT_TOO_NEW, str(error)) from None
    except (EngineStopped, DiskFailed, DiskFull) as error:
        raise _exit(DISK_FAILED, f"stopped, because the disk cannot be trusted: {error}") from None
    except OSError as error:
        raise _exit(CANNOT_LISTEN, str(error)) from None


def _exit(code: int, message: str) -> click.exceptions.Exit:
    click.echo(f"driftq: {message}", err=True)
    return click.exceptions.Exit(code)

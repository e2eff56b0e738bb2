"""What is raised when bytes on disk are not what was written.

Each exception carries the position and the range as attributes, and a message that a person can act on. Nothing here
reads a file; and nothing that raises one of these has changed or deleted anything.
"""

from __future__ import annotations

EXIT_CODE = 74  # EX_IOERR: what the command line ends with when the data folder is refused


class Damaged(Exception):
    """Stored bytes cannot be trusted. The folder is left exactly as it was found."""


class CorruptJournal(Damaged):
    """Frames that were, or may have been, acknowledged are damaged or missing."""

    def __init__(self, file: str, position: int, first_lsn: int, last_lsn: int, reason: str) -> None:
        upto = f"to {last_lsn}" if last_lsn else "on"
        super().__init__(
            f"{file}, byte {position}: {reason}. Affected: every change from lsn {first_lsn} {upto}. "
            "Nothing was changed. Restore a backup, or see what is left with `driftq inspect verify DIR` and cut the "
            "journal here with `driftq repair truncate DIR --accept-loss`."
        )
        self.file = file
        self.position = position
        self.first_lsn = first_lsn
        self.last_lsn = last_lsn
        self.reason = reason


class CorruptLog(Damaged):
    """A stored batch cannot be read; the rest of the log and all other logs can."""

    def __init__(self, log_id: int, offset: int, file: str, position: int, reason: str, end_offset: int = 0) -> None:
        super().__init__(f"log {log_id}, offset {offset}: {file}, byte {position}: {reason}")
        self.log_id = log_id
        self.offset = offset
        self.end_offset = end_offset or offset + 1  # the next one that may be readable
        self.file = file
        self.position = position
        self.reason = reason


class CorruptSnapshot(Damaged):
    """A snapshot does not hold what was written into it."""

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file}, byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


class OwnershipLost(Exception):
    """This process may no longer write: its journal was moved, replaced or taken over."""


class FilesMoved(OwnershipLost):
    """A file of the data folder was removed or replaced while the broker has it open."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} was removed or replaced while the broker was running. It stopped at once: what it would "
            "acknowledge from here on could be lost, and another broker may be using the folder. Restore the file, or "
            "start on a backup; `driftq inspect verify DIR` shows what is there."
        )
        self.path = path


class FormatTooNew(Exception):
    """Written by a later version. Nothing is wrong with the bytes; this version cannot read them."""

    def __init__(self, file: str, version: int, known: int) -> None:
        super().__init__(
            f"{file} has format {version}; this version reads up to format {known}. Nothing was changed. "
            "Start the version that wrote it, or a later one."
        )
        self.file = file
        self.version = version
        self.known = known

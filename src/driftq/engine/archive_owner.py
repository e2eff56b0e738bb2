"""Which process writes an archive, and whether it still runs: known for processes of the same machine and container."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from driftq.storage.archive.manifest import Owner


def this_process() -> Owner:
    """This process, so that another one on the same machine can tell whether it still lives."""
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()), _namespace())


def is_ended(owner: Owner) -> bool:
    """Whether a process has certainly ended: its number means the same here, and it is not there."""
    return bool(owner.namespace) and owner.namespace == _namespace() and _started(owner.pid) != owner.started


def _started(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _namespace() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""

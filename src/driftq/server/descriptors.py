"""How the process's file descriptors are divided between files and connections.

The soft limit is raised to the hard one at the start. What storage needs is reserved, a few are left for everything
else (outbound calls, child processes, the event loop), and connections get the rest, up to `listen.connections_max`.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from driftq.server.settings import Settings, SettingsError

LIMIT_MAX = 1 << 20  # "unlimited" is taken as this: some systems refuse more
STORAGE_FILES = 64  # beside the log files: journal, watermark, snapshots, syncs of a checkpoint, folders
OTHER = 96  # outbound calls, router threads, a checkpoint's pipes, listeners, the loop itself
CONNECTIONS_MIN = 32
LOG_FILES_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """What a limit of `limit` descriptors is used for."""

    limit: int
    log_files: int
    connections: int

    @property
    def reserved(self) -> int:
        """Placeholders for files."""
        return self.log_files + STORAGE_FILES


def raised_limit() -> int:
    """The soft limit of open files, after raising it as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):
            pass  # then with what there is
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def plan(settings: Settings, limit: int) -> DescriptorPlan:
    """Divide the descriptors. Raises `SettingsError` if they are too few to serve anything."""
    needed = STORAGE_FILES + OTHER + LOG_FILES_MIN + CONNECTIONS_MIN
    if limit < needed:
        raise SettingsError(
            f"this process may open {limit} files; a broker needs at least {needed}. Raise the limit (ulimit -n, "
            "LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)."
        )
    spare = limit - STORAGE_FILES - OTHER
    # Connections lose to storage only up to a half: fewer open log files cost time, not answers.
    log_files = max(LOG_FILES_MIN, min(settings.storage.open_files, spare // 2))
    return DescriptorPlan(limit, log_files, min(settings.listen.connections_max, spare - log_files))

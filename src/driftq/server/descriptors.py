"""File descriptors of the process: how many there are, and how log files and connections divide them."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING

from driftq.settings.loader import SettingsError

if TYPE_CHECKING:
    from driftq.server.settings import Settings

logger = logging.getLogger("driftq.server")

LIMIT_MAX = 1 << 20  # "unlimited" is taken as this: some systems refuse more
STORAGE_FILES = 64  # beside the log files: journal, watermark, snapshots, syncs of a checkpoint, folders
OTHER_FILES = 96  # outbound calls, router threads, a checkpoint's pipes, listeners, the loop itself
CONNECTIONS_MIN = 32
LOG_FILES_MIN = 8


@dataclass(frozen=True, slots=True)
class DescriptorPlan:
    """How the `limit` descriptors of the process are divided between log files and connections."""

    limit: int
    log_files: int
    connections: int

    @property
    def reserved(self) -> int:
        """Descriptors kept free for files."""
        return self.log_files + STORAGE_FILES


def raise_limit() -> int:
    """The soft limit of open files, after raising it as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
        except (OSError, ValueError):
            pass  # continue with the present limit
    return LIMIT_MAX if soft == resource.RLIM_INFINITY else soft


def plan_descriptors(settings: Settings, limit: int) -> DescriptorPlan:
    """Divide the descriptors. Raises `SettingsError` if they are too few to serve anything."""
    needed = STORAGE_FILES + OTHER_FILES + LOG_FILES_MIN + CONNECTIONS_MIN
    if limit < needed:
        raise SettingsError(
            f"this process may open {limit} files; a broker needs at least {needed}. Raise the limit (ulimit -n, "
            "LimitNOFILE= of a systemd unit, --ulimit nofile= of a container)."
        )
    spare = limit - STORAGE_FILES - OTHER_FILES
    # Connections lose to storage only up to a half: fewer open log files cost time, not answers.
    log_files = max(LOG_FILES_MIN, min(settings.storage.open_files, spare // 2))
    return DescriptorPlan(limit, log_files, min(settings.listen.connections_max, spare - log_files))


def planned(settings: Settings) -> DescriptorPlan:
    """The plan of this process. Logs a warning if connections get fewer than the settings ask for."""
    descriptors = plan_descriptors(settings, raise_limit())
    if descriptors.connections < settings.listen.connections_max:
        logger.warning(
            "listen.connections_max is %d, but this process may open %d files: connections past %d get 503. "
            "Raise the limit (ulimit -n, LimitNOFILE=) or lower listen.connections_max",
            settings.listen.connections_max, descriptors.limit, descriptors.connections,
        )  # fmt: skip
    return descriptors

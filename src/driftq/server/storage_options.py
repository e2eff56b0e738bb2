"""From settings to what an engine is opened with: its files, and its archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.engine.archive_bases import ArchiveOptions
from driftq.engine.folder_storage import Archive, StorageOptions
from driftq.settings.loader import SettingsError
from driftq.storage.archive.cloud_objects import BadAddress, open_object_store
from driftq.storage.tiers import TierLimits

if TYPE_CHECKING:
    from driftq.server.storage_settings import ArchiveCopySettings, StorageSettings


def archive_of(chosen: ArchiveCopySettings, storage: StorageSettings) -> Archive | None:
    """The archive that is set. Raises `SettingsError`."""
    if not chosen.url:
        if storage.local_bytes or storage.local_ms:
            raise SettingsError(
                "storage.local_bytes and storage.local_ms: segments can leave this disk only for an archive; set "
                "archive.url"
            )
        return None
    try:
        objects = open_object_store(chosen.url)
    except BadAddress as error:
        raise SettingsError(f"archive.url: {error}") from None
    options = ArchiveOptions(
        mode=chosen.mode,
        interval_ms=chosen.interval_ms,
        base_bytes=chosen.base_bytes,
        base_ms=chosen.base_ms,
        retain_ms=chosen.retain_ms,
        backlog_bytes_max=chosen.backlog_bytes_max,
    )
    return Archive(objects, options)


def storage_options(chosen: StorageSettings, batch_bytes: int, open_files: int) -> StorageOptions:
    segment_bytes = chosen.segment_bytes
    # A journal segment always takes the largest frame: room for it is known before a byte of it is written.
    journal_bytes = max(segment_bytes, 3 * batch_bytes)
    return StorageOptions(
        journal_bytes, segment_bytes, chosen.cache_bytes, open_files,
        tier=TierLimits(chosen.local_bytes, chosen.local_ms), cold_cache_bytes=chosen.cold_cache_bytes,
    )  # fmt: skip

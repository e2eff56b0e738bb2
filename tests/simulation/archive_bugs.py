"""Planted bugs that only a broker with an archive has: `tests.simulation.archive` must notice them."""

from __future__ import annotations

from tests.simulation.planted import Bug

ARCHIVE_BUGS: dict[str, tuple[Bug, ...]] = {
    "shipped_before_it_is_durable": (
        Bug("storage.journal_reader:JournalReader.read", "if self.lsn >= end.lsn:", "if self._is_at_the_end():"),
        Bug(
            "storage.journal_reader:JournalReader.read",
            "limit = end.position if is_last else self._segment.size_bytes",
            "limit = self._segment.size_bytes",
        ),
        Bug("storage.journal_reader:JournalReader.read", "raise self._damaged(end.lsn)", "return None"),
        Bug("storage.journal_reader:JournalReader.read", "self._is_at_the_end()", "False"),
    ),
    "generation_reused": (
        Bug(
            "storage.archive.writer:ArchiveWriter.attach",
            "end_lsn, end_crc = self._seal(present, name)",
            "name = present.head; end_lsn, end_crc = present.next_lsn - 1, present.next_crc",
        ),
    ),
    "head_not_sealed": (
        Bug(
            "storage.archive.writer:ArchiveWriter._seal",
            "self._objects.put_new(chunk_key(present.head, lsn), seal)",
            "pass",
        ),
    ),
    "manifest_overwritten_by_a_zombie": (
        Bug(
            "storage.archive.writer:ArchiveWriter._replace",
            "(present.head, present.owner) != (self.generation, self._owner)",
            "False",
        ),
        Bug(
            "storage.archive.writer:ArchiveWriter._replace",
            "self.present, self._version = present, version",
            "self._version = version",
        ),
    ),
    "base_without_what_a_file_gained": (
        Bug("storage.archive.bases:BaseCopy._copy", "known.size_bytes == file_seen.size_bytes", "known.pieces"),
    ),
    "trimmed_history_of_a_branch": (
        Bug("storage.archive.history:history_runs", "cut(chunk.run, stretch.last_lsn)", "chunk.run"),
        Bug("storage.archive.history:history_runs", "lsn >= stretch.last_lsn", "0"),
    ),
    "listing_believed": (
        Bug(
            "storage.archive.history:_chunks_of",
            "fetch.result() if fetch is not None else chunk_at(objects, generation, lsn)",
            "fetch.result() if fetch is not None else chunk_at(objects, generation, lsn) if lsn in known else None",
        ),
        Bug("storage.archive.history:_chunks_of", "fetches: dict", "known = set(listed); fetches: dict"),
    ),
    # --- segments that are only in the archive
    "segment_dropped_before_it_is_in_the_archive": (
        Bug(
            "storage.tiers:verified_place",
            "if archived is None or archived.size_bytes != candidate.size_bytes or len(archived.pieces) != 1:",
            "if archived is None or not archived.pieces:",
        ),
        Bug("storage.tiers:verified_place", "archived = inventory", "archived = inventory.files[0] or inventory"),
        Bug("storage.tiers:verified_place", "piece.position or piece.size_bytes != candidate.size_bytes", "False"),
        Bug("storage.tiers:verified_place", "objects.get_range(piece.key, position, size) != data", "False"),
        Bug("storage.tiers:verified_place", "crc != piece.crc", "False"),
    ),
    "segment_dropped_while_a_start_may_cut_it": (
        Bug(
            "storage.log_folder:LogFolder._new_segment",
            "self.segments.append(segment)",
            "self.segments.append(segment); context.closed.make_final(context.closed.take_fresh())",
        ),
    ),
    "tier_file_not_synced": (Bug("storage.tiers:write_tier", 'file.sync("tier.sync")', "pass"),),
    "tier_name_not_synced": (
        Bug("storage.tiers:write_tier", 'disk.sync_folder("tier.sync_folder", path.rpartition("/")[0])', "pass"),
    ),
    "wrong_object_trusted": (Bug("storage.tiers:_batches", "google_crc32c.value(part) != run.crc", "False"),),
    "cold_segment_missing_in_the_base": (Bug("storage.archive.bases:_log_files", "entry.endswith(SUFFIX)", "False"),),
    "cache_serves_what_retention_ended": (
        Bug(
            "storage.file_log_store:FileLogStore.read",
            "max(offset, log.start), min(end_offset, log.end)",
            "offset, min(end_offset, log.end)",
        ),
    ),
    "idle_generation_removed_by_retention": (
        Bug("storage.archive.retention:retained", "generation.name in linked", "generation.name == manifest.head"),
    ),
    "base_without_its_generation": (Bug("storage.archive.retention:_linked", "has_base and ", ""),),
    "deleted_by_a_manifest_that_was_read_before": (
        Bug("storage.archive.retention:retire", "writer.beat()", "present = writer.present; writer.beat()"),
        Bug("storage.archive.retention:retire", "retained(writer.present, since_ms)", "retained(present, since_ms)"),
        Bug("storage.archive.retention:retire", "if kept is not writer.present:", "if kept is not present:"),
    ),
    "lost_reply_taken_for_another_writer": (
        Bug("storage.archive.writer:ArchiveWriter.ship", "if self._objects.get(key) != data:", "if 1:"),
    ),
}

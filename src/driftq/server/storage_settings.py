"""The settings of what is kept and where: files, memory for them, and the archive."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.settings.loader import about

Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0)]


class StorageSettings(Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: Annotated[
        int,
        Meta(ge=64 << 10),
        about("Size of a log's segment file; a journal segment has room for at least three `limits.batch_bytes`."),
    ] = 64 << 20
    cache_bytes: Annotated[Amount, about("Memory for recently appended and read batches.")] = 64 << 20
    open_files: Annotated[Count, about("Log files that are kept open; fewer if the process may open few files.")] = 256
    local_bytes: Annotated[
        Amount,
        about(
            "With an archive: how much of the closed segments of logs stays on this disk; older ones are read from the "
            "archive. 0: all of them stay."
        ),
    ] = 0
    local_ms: Annotated[
        Amount,
        about("With an archive: how old closed segments may be that stay on this disk. 0: however old they are."),
    ] = 0
    cold_cache_bytes: Annotated[
        int, Meta(ge=16 << 20), about("Memory for records that were read back from the archive.")
    ] = 64 << 20


class ArchiveCopySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[archive]`: a copy of everything in object storage."""

    url: Annotated[
        str, about("Where to: `s3://bucket/prefix`, `gs://…`, `az://…` or a folder; empty: there is no archive.")
    ] = ""
    mode: Annotated[
        Literal["async", "sync"],
        about("`async`: replies do not wait for the archive; `sync`: they do, and nothing acknowledged is ever lost."),
    ] = "async"
    interval_ms: Annotated[Milliseconds, about("How often new parts of the journal are shipped in mode `async`.")] = 250
    base_bytes: Annotated[
        Bytes, about("How much of the journal is shipped until the next base; a restore replays what came after it.")
    ] = 256 << 20
    base_ms: Annotated[
        Milliseconds, about("How long until the next base at the latest, if there is something new.")
    ] = 3_600_000
    retain_ms: Annotated[
        Milliseconds, about("How far back every point in time can be restored; older objects are deleted.")
    ] = 7 * 86_400_000
    backlog_bytes_max: Annotated[
        Bytes,
        about(
            "Size of the journal at which it is trimmed although the archive lacks it; the archive then starts over."
        ),
    ] = 16 << 30

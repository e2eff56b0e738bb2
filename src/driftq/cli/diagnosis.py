"""What `driftq doctor` finds out about a machine and a data folder, each finding with its remedy.

A check measures and then judges; what is judged by a number is a function of that number (`judge_…`), so that its
limits can be tested. Nothing is changed: the only file that is written is removed again. What a broker reports about
itself is in `broker_diagnosis`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from driftq import __version__
from driftq.cli.output import size as size_text

if TYPE_CHECKING:
    from driftq.server.settings import Settings

Level = Literal["ok", "warning", "problem"]

GIB = 1 << 30
SPACE_MIN_BYTES = GIB  # less is a problem
SPACE_LOW_RATIO = 0.1  # of the filesystem; less is a warning
SYNC_SLOW_MS = 10.0  # a produce takes at least as long; slower is a warning
SYNC_TOO_SLOW_MS = 100.0
SYNC_BYTES = 4_096
SYNC_COUNT = 200
SYNC_TIME_S = 1.0
SYNC_FAST_MS = 0.01  # no disk is faster
FILES_MAX = 10_000  # whose owner is looked at
IN_MEMORY = {"tmpfs", "ramfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph"}
_TIME_ERROR = 5  # of adjtimex: the clock is not synchronised
PACKAGES = ("msgspec", "google-crc32c", "zstandard", "click", "uvloop", "httptools", "cryptography", "pyspark")


class CheckResult(NamedTuple):
    """What one check found."""

    check: str
    level: Level
    message: str
    remedy: str = ""


def machine_checks(settings: Settings | None) -> Iterator[CheckResult]:
    """Versions, file descriptors and the clock of this machine."""
    yield _versions()
    if settings is not None:
        yield _descriptors(settings)
    finding = _clock()
    if finding is not None:
        yield finding


def folder_checks(data: str) -> Iterator[CheckResult]:
    """The data folder, or the place where it would be made."""
    folder = Path(data).absolute()
    yield from _folder_state(folder)
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    yield judge_filesystem(str(place), _filesystem(place))
    usage = shutil.disk_usage(place)
    yield judge_space(str(place), usage.free, usage.total)
    yield _inodes(place)
    yield _sync_rate(place)


# --- the machine ---


def _versions() -> CheckResult:
    texts = [f"driftq {__version__}", f"Python {sys.version.split()[0]}"]
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            texts.append(f"{name} {metadata.version(name)}")
    return CheckResult("versions", "ok", ", ".join(texts))


def _descriptors(settings: Settings) -> CheckResult:
    import resource  # Unix only

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_descriptors(settings, 1 << 20 if hard == resource.RLIM_INFINITY else hard)


def judge_descriptors(settings: Settings, limit: int) -> CheckResult:
    """Whether a process that may open `limit` files can serve as many connections as the settings say."""
    from driftq.server.descriptors import plan_descriptors
    from driftq.settings.loader import SettingsError

    remedy = "raise it: ulimit -n, LimitNOFILE= of a systemd unit, --ulimit nofile= of a container"
    try:
        plan = plan_descriptors(settings, limit)
    except SettingsError as error:
        return CheckResult("file descriptors", "problem", str(error), remedy)
    wanted = settings.listen.connections_max
    if plan.connections < wanted:
        message = f"a process may open {limit:,} files: enough for {plan.connections:,} of {wanted:,} connections"
        return CheckResult("file descriptors", "warning", message, remedy)
    return CheckResult(
        "file descriptors", "ok", f"a process may open {limit:,} files, enough for {wanted:,} connections"
    )


def _clock() -> CheckResult | None:
    """Whether the kernel knows the clock to be synchronised; None where it cannot be asked."""
    if sys.platform != "linux":
        return None
    buffer = ctypes.create_string_buffer(512)  # a struct timex without requests
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if state == _TIME_ERROR:
        remedy = "run a time service: apt install chrony, or enable systemd-timesyncd (on the host, for a container)"
        return CheckResult("clock", "warning", f"{now}; the system does not know whether this is right", remedy)
    return CheckResult("clock", "ok", f"{now}, synchronised")


# --- the folder ---


def _folder_state(folder: Path) -> Iterator[CheckResult]:
    if not folder.exists():
        parent = next(path for path in folder.parents if path.is_dir())
        if os.access(parent, os.W_OK | os.X_OK):
            yield CheckResult("data folder", "ok", f"{folder} does not exist; `driftq serve` makes it")
        else:
            remedy = f"name another folder with --data, or give this user (id {os.getuid()}) the right to write there"
            yield CheckResult(
                "data folder", "problem", f"{folder} does not exist and cannot be made in {parent}", remedy
            )
        return
    if not folder.is_dir():
        yield CheckResult("data folder", "problem", f"{folder} is not a folder", "name a folder with --data")
        return
    yield _contents(folder)
    yield _permissions(folder)


def _contents(folder: Path) -> CheckResult:
    from driftq.storage.corruption import Damaged, FormatTooNew
    from driftq.storage.data_folder import ForeignFolder, check_free, find_folder, holder_pid
    from driftq.storage.disk import OsDisk

    try:
        check_free(str(folder), [path.name for path in folder.iterdir()])
        data = find_folder(OsDisk(), str(folder))
    except ForeignFolder as error:
        return CheckResult("data folder", "problem", str(error), "name an empty or a new folder with --data")
    except FormatTooNew as error:
        return CheckResult("data folder", "problem", str(error), "run the version that wrote it, or a later one")
    except Damaged as error:
        return CheckResult(
            "data folder", "problem", str(error), "restore the file FORMAT, or the folder, from a backup"
        )
    except PermissionError as error:
        remedy = f"give it to this user (id {os.getuid()}): chown -R {os.getuid()} {folder}"
        return CheckResult("data folder", "problem", f"{error.filename or folder} cannot be read", remedy)
    if data is None:
        return CheckResult("data folder", "ok", f"{folder} is empty; `driftq serve` makes a data folder of it")
    pid = holder_pid(str(folder))
    used = f"in use by process {pid}" if pid else "not in use; `driftq inspect verify` checks every byte of it"
    return CheckResult("data folder", "ok", f"{folder}, format {data.version}, {used}")


def _permissions(folder: Path) -> CheckResult:
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    user = os.getuid()
    if user not in (status.st_uid, 0):
        remedy = f"run as that user, or chown -R {user} {folder}"
        return CheckResult(
            "permissions", "problem", f"{folder} belongs to user id {status.st_uid}, this is {user}", remedy
        )
    some = itertools.islice(folder.rglob("*"), FILES_MAX)
    foreign = next((path for path in some if path.lstat().st_uid != status.st_uid), None)
    if foreign is not None:
        remedy = f"chown -R {status.st_uid} {folder}"
        return CheckResult("permissions", "problem", f"{foreign} belongs to another user than its folder", remedy)
    if mode & 0o077:
        return CheckResult(
            "permissions", "warning", f"other users can open {folder} (mode {mode:o})", f"chmod 700 {folder}"
        )
    return CheckResult("permissions", "ok", f"only user id {status.st_uid} can open {folder}")


def _filesystem(place: Path) -> str:
    """The kind of the filesystem that holds a folder; empty where the system has no list of them."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    kinds = {point.replace("\\040", " "): kind for _, point, kind, *_ in mounts}
    return next((kinds[str(path)] for path in (place.resolve(), *place.resolve().parents) if str(path) in kinds), "")


def judge_filesystem(place: str, kind: str) -> CheckResult:
    if kind in IN_MEMORY:
        remedy = "name a folder on a disk with --data"
        return CheckResult(
            "filesystem", "problem", f"{place} is in memory ({kind}): a restart of the machine ends it", remedy
        )
    if kind in REMOTE:
        remedy = "use a disk of this machine: locks and syncs over a network are slower and less certain"
        return CheckResult("filesystem", "warning", f"{place} is on another machine ({kind})", remedy)
    if kind == "overlay":
        remedy = "mount a volume for the data: this layer goes with the container"
        return CheckResult("filesystem", "warning", f"{place} is in the container's own layer", remedy)
    return CheckResult("filesystem", "ok", f"{place} is on {kind or 'a filesystem of unknown kind'}")


def judge_space(place: str, free_bytes: int, total_bytes: int) -> CheckResult:
    message = f"{size_text(free_bytes)} of {size_text(total_bytes)} are free at {place}"
    remedy = "free some, or use a larger disk: twice what is kept, two journal segments and two snapshots"
    if free_bytes < SPACE_MIN_BYTES:
        return CheckResult("disk space", "problem", message, remedy)
    level: Level = "warning" if free_bytes < SPACE_LOW_RATIO * total_bytes else "ok"
    return CheckResult("disk space", level, message, remedy if level == "warning" else "")


def _inodes(place: Path) -> CheckResult:
    status = os.statvfs(place)
    if status.f_files and status.f_favail < 10_000:
        remedy = "remove small files, or make the filesystem with more inodes"
        return CheckResult("files", "warning", f"the filesystem has room for {status.f_favail:,} more files", remedy)
    return CheckResult("files", "ok", "the filesystem has room for many more files")


def _sync_rate(place: Path) -> CheckResult:
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".driftq-doctor-", buffering=0) as file:
            times_ms = _sync_times(file.fileno())
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        return CheckResult("fsync", "problem", f"{place} cannot be written: {reason}", "see the findings above")
    return judge_sync(times_ms)


def _sync_times(descriptor: int) -> list[float]:
    """How long writing and syncing one page takes, again and again for a second. The file has its size before, as a
    journal segment does."""
    os.pwrite(descriptor, bytes(SYNC_BYTES * SYNC_COUNT), 0)
    os.fsync(descriptor)
    times_ms: list[float] = []
    end_s = time.perf_counter() + SYNC_TIME_S
    while len(times_ms) < SYNC_COUNT and (not times_ms or time.perf_counter() < end_s):
        started_s = time.perf_counter()
        os.pwrite(descriptor, os.urandom(SYNC_BYTES), SYNC_BYTES * len(times_ms))
        getattr(os, "fdatasync", os.fsync)(descriptor)
        times_ms.append((time.perf_counter() - started_s) * 1_000)
    return times_ms


def judge_sync(times_ms: list[float]) -> CheckResult:
    ordered = sorted(times_ms)
    median_ms, slow_ms = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    message = f"{1_000 / median_ms:,.0f} syncs a second (median {median_ms:.2f} ms, 99 % within {slow_ms:.1f} ms)"
    remedy = "every write waits for one: use a local SSD or NVMe, and no disk that others keep busy"
    if median_ms < SYNC_FAST_MS:
        doubt = "is the folder in memory, or are syncs turned off (nobarrier, a hypervisor's cache)?"
        return CheckResult("fsync", "warning", f"{message}: no disk is so fast", doubt)
    if median_ms > SYNC_TOO_SLOW_MS:
        return CheckResult("fsync", "problem", message, remedy)
    return (
        CheckResult("fsync", "warning", message, remedy)
        if median_ms > SYNC_SLOW_MS
        else CheckResult("fsync", "ok", message)
    )

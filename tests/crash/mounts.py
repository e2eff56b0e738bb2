"""Small filesystems that tests fill, break or cut the power of. Mounting needs root.

Each mount is undone by the name of its folder; the kernel chooses the loop device and frees it. Without the privilege a
test fails in CI and is skipped elsewhere. `DRIFTQ_WITHOUT_MOUNTS=1` declares that the machine cannot mount.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wait import until_now

EXT4_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
WITHOUT_FLUSH = 2
DETACHED_S = 1.0


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def not_here(reason: str, profile: str) -> None:
    """Skips the test, or fails it in CI."""
    if profile == "dev" or os.environ.get("DRIFTQ_WITHOUT_MOUNTS") == "1":
        pytest.skip(reason)
    pytest.fail(f"{reason}. CI must be able to do this; DRIFTQ_WITHOUT_MOUNTS=1 gives it up knowingly.")


@contextlib.contextmanager
def tmpfs(folder: Path, size_bytes: int, profile: str) -> Iterator[Path]:
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    except OSError as error:
        not_here(f"a tmpfs cannot be mounted here: {error}", profile)
    try:
        yield folder
    finally:
        run("umount", "--lazy", str(folder))


class PowerCut:
    """An ext4 filesystem in an image file, whose power can be cut: unsynced data is lost."""

    def __init__(self, folder: Path, size_bytes: int, profile: str) -> None:
        self.image = folder / "image"
        self.at = folder / "mounted"
        self.at.mkdir()
        with self.image.open("wb") as file:
            file.truncate(size_bytes)
        try:
            run("mkfs.ext4", "-q", "-F", str(self.image))
            self.mount()
        except OSError as error:
            not_here(f"an ext4 image cannot be mounted here: {error}", profile)

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self.image), str(self.at))

    def unmount(self) -> None:
        run("umount", str(self.at))

    def detach(self) -> None:
        """Unmount although a process still has a file open, as Java may until it collects garbage. It keeps the old
        filesystem, in which nothing can be written; `mount_again` mounts a copy then."""
        run("umount", "--lazy", str(self.at))

    def mount_again(self) -> None:
        """Mount the filesystem again after a cut. A process with a mount namespace of its own (a sandbox, say) may hold
        the filesystem that we have unmounted. Mounting its device would bring the same one back, shut down, and every
        file in it would meet EIO. Then a copy of the image is mounted: what the cut left is the same in it."""
        try:
            until_now(self.is_detached, DETACHED_S)
        except AssertionError:
            held, self.image = self.image, self.image.with_name(f"{self.image.name}+")
            run("cp", "--sparse=always", str(held), str(self.image))
            held.unlink()
        self.mount()

    def is_detached(self) -> bool:
        """Whether the kernel has released the image."""
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # it was freed just now
                if backing.read_text().strip() == str(self.image):
                    return False
        return True

    def cut(self, profile: str) -> None:
        """Stop the filesystem at once, without writing anything more."""
        fd = os.open(self.at, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        except OSError as error:
            not_here(f"this kernel does not let ext4 be shut down: {error}", profile)
        finally:
            os.close(fd)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.at)], capture_output=True, check=False)
        self.image.unlink(missing_ok=True)

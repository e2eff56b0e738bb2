"""A real S3 server for tests: SeaweedFS, from a wheel, with its data in a temporary folder."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.support.wait import until_now

START_S = 60.0
STARTS_MAX = 4
ACCESS_KEY, SECRET_KEY = "driftq-test", "driftq-test-secret"
READ_ONLY_KEY, READ_ONLY_SECRET = "driftq-reader", "driftq-reader-secret"


@dataclass(frozen=True)
class S3Server:
    """Where it listens, and the environment that a client of it needs."""

    endpoint: str
    filer: str

    def environment(self, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_REGION": "us-east-1",
        }

    def reader_environment(self) -> dict[str, str]:
        """Of a client that may read and not write."""
        return self.environment(READ_ONLY_KEY, READ_ONLY_SECRET)

    def make_bucket(self, name: str) -> None:
        """A bucket is a folder of the file server under it."""
        urlopen(Request(f"{self.filer}/buckets/{name}/", method="POST"), timeout=10).close()


def _free_ports(count: int) -> list[int]:
    """Ports below the ephemeral range, whose gRPC twins (+10,000) are free, too."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(11_000, 22_000)
        if port not in ports and all(_is_free(number) for number in (port, port + 10_000)):
            ports.append(port)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _identity(name: str, key: str, secret: str, actions: list[str]) -> dict[str, object]:
    return {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server with two clients: one that may do everything, one that may only read."""
    folder = Path(tempfile.mkdtemp(prefix="driftq-s3-"))
    identities = [
        _identity("writer", ACCESS_KEY, SECRET_KEY, ["Admin", "Read", "Write", "List", "Tagging"]),
        _identity("reader", READ_ONLY_KEY, READ_ONLY_SECRET, ["Read", "List"]),
    ]
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    process: subprocess.Popen[bytes] | None = None
    try:
        for attempt in range(STARTS_MAX):
            process, server = _start(folder / str(attempt), folder / "s3.json")
            if _becomes_ready(process, server):
                break
            process.kill()
            process.wait()
        else:
            raise AssertionError((folder / str(attempt) / "log").read_text()[-2_000:])
        yield server
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, config: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    folder.mkdir()
    master, volume, filer, s3 = _free_ports(4)
    program = Path(sys.executable).parent / "weed"
    arguments = [
        "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}",
        f"-volume.port={volume}", "-volume.max=20", "-master.volumeSizeLimitMB=512", "-filer", f"-filer.port={filer}",
        "-s3", f"-s3.port={s3}", f"-s3.config={config}",
        "-s3.port.iceberg=0", "-s3.port.lance=0",  # catalogs on fixed ports, which a second server would not get
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log, cwd=folder)
    return process, S3Server(f"http://127.0.0.1:{s3}", f"http://127.0.0.1:{filer}")


def _becomes_ready(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    """False if it ended: another process took one of its ports in the meantime."""

    def answers() -> bool:
        if process.poll() is not None:
            return True
        try:
            urlopen(f"{server.endpoint}/healthz", timeout=1).close()
            urlopen(Request(f"{server.filer}/probe", data=b"stored", method="PUT"), timeout=5).close()
        except (HTTPError, URLError, OSError):
            return False
        return True

    until_now(answers, START_S, pause_s=0.1)
    return process.poll() is None

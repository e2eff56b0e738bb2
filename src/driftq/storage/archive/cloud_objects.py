"""Objects in S3, Google Cloud Storage or Azure, through `obstore`; and which store an address means.

    s3://bucket/prefix     AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, …
    gs://bucket/prefix     GOOGLE_SERVICE_ACCOUNT, …
    az://container/prefix  AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, …
    /mnt/archive           a folder (`storage.archive.folder_objects`)

Credentials come from the environment, under the names that the provider's own tools use, or from the machine's role.

`obstore` repeats a request by itself a few times. A repeated `put_new` whose first attempt got through reports
`ObjectExists`; the seam's contract leaves that to the caller.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import google_crc32c
import obstore
from obstore import exceptions
from obstore.store import from_url

from driftq.storage.archive.folder_objects import FolderObjects
from driftq.storage.archive.object_store import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    Reason,
    StoredObject,
    VersionChanged,
    Versioned,
)

if TYPE_CHECKING:
    from driftq.storage.cold_segments import ColdPlace

SCHEMES = ("s3", "gs", "az")
TIMEOUT = timedelta(seconds=30)
RETRY_TIMEOUT = timedelta(seconds=10)
_LIST_ROWS = 1_000
PIECE_BYTES = 4 << 20  # of a whole segment, read at once
# Parts of messages, in lower case, and what they mean. The first that fits counts.
_SIGNS: tuple[tuple[str, Reason], ...] = (
    ("nosuchbucket", "no_bucket"),
    ("containernotfound", "no_bucket"),
    ("invalidaccesskeyid", "denied"),
    ("signaturedoesnotmatch", "denied"),
    ("accessdenied", "denied"),
    ("credential", "denied"),
    ("quotaexceeded", "full"),
    ("507", "full"),
    ("no space left", "full"),
    ("slowdown", "throttled"),
    ("429", "throttled"),
    ("error sending request", "unreachable"),
    ("connect", "unreachable"),
    ("timed out", "unreachable"),
)


class BadAddress(ValueError):
    """The address of an archive names no object store."""


def open_object_store(url: str) -> ObjectStore:
    """The object store at an address. Nothing is read or written. Raises `BadAddress`."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        if not url or scheme.partition(":")[0] in SCHEMES:
            raise BadAddress(f"{url!r} is no address of an archive: s3://bucket/prefix, or a folder")
        return FolderObjects(os.path.abspath(url))
    parts = urlsplit(url)
    if scheme not in SCHEMES or not parts.hostname or parts.query or parts.fragment:
        known = ", ".join(f"{name}://bucket/prefix" for name in SCHEMES)
        raise BadAddress(f"{url!r} is no address of an archive: use {known}, or the path of a folder")
    if parts.username or parts.password:
        raise BadAddress("credentials do not belong into the address of an archive: set them in the environment")
    return CloudObjects(url.rstrip("/"))


class CloudObjects:
    """Objects below one prefix of a bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        options: Any = {"timeout": TIMEOUT, "connect_timeout": timedelta(seconds=5)}
        config: Any = {}
        if url.startswith("s3://"):
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
            if endpoint:
                config = {"endpoint": endpoint, "virtual_hosted_style_request": False}
                options["allow_http"] = endpoint.startswith("http://")
            config.setdefault(
                "region", os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
            )
            config["conditional_put"] = "etag"
        retries: Any = {"max_retries": 2, "retry_timeout": RETRY_TIMEOUT}
        with _translated():
            self._store: Any = from_url(url, config=config, client_options=options, retry_config=retries)

    def put_new(self, key: str, data: bytes) -> None:
        with _translated(key):
            obstore.put(self._store, key, data, mode="create", use_multipart=False)

    def get(self, key: str) -> bytes:
        return self.get_versioned(key).data

    def get_range(self, key: str, position: int, size: int) -> bytes:
        if not size:
            return b""
        with _translated(key):
            return bytes(obstore.get_range(self._store, key, start=position, length=size))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with _translated():
            for rows in obstore.list(self._store, prefix.rstrip("/") or None, chunk_size=_LIST_ROWS):
                for row in sorted(rows, key=lambda row: row["path"]):
                    yield StoredObject(row["path"], row["size"])

    def delete(self, key: str) -> None:
        with contextlib.suppress(ObjectMissing), _translated(key):
            obstore.delete(self._store, key)

    def get_versioned(self, key: str) -> Versioned:
        with _translated(key):
            result = obstore.get(self._store, key)
            version = result.meta["e_tag"] or ""
            return Versioned(bytes(result.bytes()), f"{version} {result.meta.get('version') or ''}".strip())

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        mode: Any = "create"
        if version is not None:
            e_tag, _, number = version.partition(" ")
            mode = {"e_tag": e_tag, "version": number} if number else {"e_tag": e_tag}
        with _translated(key, replaces=True):
            result = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
            return f"{result['e_tag'] or ''} {result.get('version') or ''}".strip()


@contextlib.contextmanager
def _translated(key: str = "", *, replaces: bool = False) -> Iterator[None]:
    """Errors of `obstore` as errors of the seam."""
    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
        raise (VersionChanged(key) if replaces else ObjectExists(key)) from error
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        if "nosuchbucket" in _plain(error) or not key:
            raise ObjectStoreError("no_bucket", _first_line(error)) from error
        if replaces:
            raise VersionChanged(key) from error
        raise ObjectMissing(key) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise ObjectStoreError("denied", _first_line(error)) from error
    except (exceptions.BaseError, OSError, ValueError) as error:
        text = _plain(error)
        reason: Reason = next((reason for sign, reason in _SIGNS if sign in text), "failed")
        raise ObjectStoreError(reason, _first_line(error)) from error


def _plain(error: Exception) -> str:
    return str(error).lower().replace(" ", "").replace("errorsendingrequest", "error sending request")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]


# --- the whole file of a segment that is only in the archive, for a copy that must stand alone ---


class ArchivedBytesAway(Exception):
    """They cannot be had now."""


def archived_bytes(place: ColdPlace) -> Iterator[bytes]:
    """Its bytes, in pieces. A wrong checksum is noticed at the end. Raises `ArchivedBytesAway`."""
    crc = 0
    try:
        objects = open_object_store(place.url)
        for position in range(0, place.size_bytes, PIECE_BYTES):
            data = objects.get_range(place.key, position, min(PIECE_BYTES, place.size_bytes - position))
            crc = google_crc32c.extend(crc, data)
            yield data
    except (ObjectStoreError, BadAddress) as error:
        reason = f"a segment is only in the archive {place.url}, which cannot be read: {error}"
        raise ArchivedBytesAway(reason) from error
    except ObjectMissing as error:
        reason = f"{error} is missing in the archive {place.url}; see `driftq archive verify`"
        raise ArchivedBytesAway(reason) from error
    if crc != place.crc:
        raise ArchivedBytesAway(f"{place.key} in the archive {place.url} is not what was archived")

"""TLS of a listener: a context made from files, the files looked at again, and the certificate of a client.

    certificate, key, client CA ──load──▶ LoadedTls ──▶ Listener.use_tls: for new connections
              ▲                                         (those that are open keep the context they have)
              └── ListenerTls looks at the files once a second

Files that cannot be used are reported and change nothing: a program that renews a certificate writes its two files one
after the other, and between the two they do not fit. Knows nothing of settings.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from cryptography import x509

logger = logging.getLogger("driftq.tls")

INTERVAL_S = 1.0
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2: forward secrecy and authenticated encryption only
ClientAuth = Literal["required", "optional"]
Signature = tuple[tuple[int, int, int] | None, ...]

_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC", "userId": "UID",
}  # fmt: skip


class TlsUnusable(Exception):
    """The files cannot be used; the message names the file and the reason."""


class TlsFiles(NamedTuple):
    """Where the certificates are, and what is demanded of clients."""

    certificate: str
    key: str
    version_min: str = "1.2"
    client_ca: str = ""  # empty: no client certificate is asked for
    client_auth: ClientAuth = "required"

    def signature(self) -> Signature:
        """Changes when a file is replaced or written."""
        return tuple(map(_file_signature, filter(None, (self.certificate, self.key, self.client_ca))))


class LoadedTls(NamedTuple):
    """A context for connections, and when its certificate expires (Unix time)."""

    context: ssl.SSLContext
    not_after_s: float


class PeerCertificate(NamedTuple):
    """Whom the verified certificate of a client names."""

    subject: str  # as in RFC 4514, the most specific part first: CN=worker-1,O=Acme
    common_name: str
    names: tuple[str, ...]  # alternative names with their kind: DNS:worker-1.acme.example, URI:spiffe://acme/worker
    not_after_s: float = math.inf  # when it expires (Unix time)


def load(files: TlsFiles) -> LoadedTls:
    """A context from the files as they are now. Raises `TlsUnusable`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[files.version_min]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    not_after_s = _expiry(files.certificate)
    try:
        context.load_cert_chain(files.certificate, files.key, _no_password)
    except FileNotFoundError:
        raise TlsUnusable(f"there is no key at {files.key}") from None
    except ssl.SSLError as error:
        reason = "the key does not belong to the certificate" if "MISMATCH" in str(error) else str(error)
        raise TlsUnusable(f"{files.certificate} and {files.key} cannot be used: {reason}") from None
    except OSError as error:
        raise TlsUnusable(f"{files.key} cannot be read: {error.strerror}") from None
    if files.client_ca:
        _ask_for_certificates(context, files)
    return LoadedTls(context, not_after_s)


def _ask_for_certificates(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_verify_locations(files.client_ca)
    except ssl.SSLError as error:
        raise TlsUnusable(f"{files.client_ca} has no certificate of an authority: {error}") from None
    except OSError as error:
        raise TlsUnusable(f"{files.client_ca} cannot be read: {error.strerror}") from None
    context.verify_mode = ssl.CERT_REQUIRED if files.client_auth == "required" else ssl.CERT_OPTIONAL
    # A resumed session would skip the check of the certificate, also after its authority was removed.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _expiry(path: str) -> float:
    try:
        certificates = x509.load_pem_x509_certificates(Path(path).read_bytes())
    except OSError as error:
        raise TlsUnusable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise TlsUnusable(f"there is no PEM certificate in {path}") from None
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)


def _no_password() -> NoReturn:
    raise TlsUnusable("the key is protected by a passphrase; store it without one, readable by the broker's user only")


def _file_signature(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # follows links, as containers use them for secrets
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def peer_certificate(decoded: dict[str, Any] | None) -> PeerCertificate | None:
    """The certificate of a client, from what `SSLObject.getpeercert` returns; None if it has none."""
    if not decoded:
        return None
    parts = [(name, value) for group in decoded.get("subject", ()) for name, value in group]
    subject = ",".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in reversed(parts))
    common_name = next((value for name, value in parts if name == "commonName"), "")
    names = tuple(f"{kind}:{value}" for kind, value in decoded.get("subjectAltName", ()))
    not_after = decoded.get("notAfter")
    not_after_s = float(ssl.cert_time_to_seconds(not_after)) if not_after is not None else math.inf
    return PeerCertificate(subject, common_name, names, not_after_s)


def _escaped(value: str) -> str:
    """A value of a subject in which a comma or a plus cannot pass for a separator."""
    return "".join(f"\\{character}" if character in ',+"\\<>;=' else character for character in value)


class ListenerTls:
    """The TLS of one listener: loaded at once, and again when the files change. Raises `TlsUnusable`."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._signature = files.signature()  # of the files that were loaded, or refused, last
        self._task: asyncio.Task[None] | None = None
        self.context, self.not_after_s = load(files)

    def follow(self, use: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        """Look at the files until `close`. `use` serves new connections with the context that is given to it."""
        self._task = asyncio.get_running_loop().create_task(self._run(use))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, use: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._look(use)

    async def _look(self, use: Callable[[ssl.SSLContext], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        signature = await loop.run_in_executor(None, self._files.signature)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            context, not_after_s = await loop.run_in_executor(None, load, self._files)
        except TlsUnusable as error:
            logger.error("the TLS files changed and cannot be used; those from before stay in use: %s", error)
            return
        await use(context)
        self.context, self.not_after_s = context, not_after_s
        logger.info("new TLS files are in use for new connections: %s", self._files.certificate)

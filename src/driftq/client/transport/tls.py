"""TLS of the client: whom it trusts, the certificate it shows, and what a failed handshake means.

    files of `ClientTls` ──▶ TlsContext.current() ──▶ an SSLContext for the next connection

Without a file of its own the client trusts the authorities of the system, or those that SSL_CERT_FILE and SSL_CERT_DIR
name. The files are read again when they change: certificates that live for an hour are renewed under a running worker.
Knows no sockets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from driftq.client.errors import DriftQError, InvalidCall, NotConnected, OutcomeUnknown

if TYPE_CHECKING:
    import ssl

# Reasons of OpenSSL with which a proxy ends a connection whose client certificate it does not accept. With TLS 1.3 the
# client's side of the handshake is over by then, and the first read reports it. A broker just closes the connection.
_REFUSED = (
    "CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_CERTIFICATE_UNKNOWN", "ALERT_CERTIFICATE_REVOKED", "ALERT_ACCESS_DENIED",
)  # fmt: skip
_ADVICE = (
    "name a certificate of an authority that it trusts, and its key: certificate= and key=, or DRIFTQ_CERTIFICATE and "
    "DRIFTQ_KEY"
)


class ClientTls(NamedTuple):
    """PEM files. Empty ones: the authorities of the system, and no certificate."""

    ca: str = ""
    certificate: str = ""
    key: str = ""  # empty: it is in the file of the certificate

    def environment(self) -> dict[str, str]:
        """The variables that name these files."""
        names = {"DRIFTQ_CA": self.ca, "DRIFTQ_CERTIFICATE": self.certificate, "DRIFTQ_KEY": self.key}
        return {name: path for name, path in names.items() if path}

    def or_else(self, other: ClientTls) -> ClientTls:
        """These files, and the other ones where there is none."""
        ca = self.ca or other.ca
        own = self if self.certificate else other
        return ClientTls(ca, own.certificate, own.key)


def tls_from(environment: Mapping[str, str] = os.environ) -> ClientTls:
    return ClientTls(
        environment.get("DRIFTQ_CA", ""), environment.get("DRIFTQ_CERTIFICATE", ""), environment.get("DRIFTQ_KEY", "")
    )


class TlsContext:
    """The context for new connections of one transport."""

    def __init__(self, files: ClientTls) -> None:
        self._files = files
        self._signature = _signature(files)
        self._context = _new_context(files)

    def current(self) -> ssl.SSLContext:
        """The context from the files as they are now. Files that cannot be used change nothing."""
        signature = _signature(self._files)
        if signature != self._signature:
            try:
                self._context = _new_context(self._files)
            except InvalidCall:
                return self._context  # half of a change: the next connection looks again
            self._signature = signature
        return self._context


def _signature(files: ClientTls) -> list[tuple[int, int, int] | None]:
    signatures: list[tuple[int, int, int] | None] = []
    for path in filter(None, files):
        try:
            status = Path(path).stat()
            signatures.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            signatures.append(None)
    return signatures


def _new_context(files: ClientTls) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415  # costs 25 ms: only for https

    try:
        context = ssl.create_default_context(cafile=files.ca or None)
    except ssl.SSLError as error:
        raise InvalidCall(f"there is no PEM certificate in {files.ca} ({error})") from None
    except OSError as error:
        raise InvalidCall(f"the file of authorities {files.ca} cannot be read: {error.strerror}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        try:
            context.load_cert_chain(files.certificate, files.key or None, "")
        except ssl.SSLError as error:
            names = f"{files.certificate} and {files.key}" if files.key else files.certificate
            raise InvalidCall(f"{names}: no certificate with its key ({error})") from None
        except OSError as error:
            names = f"{files.certificate} or {files.key}" if files.key else files.certificate
            raise InvalidCall(f"the client certificate cannot be read from {names}: {error.strerror}") from None
    return context


# --- errors ---


def not_connected(url: str, error: OSError) -> NotConnected:
    """No connection to `url` could be made."""
    import ssl  # noqa: PLC0415  # costs 25 ms: only when a connection has failed

    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "its certificate is not trusted; name its authority with ca=, DRIFTQ_CA or SSL_CERT_FILE (a PEM file)"
        return NotConnected(f"no trusted broker at {url} ({error}); {advice}")
    if isinstance(error, ssl.SSLError):
        if _is_refusal(error):
            return NotConnected(f"the broker at {url} refused this client's certificate ({error}); {_ADVICE}")
        if isinstance(error, ssl.SSLEOFError):
            return NotConnected(
                f"the server at {url} ended the TLS handshake ({error}); if it requires certificates of its clients, "
                f"{_ADVICE}; if it has no certificate itself, its URL begins with http://"
            )
        return NotConnected(f"no TLS at {url} ({error}); a broker without a certificate has an http:// URL")
    return NotConnected(f"no broker answers at {url} ({error}); start one with `driftq serve`")


def closed_early(*, is_new_tls: bool) -> OutcomeUnknown:
    """The broker closed a connection in place of a reply. `is_new_tls`: this would have been the first one over TLS."""
    return OutcomeUnknown(f"the broker closed the connection before the reply was complete{_perhaps(is_new_tls)}")


def connection_broke(moment: str, error: BaseException, *, is_new_tls: bool) -> DriftQError:
    """A connection broke at a moment of an exchange. If it did because the broker does not accept the client's
    certificate, then nothing was read of the request.

    With TLS 1.3 the client sends its request before the broker has judged the certificate. A broker that closes a
    socket with bytes that it has not read resets the connection, and a reset discards the alert that gave the reason.
    So the end of a new connection means the same whether it arrives as a close or as a reset."""
    if _is_refusal(error):
        return NotConnected(f"the broker refused this client's certificate ({error}); {_ADVICE}")
    return OutcomeUnknown(f"the connection broke {moment}: {error}{_perhaps(is_new_tls)}")


def _perhaps(is_new_tls: bool) -> str:
    return f"; if it requires certificates of its clients, {_ADVICE}" if is_new_tls else ""


def _is_refusal(error: BaseException) -> bool:
    reason = getattr(error, "reason", None)
    return isinstance(reason, str) and any(word in reason for word in _REFUSED)

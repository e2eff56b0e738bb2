"""An authority for tests that signs certificates of servers on this machine and of clients."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path
    serial: int


class Authority:
    """Signs certificates; its own is in `ca`."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key(), 30)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca = folder / f"{name.replace(' ', '-')}.pem"
        self.ca.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "server", *, days: int = 2) -> CertificateFiles:
        """A certificate for 127.0.0.1 and localhost. The same name replaces the files, each in one step."""
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        return self._issue(name, subject, names, days)

    def client(self, name: str, organization: str = "Acme, Inc.") -> CertificateFiles:
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        uri = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://acme/{name}")])
        return self._issue(name, subject, uri, 2)

    def _issue(
        self, name: str, subject: x509.Name, alternative: x509.SubjectAlternativeName, days: int
    ) -> CertificateFiles:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key(), days).add_extension(alternative, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        files = CertificateFiles(self.folder / f"{name}.pem", self.folder / f"{name}.key", signed.serial_number)
        plain = serialization.NoEncryption()
        pkcs8 = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        replace(files.certificate, signed.public_bytes(serialization.Encoding.PEM))
        replace(files.key, pkcs8)
        return files


def replace(path: Path, data: bytes) -> None:
    """Write a file beside its place and move it there, as programs that renew certificates do."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + days * DAY)
    )

"""TLS: versions, certificates that change under a running broker, client certificates, and how clients say whom they
trust."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

import driftq
from driftq.cli.exit_codes import Exit
from driftq.cli.main import main
from driftq.server.http import Response
from driftq.server.http.tls import TlsFiles, TlsUnusable, load
from tests.support.certificates import Authority, CertificateFiles, replace
from tests.support.server import Server, running
from tests.support.wait import until_now
from tests.unit.server.http.listener_fixture import PATIENCE_S, Wire
from tests.unit.server.http.listener_fixture import running as listening

ONCE = driftq.RetryOptions(20_000, 20_000, backoff_ms=60_000, backoff_max_ms=60_000, first_contact_ms=0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(files: CertificateFiles, *more: str) -> tuple[str, ...]:
    return (f"listen.tls_certificate={files.certificate}", f"listen.tls_key={files.key}", *more)


def url(server: Server) -> str:
    return f"https://127.0.0.1:{server.port}"


def secured(server: Server, context: ssl.SSLContext) -> Wire:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
    return Wire(context.wrap_socket(raw, server_hostname="127.0.0.1"))


def serial(wire: Wire) -> int:
    assert isinstance(wire.sock, ssl.SSLSocket)
    certificate = wire.sock.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def healthy(wire: Wire) -> bool:
    return bool(wire.ask(get("/v1/healthz"))[0] == 200)


# --- the broker's certificate ---


def test_a_new_certificate_is_used_for_new_connections_and_no_connection_is_dropped(authority: Authority) -> None:
    old = authority.server()
    trust = ssl.create_default_context(cafile=str(authority.ca))
    failures: list[BaseException] = []
    stop = threading.Event()
    handshakes = 0

    def connect_again_and_again(server: Server) -> None:
        nonlocal handshakes
        while not stop.is_set():
            try:
                with secured(server, trust) as wire:
                    assert healthy(wire)
                handshakes += 1
            except BaseException as error:
                failures.append(error)

    with running(None, *settings(old)) as server, secured(server, trust) as kept:
        assert (healthy(kept), serial(kept)) == (True, old.serial)
        visitor = threading.Thread(target=connect_again_and_again, args=(server,))
        visitor.start()
        try:
            # Half of a renewal: a key that does not belong to the certificate, then one that does.
            stray = authority.server("stray")
            replace(old.key, stray.key.read_bytes())
            assert server.process.stderr is not None
            assert "the key does not belong to the certificate" in server.process.stderr.readline()
            with secured(server, trust) as wire:
                assert (healthy(wire), serial(wire)) == (True, old.serial)
            new = authority.server()

            def is_new() -> bool:
                with secured(server, trust) as wire:
                    return healthy(wire) and serial(wire) == new.serial

            until_now(is_new, 30)
            enough = handshakes + 20
            until_now(lambda: handshakes >= enough or bool(failures), 30)
        finally:
            stop.set()
            visitor.join()
        assert not failures, failures[:3]
        assert healthy(kept), "a connection from before the change is still served"
        assert serial(kept) == old.serial
        with driftq.connect(url(server), ca=str(authority.ca)) as broker:
            assert broker.healthy()
    assert any("new TLS files are in use" in line for line in server.lines)


def test_the_expiry_of_the_certificate_is_a_metric(authority: Authority) -> None:
    trust = ssl.create_default_context(cafile=str(authority.ca))
    with running(None, *settings(authority.server(days=3))) as server, secured(server, trust) as wire:
        page = wire.ask(get("/v1/metrics"))[2].decode()
    expiry_s = float(re.findall(r"^driftq_tls_certificate_expiry_seconds (\S+)$", page, re.MULTILINE)[0])
    taken = subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True)
    assert 2.9 * 86_400 < expiry_s - int(taken.stdout) < 3.1 * 86_400


@pytest.mark.parametrize(("lowest", "served"), [("1.2", True), ("1.3", False)])
def test_the_lowest_version_of_tls_is_a_setting(authority: Authority, lowest: str, served: bool) -> None:
    old = ssl.create_default_context(cafile=str(authority.ca))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with running(None, *settings(authority.server(), f"listen.tls_version_min={lowest}")) as server:
        if served:
            with secured(server, old) as wire:
                assert healthy(wire)
                assert isinstance(wire.sock, ssl.SSLSocket)
                cipher = wire.sock.cipher()
                assert cipher is not None
                assert cipher[0].startswith("ECDHE")
        else:
            with pytest.raises(ssl.SSLError):
                secured(server, old)
        with secured(server, ssl.create_default_context(cafile=str(authority.ca))) as wire:
            assert healthy(wire)


def test_files_that_cannot_be_used_are_refused_at_the_start_with_the_reason(authority: Authority) -> None:
    files, stray = authority.server(), authority.server("stray")
    garbage = authority.folder / "garbage.pem"
    garbage.write_text("not a certificate")
    protected = authority.folder / "protected.key"
    command = ["openssl", "ec", "-in", files.key, "-aes256", "-passout", "pass:secret", "-out", protected]
    subprocess.run(command, check=True, capture_output=True)
    nowhere = str(authority.folder / "nowhere.pem")
    for changed, reason in (
        ({"certificate": nowhere}, "nowhere.pem cannot be read: No such file"),
        ({"certificate": str(garbage)}, "no PEM certificate in"),
        ({"key": nowhere}, "no key at"),
        ({"key": str(stray.key)}, "the key does not belong to the certificate"),
        ({"key": str(protected)}, "protected by a passphrase"),
        ({"client_ca": nowhere}, "nowhere.pem cannot be read"),
        ({"client_ca": str(garbage)}, "has no certificate of an authority"),
    ):
        with pytest.raises(TlsUnusable, match=reason):
            load(TlsFiles(str(files.certificate), str(files.key))._replace(**changed))
    ended = CliRunner().invoke(
        main, ["serve", "--memory", "--listen", "127.0.0.1:0", "--set", f"listen.tls_certificate={nowhere}",
               "--set", f"listen.tls_key={files.key}"]
    )  # fmt: skip
    assert (ended.exit_code, "TLS cannot be set up: " in ended.stderr) == (Exit.USAGE, True)
    alone = CliRunner().invoke(main, ["serve", "--memory", "--set", f"listen.tls_client_ca={authority.ca}"])
    assert (alone.exit_code, "needs listen.tls_certificate" in alone.stderr) == (Exit.USAGE, True)


# --- certificates of clients ---


def test_a_handler_sees_whom_the_certificate_of_a_client_names(authority: Authority) -> None:
    files, worker = authority.server(), authority.client("worker-1")
    tls = load(TlsFiles(str(files.certificate), str(files.key), client_ca=str(authority.ca), client_auth="optional"))
    seen = []

    def handler(request):
        seen.append(request.certificate)
        return Response(200, b"")

    with listening(handler, ssl=tls.context) as server:
        known = ssl.create_default_context(cafile=str(authority.ca))
        known.load_cert_chain(worker.certificate, worker.key)
        for context in (known, ssl.create_default_context(cafile=str(authority.ca))):
            raw = socket.create_connection(server.address, timeout=PATIENCE_S)
            with Wire(context.wrap_socket(raw, server_hostname="localhost")) as wire:
                assert [wire.ask(get("/same"))[0] for _ in range(2)] == [200, 200]
    named = ("CN=worker-1,O=Acme\\, Inc.", "worker-1", ("URI:spiffe://acme/worker-1",))
    assert [certificate and certificate[:3] for certificate in seen] == [named, named, None, None]
    expiry = x509.load_pem_x509_certificate(worker.certificate.read_bytes()).not_valid_after_utc
    assert seen[0].not_after_s == expiry.timestamp()


def test_a_broker_that_requires_certificates_serves_only_clients_that_have_one(authority: Authority) -> None:
    worker = authority.client("worker-1")
    stranger = Authority(authority.folder, "another authority").client("stranger")
    required = settings(authority.server(), f"listen.tls_client_ca={authority.ca}")
    ca = str(authority.ca)
    with running(None, *required) as server:
        own = {"ca": ca, "certificate": str(worker.certificate), "key": str(worker.key)}
        with driftq.connect(url(server), **own) as broker:
            broker.topics.create("t")
        for files in ({}, {"certificate": str(stranger.certificate), "key": str(stranger.key)}):
            with (
                driftq.connect(url(server), ca=ca, retry=ONCE, **files) as broker,
                pytest.raises(driftq.errors.OutcomeUnknown, match="requires certificates of its clients"),
            ):
                broker.topics.list()

        async def awaited() -> None:
            async with driftq.connect_async(url(server), **own) as client:
                assert await client.topics.list() == ["t"]
            async with driftq.connect_async(url(server), ca=ca, retry=ONCE) as client:
                with pytest.raises(driftq.errors.OutcomeUnknown, match="requires certificates of its clients"):
                    await client.topics.list()

        asyncio.run(awaited())
        line = ["--url", url(server), "--ca", ca, "topics", "list"]
        refused = CliRunner(env={"DRIFTQ_CERTIFICATE": None}).invoke(main, line)
        assert (refused.exit_code, "DRIFTQ_CERTIFICATE" in refused.stderr) == (Exit.UNREACHABLE, True)
        named = CliRunner(env={"DRIFTQ_CERTIFICATE": own["certificate"], "DRIFTQ_KEY": own["key"]}).invoke(main, line)
        assert (named.exit_code, named.stdout.split()[6:7]) == (0, ["t"])


def test_the_authority_of_clients_can_be_replaced_and_no_session_outlives_it(authority: Authority) -> None:
    trusted = authority.folder / "trusted.pem"
    replace(trusted, authority.ca.read_bytes())
    other = Authority(authority.folder, "another authority")
    first, second = authority.client("first"), other.client("second")
    required = settings(authority.server(), f"listen.tls_client_ca={trusted}")

    def context_of(files: CertificateFiles) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # refused in the handshake itself, and sessions have numbers
        context.load_cert_chain(files.certificate, files.key)
        return context

    with running(None, *required) as server:
        old = context_of(first)
        with secured(server, old) as wire:
            assert healthy(wire)
            assert isinstance(wire.sock, ssl.SSLSocket)
            session = wire.sock.session
        replace(trusted, other.ca.read_bytes())
        new = context_of(second)

        def is_known() -> bool:
            try:
                with secured(server, new) as wire:
                    return healthy(wire)
            except OSError:
                return False

        until_now(is_known, 30)
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        with pytest.raises(OSError), raw:
            old.wrap_socket(raw, server_hostname="127.0.0.1", session=session)


def test_a_client_uses_its_renewed_certificate_for_the_next_connection(authority: Authority) -> None:
    other = Authority(authority.folder, "another authority")
    mine = authority.folder / "mine.pem"

    def use(files: CertificateFiles) -> None:
        replace(mine, files.certificate.read_bytes() + files.key.read_bytes())

    use(other.client("stranger"))
    required = settings(authority.server(), f"listen.tls_client_ca={authority.ca}")
    with (
        running(None, *required) as server,
        driftq.connect(url(server), ca=str(authority.ca), certificate=str(mine), retry=ONCE) as broker,
    ):
        with pytest.raises(driftq.errors.OutcomeUnknown):
            broker.topics.list()
        replace(mine, b"half of")
        with pytest.raises(driftq.errors.OutcomeUnknown):
            broker.topics.list()
        use(authority.client("worker-1"))
        assert broker.topics.list() == []


# --- whom a client trusts ---


def test_the_authority_is_named_by_argument_variable_option_or_context(authority: Authority, tmp_path: Path) -> None:
    ca = str(authority.ca)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "SSL_CERT_FILE": None, "DRIFTQ_CA": None}
    program = "import driftq, sys; print(driftq.connect(sys.argv[1]).topics.list())"
    with running(None, *settings(authority.server())) as server:
        with driftq.connect(url(server), ca=ca) as broker:
            broker.topics.create("t")
        for variable in ("DRIFTQ_CA", "SSL_CERT_FILE"):
            command = [sys.executable, "-c", program, url(server)]
            environ = {**os.environ, variable: ca}
            ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, timeout=60)
            assert ended.stdout == "['t']\n"
        lists = ["topics", "list"]
        for line in (["--ca", ca, "--url", url(server), *lists], [*lists, "--url", url(server), "--ca", ca]):
            assert CliRunner(env=home).invoke(main, line).stdout.split()[6:7] == ["t"]
        untrusted = CliRunner(env=home).invoke(main, ["--url", url(server), *lists])
        assert (untrusted.exit_code, "--ca ca.pem" in untrusted.stderr) == (Exit.UNREACHABLE, True)
        added = CliRunner(env=home).invoke(main, ["context", "add", "here", url(server), "--ca", ca])
        assert added.exit_code == 0, added.stderr
        assert CliRunner(env=home).invoke(main, lists).stdout.split()[6:7] == ["t"]


def test_a_file_that_names_no_authority_is_reported_before_anything_is_sent(authority: Authority) -> None:
    garbage = authority.folder / "garbage.pem"
    garbage.write_text("nothing")
    address = "https://127.0.0.1:1"
    for files, reason in (
        ({"ca": str(garbage)}, "no PEM certificate in"),
        ({"ca": "nowhere.pem"}, "nowhere.pem cannot be read: No such file"),
        ({"certificate": str(garbage)}, "no certificate with its key"),
        ({"certificate": "nowhere.pem"}, "cannot be read from nowhere.pem"),
    ):
        with pytest.raises(driftq.errors.InvalidCall, match=reason):
            driftq.connect(address, **files)
    line = ["context", "add", "x", address, "--ca", str(garbage)]
    refused = CliRunner(env={"XDG_CONFIG_HOME": str(authority.folder)}).invoke(main, line)
    assert (refused.exit_code, "no PEM certificate" in refused.stderr) == (Exit.USAGE, True)
    called = CliRunner().invoke(main, ["topics", "list", "--url", address, "--ca", "nowhere.pem"])
    assert (called.exit_code, "cannot be read" in called.stderr) == (Exit.USAGE, True)

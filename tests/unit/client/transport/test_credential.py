"""The token of a client: where it comes from, and a file that changes while requests are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

import driftq
from driftq.client.calls import queue
from driftq.client.errors import InvalidCall
from driftq.client.transport import credential
from driftq.client.transport.credential import ClientToken, TokenFile
from driftq.client.transport.http import parse_address, request_bytes
from driftq.spark.source.options import BadOption, connection_of


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRIFTQ_TOKEN", "DRIFTQ_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


def sent(address) -> str:
    head = request_bytes(address, queue.send("t", "x")).partition(b"\r\n\r\n")[0].decode()
    lines = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("Authorization")]
    assert len(lines) <= 1
    return lines[0].removeprefix("Bearer ") if lines else ""


def test_the_nearest_token_is_sent(tmp_path, monkeypatch):
    in_file = tmp_path / "token"
    in_file.write_text("of-the-file\n")
    url = "http://:of-the-url@x"
    assert sent(parse_address("http://x")) == ""
    monkeypatch.setenv("DRIFTQ_TOKEN_FILE", str(in_file))
    assert sent(parse_address("http://x")) == "of-the-file"
    monkeypatch.setenv("DRIFTQ_TOKEN", "of-the-environment")
    assert sent(parse_address("http://x")) == "of-the-environment"
    assert sent(parse_address(url)) == "of-the-url"
    assert sent(parse_address(url, ClientToken(file=str(in_file)))) == "of-the-file"
    assert sent(parse_address(url, "argument")) == "argument"
    assert sent(parse_address("http://x", from_environment=False)) == ""


def test_a_file_is_read_again_when_it_changes_and_not_before(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("  one\n")
    address = parse_address("http://x", ClientToken(file=str(file)))
    reads = []
    real = TokenFile._read
    monkeypatch.setattr(TokenFile, "_read", lambda self: reads.append(self) or real(self))
    assert [sent(address) for _ in range(3)] == ["one"] * 3
    assert not reads
    file.with_name("next").write_text("two")
    file.with_name("next").replace(file)
    assert [sent(address) for _ in range(3)] == ["two"] * 3
    assert len(reads) == 1


def test_a_file_that_cannot_be_used_any_more_changes_nothing(tmp_path):
    file = tmp_path / "token"
    file.write_text("one")
    address = parse_address("http://x", ClientToken(file=str(file)))
    for content in ("", " \n", "a\nb", "\x00"):
        file.write_text(content)
        assert sent(address) == "one", content
    file.unlink()
    assert sent(address) == "one"
    file.write_text("two")
    assert sent(address) == "two"


def test_a_link_that_is_moved_is_a_change(tmp_path):
    """Kubernetes replaces a link to a folder, and no file."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "one")
    address = parse_address("http://x", ClientToken(file=str(link / "token")))
    assert sent(address) == "one"
    (tmp_path / "next").symlink_to(tmp_path / "two")
    (tmp_path / "next").replace(link)
    assert sent(address) == "two"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"a\r\nX-Evil: 1", b"a\x00b"])
def test_a_file_without_a_token_is_an_error_that_names_it(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidCall, match="the token file") as raised:
        driftq.connect("http://x", token_file=str(file))
    assert str(file) in str(raised.value)
    assert "Evil" not in str(raised.value)


def test_both_at_once_are_refused(tmp_path):
    with pytest.raises(InvalidCall, match="either token or token_file"):
        driftq.connect("http://x", token="a", token_file=str(tmp_path / "b"))
    with pytest.raises(BadOption, match="either token or tokenFile"):
        connection_of({"token": "a", "tokenfile": "b"}, {})


def test_spark_takes_the_option_before_the_environment():
    environment = {"DRIFTQ_TOKEN": "e"}
    assert connection_of({"tokenfile": "/f"}, environment).token == ClientToken(file="/f")
    assert connection_of({}, environment).token == ClientToken("e")
    assert connection_of({}, {"DRIFTQ_TOKEN_FILE": "/f"}).token == ClientToken(file="/f")


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (Path(tmp_path) / "token").write_text("mine")
    assert credential.TokenFile("~/token").header_line() == b"Authorization: Bearer mine\r\n"

"""The token of a client: a text, or a file that is read again when it changes.

    token=, --token-file, DRIFTQ_TOKEN … ──▶ ClientToken ──▶ request: `Authorization: Bearer …`

A program that runs for weeks has a token that lives for an hour: another program replaces the file, and the next
request has the new token. A file that cannot be used any more changes nothing; at the start it is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from driftq.client.errors import InvalidCall

FILE_BYTES_MAX = 64 << 10


class ClientToken(NamedTuple):
    """A token, or the file that holds it. Both empty: none is sent."""

    text: str = ""
    file: str = ""

    def environment(self) -> dict[str, str]:
        """The variables for a process that should have the same token."""
        return {"DRIFTQ_TOKEN": self.text, "DRIFTQ_TOKEN_FILE": self.file}

    def or_else(self, other: ClientToken) -> ClientToken:
        return self if any(self) else other


def token_from(environment: Mapping[str, str] = os.environ) -> ClientToken:
    """Of the variables `DRIFTQ_TOKEN` and `DRIFTQ_TOKEN_FILE` the first that is set."""
    text = environment.get("DRIFTQ_TOKEN", "")
    return ClientToken(text) if text else ClientToken(file=environment.get("DRIFTQ_TOKEN_FILE", ""))


def header_line(token: str) -> bytes:
    """Raises `InvalidCall` for a text that would be more than one line."""
    if not token.isprintable():
        raise InvalidCall("a token must not contain line breaks or other control characters")
    return f"Authorization: Bearer {token}\r\n".encode() if token else b""


class TokenFile:
    """The header line of the token in a file, as it is now. Raises `InvalidCall` for a file without one."""

    def __init__(self, path: str) -> None:
        self._path = str(Path(path).expanduser())
        self._signature = self._status()
        self._line = self._read()

    def header_line(self) -> bytes:
        signature = self._status()
        if signature != self._signature:
            try:
                self._line = self._read()
            except InvalidCall:
                return self._line  # half of a change: the next request looks again
            self._signature = signature
        return self._line

    def _status(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)  # noqa: PTH116  # for every request; follows links, as containers use them
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> bytes:
        try:
            with Path(self._path).open("rb") as file:
                content = file.read(FILE_BYTES_MAX)
        except OSError as error:
            raise InvalidCall(f"the token file {self._path} cannot be read: {error.strerror}") from None
        token = content.decode("utf-8", "replace").strip()
        if not token:
            raise InvalidCall(f"the token file {self._path} is empty")
        try:
            return header_line(token)
        except InvalidCall as error:
            raise InvalidCall(f"the token file {self._path} holds no token: {error}") from None

"""The text of an access token, `dq_<id>_<secret>`, and its digest.

The id is public: it names the token in lists, logs and the audit. The secret has 256 random bits, so a plain hash of it
is as hard to reverse as the secret is to guess; a slow one would only cost time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

_PATTERN = re.compile(r"dq_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)


class NewToken(NamedTuple):
    """An access token that was just made: the only time that its text is known."""

    token_id: str
    text: str
    digest: bytes


def new_token(token_id: str = "") -> NewToken:
    """A token with a new secret, and a new id unless one is given."""
    token_id = token_id or secrets.token_hex(8)
    text = f"dq_{token_id}_{secrets.token_hex(32)}"
    return NewToken(token_id, text, digest_of(text))


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def id_of(text: str) -> str | None:
    """The id in the text of a token; None if it is no such text."""
    match = _PATTERN.fullmatch(text)
    return match[1] if match is not None else None

"""Errors of one kind under one name: numbers, ids and quoted parts differ from message to message and are left out.

The pattern is written so that Python and Java read it alike: the broker names errors with it, and so does Spark.
"""

from __future__ import annotations

import re
from enum import StrEnum

_WORD = "[0-9A-Za-z_]"
VARIABLE = rf"""'[^']*'|"[^"]*"|0x[0-9a-fA-F]+|(?<!{_WORD})[0-9a-fA-F]{{8,}}(?:-[0-9a-fA-F]{{4,}})*(?!{_WORD})|[0-9]+"""
MARK = "…"
LENGTH_MAX = 200

_variable = re.compile(VARIABLE)


def fingerprint(error: str) -> str:
    return _variable.sub(MARK, error.partition("\n")[0])[:LENGTH_MAX]


# --- Errors of one kind under one name; the broker and the pipelines ask the same function ---


# --- Coarse codes that say what to do, shared by the broker's refusals, the HTTP faces and the client's exceptions ---


class Remedy(StrEnum):
    """What the caller should do about a refusal."""

    FIX_THE_CALL = "fix the call"
    RETRY_LATER = "retry later"
    CLAIM_AGAIN = "claim again"
    NEW_EPOCH = "start a new epoch"
    READ_AGAIN = "read the tail and decide again"
    GIVE_UP = "give up"


class Code(StrEnum):
    """Why the broker said no."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CONFLICT = "CONFLICT"
    CLOSED = "CLOSED"
    GONE = "GONE"
    NOT_OWNER = "NOT_OWNER"
    NOT_DELIVERED = "NOT_DELIVERED"
    STALE_EPOCH = "STALE_EPOCH"
    SEQUENCE_GAP = "SEQUENCE_GAP"
    SEQUENCE_MISMATCH = "SEQUENCE_MISMATCH"
    SEQUENCE_REGRESSION = "SEQUENCE_REGRESSION"
    TAIL_MOVED = "TAIL_MOVED"
    KEY_CONFLICT = "KEY_CONFLICT"
    BUSY = "BUSY"
    OVERLOADED = "OVERLOADED"
    DISK_FULL = "DISK_FULL"
    TOO_LARGE = "TOO_LARGE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_CORRUPT = "DATA_CORRUPT"

    @property
    def remedy(self) -> Remedy:
        return _REMEDIES.get(self, Remedy.FIX_THE_CALL)


_REMEDIES = {
    Code.CLOSED: Remedy.GIVE_UP,
    Code.GONE: Remedy.GIVE_UP,
    Code.DEADLINE_EXCEEDED: Remedy.GIVE_UP,
    Code.NOT_OWNER: Remedy.CLAIM_AGAIN,
    Code.STALE_EPOCH: Remedy.NEW_EPOCH,
    Code.SEQUENCE_GAP: Remedy.RETRY_LATER,
    Code.TAIL_MOVED: Remedy.READ_AGAIN,
    Code.BUSY: Remedy.RETRY_LATER,
    Code.OVERLOADED: Remedy.RETRY_LATER,
    Code.DISK_FULL: Remedy.RETRY_LATER,
    Code.UNAVAILABLE: Remedy.RETRY_LATER,
    Code.DATA_CORRUPT: Remedy.GIVE_UP,
}

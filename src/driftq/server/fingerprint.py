"""Errors of one kind under one name: numbers, ids and quoted parts differ from message to message and are left out."""

from __future__ import annotations

import re

_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+", re.ASCII)
LENGTH_MAX = 200


def fingerprint(error: str) -> str:
    return _VARIABLE.sub("…", error.partition("\n")[0])[:LENGTH_MAX]

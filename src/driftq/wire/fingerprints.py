"""Errors of one kind under one name: numbers, ids and quoted parts differ from message to message and are left out.

The pattern is written so that Python and Java read it alike: the broker names errors with it, and so does Spark.
"""

from __future__ import annotations

import re

_WORD = "[0-9A-Za-z_]"
VARIABLE = rf"""'[^']*'|"[^"]*"|0x[0-9a-fA-F]+|(?<!{_WORD})[0-9a-fA-F]{{8,}}(?:-[0-9a-fA-F]{{4,}})*(?!{_WORD})|[0-9]+"""
MARK = "…"
LENGTH_MAX = 200

_variable = re.compile(VARIABLE)


def fingerprint(error: str) -> str:
    return _variable.sub(MARK, error.partition("\n")[0])[:LENGTH_MAX]

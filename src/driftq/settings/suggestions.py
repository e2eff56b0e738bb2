"""Names that are close to a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], limit: int = 3, least: float = 0.6) -> list[str]:
    """The known names that look most like `name`, best first; empty if none has `least` of its letters in order."""
    return difflib.get_close_matches(name, list(known), limit, least)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """`did you mean X?` with the closest known name after `prefix`, or `otherwise` if none is close."""
    matches = closest(name, known, 1)
    return f"did you mean {prefix}{matches[0]}?" if matches else otherwise

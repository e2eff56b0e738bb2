"""Names that are close to a misspelt one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """The known names that look most like `name`, best first; empty if none is close."""
    return difflib.get_close_matches(name, list(known), limit)


def did_you_mean(name: str, known: Iterable[str], otherwise: str, prefix: str = "") -> str:
    """`did you mean X?` with the closest known name after `prefix`, or `otherwise` if none is close."""
    matches = closest(name, known, 1)
    return f"did you mean {prefix}{matches[0]}?" if matches else otherwise

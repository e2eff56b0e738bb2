"""Sizes and durations as people write them: a number and a unit.

One parser; what differs is the table of units. On the command line `64kB` is 64,000 bytes, `64kiB` is
65,536, and a duration needs a unit. Spark's options count as Spark does: `64m` is
64 MiB, and a number without a unit is bytes or milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Units = Mapping[str, int]

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")

DURATION_MS: Units = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SPARK_DURATION_MS: Units = {"": 1, **DURATION_MS, "min": 60_000}

SIZE_BYTES: Units = {
    f"{prefix}{binary}{unit}": (1_024 if binary else 1_000) ** power
    for power, prefix in enumerate(("", "k", "M", "G", "T"))
    for binary in (("", "i") if prefix else ("",))
    for unit in ("", "B")
}
SPARK_SIZE_BYTES: Units = {
    f"{prefix}{unit}": 1_024**power for power, prefix in enumerate(("", "k", "m", "g")) for unit in ("", "b")
}


def parse_quantity(text: str, units: Units) -> int | None:
    """The quantity in the smallest of its units, rounded down; None if the text is not a number with a known unit."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        return None
    number, factor = match[1], units[match[2]]
    return int(float(number) * factor) if "." in number else int(number) * factor


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds of `500ms`, `30s`, `5m`, `2h`, `7d` or `0`; None for anything else."""
    return 0 if text == "0" else parse_quantity(text, DURATION_MS)


def parse_size_bytes(text: str) -> int | None:
    """Bytes of `100`, `64kB`, `10MB`, `1GiB`; None for anything else."""
    return parse_quantity(text, SIZE_BYTES)

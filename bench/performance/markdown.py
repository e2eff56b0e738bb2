"""Tables, paragraphs and figures of the page, as lines of Markdown.

It knows the place at which a part of a run was measured, and nothing of what was measured.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from driftq.charts import short

PAGE_WIDTH = 128
QUIET_LOAD = 0.5

Row = dict[str, Any]
Run = dict[str, Any]  # bench/results/NAME.json


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    align = ["---"] + ["--:"] * (len(head) - 1)
    return [f"| {' | '.join(cells)} |" for cells in (head, align, *rows)]


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def paragraph(*sentences: str) -> list[str]:
    return [*textwrap.wrap(" ".join(sentences), PAGE_WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def where(part: dict[str, Any]) -> str:
    return (
        f"{part['date']}, {part['machine']}, {part['memory_gb']} GB, {part['system']}, Python {part['python']}, "
        f"commit `{part['commit']}`, load before the run {part['load_1min']}"
    )


def caution(part: dict[str, Any]) -> list[str]:
    """A sentence for a run on a machine that was not idle."""
    if part["load_1min"] < QUIET_LOAD:
        return []
    return paragraph(
        "**The machine was not quiet:** other processes kept it busy",
        f"(load {part['load_1min']:g} before this run).",
        "Waits for a core and for the disk are in these rates and latencies; CPU per message is affected less.",
    )


def duration(value_ms: float) -> str:
    return f"{short(value_ms)} ms" if value_ms < 999.5 else f"{short(value_ms / 1_000)} s"

"""Charts as SVG, readable on light and dark pages, without fonts or scripts from elsewhere.

A picture has panels in columns. A panel of bars has one bar per row, with its name to the left and its value to the
right of it. Names end and values begin at fixed distances from the bars, so that no text covers another. A panel of
curves has values over time, drawn as steps to one scale, with a legend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

COLUMNS = 2
PANEL_WIDTH = 430
NAME_WIDTH = 116
VALUE_WIDTH = 84
ROW_HEIGHT = 18
TITLE_HEIGHT = 34
GAP = 16
BAR_MAX = PANEL_WIDTH - NAME_WIDTH - VALUE_WIDTH - 8

STYLE = """
text{font:12px system-ui,sans-serif;fill:#24292f}
.n{text-anchor:end}
.t{font-weight:600;font-size:13px}
.s{fill:#57606a;font-weight:400}
rect{fill:#afb8c1}
.o{fill:#0969da}
path{fill:none;stroke-width:1.5}
.c0{stroke:#0969da}.c1{stroke:#bc4c00}.c2{stroke:#1a7f37}.c3{stroke:#8250df}.a{stroke:#afb8c1;stroke-width:1}
@media (prefers-color-scheme: dark){text{fill:#e6edf3}.s{fill:#9da7b3}rect{fill:#57606a}.o{fill:#4493f8}
.c0{stroke:#4493f8}.c1{stroke:#f0883e}.c2{stroke:#3fb950}.c3{stroke:#ab7df8}.a{stroke:#57606a}}
"""


class Bar(NamedTuple):
    """One row. A bar without a value says why in `text`."""

    name: str
    value: float | None
    text: str
    is_ours: bool = False


class Panel(NamedTuple):
    title: str
    remark: str
    bars: Sequence[Bar]


class Curve(NamedTuple):
    """Values at the times of its panel."""

    name: str
    values: Sequence[float]


class Curves(NamedTuple):
    """Up to four curves over time. `first` and `last` are the ends of the time axis, as texts."""

    title: str
    remark: str
    curves: Sequence[Curve]
    first: str
    last: str


CURVE_ROWS = 9
LEGEND_ROW = 1  # the row below the plot, with the axis


def short(value: float) -> str:
    """A number of three digits with k or M."""
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            return _digits(value / size) + letter
    return _digits(value)


def _digits(value: float) -> str:
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{places}f}"


def svg(title: str, panels: Sequence[Panel | Curves]) -> str:
    """The picture. Bars of one panel are drawn to the same linear scale, the longest over the whole width."""
    columns = min(COLUMNS, max(1, len(panels)))
    width = columns * PANEL_WIDTH + (columns - 1) * GAP
    lines, top = [], 0
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        for column, panel in enumerate(row):
            left = column * (PANEL_WIDTH + GAP)
            lines += _bars(panel, left, top) if isinstance(panel, Panel) else _curves(panel, left, top)
        top += TITLE_HEIGHT + ROW_HEIGHT * max(map(_rows, row)) + GAP
    box = f'viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img">\n<title>{escape(title)}</title>'
    return "\n".join([head, f"<style>{STYLE}</style>", *lines, "</svg>", ""])


def _rows(panel: Panel | Curves) -> int:
    return len(panel.bars) if isinstance(panel, Panel) else CURVE_ROWS + LEGEND_ROW + len(panel.curves)


def _title(panel: Panel | Curves, left: int, top: int) -> str:
    remark = f' <tspan class="s">{escape(panel.remark)}</tspan>' if panel.remark else ""
    return f'<text class="t" x="{left}" y="{top + 18}">{escape(panel.title)}{remark}</text>'


def _bars(panel: Panel, left: int, top: int) -> list[str]:
    lines = [_title(panel, left, top)]
    largest = max((bar.value for bar in panel.bars if bar.value is not None), default=1.0) or 1.0
    for number, bar in enumerate(panel.bars):
        y = top + TITLE_HEIGHT + number * ROW_HEIGHT
        start = left + NAME_WIDTH
        length = 0 if bar.value is None else max(1, math.ceil(BAR_MAX * bar.value / largest))
        lines.append(f'<text class="n" x="{start - 6}" y="{y + 10}">{escape(bar.name)}</text>')
        if length:
            ours = ' class="o"' if bar.is_ours else ""
            lines.append(f'<rect{ours} x="{start}" y="{y}" width="{length}" height="12"/>')
        remark = ' class="s"' if bar.value is None else ""
        lines.append(f'<text{remark} x="{start + length + 6 * bool(length)}" y="{y + 10}">{escape(bar.text)}</text>')
    return lines


def _curves(panel: Curves, left: int, top: int) -> list[str]:
    """Values between two times stay as they were: a queue has no half messages."""
    floor, height, width = top + TITLE_HEIGHT + CURVE_ROWS * ROW_HEIGHT, CURVE_ROWS * ROW_HEIGHT, PANEL_WIDTH
    largest = max((value for curve in panel.curves for value in curve.values), default=0) or 1
    lines = [_title(panel, left, top), f'<path class="a" d="M{left} {floor}H{left + width}"/>']
    for number, curve in enumerate(panel.curves):
        steps = []
        for index, value in enumerate(curve.values):
            x, y = left + width * index / len(curve.values), floor - height * value / largest
            steps.append(f"M{x:.1f} {y:.1f}" if not index else f"H{x:.1f}V{y:.1f}")
        lines.append(f'<path class="c{number}" d="{"".join(steps)}H{left + width}"/>')
        legend = floor + (1 + LEGEND_ROW + number) * ROW_HEIGHT - 4
        lines.append(f'<path class="c{number}" d="M{left} {legend - 4}h16"/>')
        peak = f'<tspan class="s">at most {short(max(curve.values, default=0))}</tspan>'
        lines.append(f'<text x="{left + 22}" y="{legend}">{escape(curve.name)} {peak}</text>')
    lines.append(f'<text class="s" x="{left}" y="{floor + 14}">{escape(panel.first)}</text>')
    lines.append(f'<text class="s n" x="{left + width}" y="{floor + 14}">{escape(panel.last)}</text>')
    return lines

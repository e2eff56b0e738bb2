"""Figures of several policies side by side: as lines of a table, and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from driftq.backtest.figures import Figures
from driftq.charts import Bar, Panel, short, svg

Value = Callable[[Figures], float]


def columns(hourly_price: float) -> dict[str, Callable[[Figures], str]]:
    """The columns of the table, and how each shows its figure."""
    named: dict[str, Callable[[Figures], str]] = {
        "policy": lambda figures: figures.name,
        "acked": lambda figures: f"{figures.acked:,}",
        "dead": lambda figures: f"{figures.dead:,}",
        "open": lambda figures: f"{figures.open:,}",
        "wait p50": lambda figures: duration(figures.wait_p50_ms),
        "wait p95": lambda figures: duration(figures.wait_p95_ms),
        "done p95": lambda figures: duration(figures.done_p95_ms),
        "attempts": lambda figures: f"{figures.attempts:,}",
        "unseen": lambda figures: f"{figures.unseen:,}",
        "work": lambda figures: duration(figures.work_ms),
    }
    if hourly_price:
        named["cost"] = lambda figures: f"{figures.cost(hourly_price):,.2f}"
    return named


def duration(ms: int) -> str:
    """Three digits and a unit: 840 ms, 12.4 s, 3.10 h."""
    for size, unit in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size:
            return f"{short(ms / size)} {unit}"
    return f"{ms} ms"


def table_lines(compared: Sequence[Figures], hourly_price: float = 0.0) -> list[str]:
    named = columns(hourly_price)
    rows = [list(named), *([show(figures) for show in named.values()] for figures in compared)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.rjust(width) if at else text.ljust(width) for at, (text, width) in enumerate(zip(row, widths)))
        for row in rows
    ]


def picture(title: str, compared: Sequence[Figures], hourly_price: float = 0.0) -> str:
    """Waits, dead letters and cost as bars; one more panel of waits by tenant if there are several."""
    panels = [
        _panel("Wait", "95 of 100, to the first delivery", compared, lambda figures: figures.wait_p95_ms, duration),
        _panel("Time to ack", "95 of 100", compared, lambda figures: figures.done_p95_ms, duration),
        _panel("Dead letters", "", compared, lambda figures: figures.dead, "{:,}".format),
        _panel(
            "Cost",
            f"at {hourly_price:g} an hour",
            compared,
            lambda figures: figures.cost(hourly_price),
            "{:,.2f}".format,
        )
        if hourly_price
        else _panel("Work", "the time of workers", compared, lambda figures: figures.work_ms, duration),
    ]
    tenants = sorted({tenant for figures in compared for tenant in figures.tenant_wait_p95_ms})
    if 1 < len(tenants) <= 8:
        panels += [_tenant_panel(tenant, compared) for tenant in tenants]
    return svg(title, panels)


def _tenant_panel(tenant: str, compared: Sequence[Figures]) -> Panel:
    title = f"Wait of {tenant or 'no tenant'}"
    return _panel(title, "95 of 100", compared, lambda figures: figures.tenant_wait_p95_ms.get(tenant, 0), duration)


def _panel(title: str, remark: str, compared: Sequence[Figures], value: Value, text: Callable[..., str]) -> Panel:
    """The record itself is not a policy: its bars are grey."""
    bars = [
        Bar(figures.name, value(figures), text(value(figures)), is_ours=at > 0) for at, figures in enumerate(compared)
    ]
    return Panel(title, remark, bars)

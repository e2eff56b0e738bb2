"""How the cost of a thing grows with the number of things."""

from __future__ import annotations

from bench.growth import RESTART_MIN_S
from bench.performance.markdown import Row, Run, paragraph, table, where


def growth(run: Run) -> list[str]:
    part = run["growth"]
    lines = ["## Growth", ""]
    lines += paragraph(
        "The CPU time of the server for all n items together, at several n, and the power of n that fits best:",
        "1 is linear, 0 does not depend on n, and well above 1 the cost of one item grows with their number.",
        f"`python -m bench.growth`; {where(part)}.",
    )
    sizes = sorted({size for row in part["results"] for size in row["sizes"]})
    lines += table(
        ["n items", "exponent", *(f"n = {size:,}" for size in sizes)],
        (
            [row["case"], f"{row['exponent']:.2f}", *(_cost(row, size) for size in sizes)]
            for row in part["results"]
        ),
    )  # fmt: skip
    return [*lines, ""]


def _cost(row: Row, size: int) -> str:
    if size not in row["sizes"]:
        return ""
    cost_s = row["cpu_s"][row["sizes"].index(size)]
    if "restart" in row["case"] and cost_s <= RESTART_MIN_S:
        return f"< {1e3 * RESTART_MIN_S:.0f} ms"
    return f"{1e3 * cost_s:.0f} ms"

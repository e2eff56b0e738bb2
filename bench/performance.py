"""Writes docs/performance.md and its picture from a named run.

    python -m bench.performance NAME

Every figure comes from bench/results/NAME.json; a part that the run does not have is left out with the command that
measures it. The page and the picture are pure functions of the run.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.growth import RESTART_MIN_S
from bench.named_run import load
from driftq.charts import Bar, Panel, short, svg

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.svg"
OURS = "DriftQ"
TITLES = {
    "batches": "Batches of 1,000",
    "blocking": "One blocking caller",
    "callers": "64 async callers",
    "claims": "Claim and ack, 100 at a time",
    "latency": "Produce to delivered, 500/s",
}
LESS_IS_BETTER = {"latency"}
PAGE_WIDTH = 128
QUIET_LOAD = 0.5
EQUAL = 1.05  # figures closer than this are called equal: a shared machine is not more precise

Row = dict[str, Any]


def by_case(run: dict[str, Any]) -> dict[str, list[Row]]:
    """The rows of each case, the best first."""
    rows: dict[str, list[Row]] = {}
    for row in run["peers"]["results"]:
        rows.setdefault(row["case"], []).append(row)
    for case, some in rows.items():
        some.sort(key=lambda row: row["value"], reverse=case not in LESS_IS_BETTER)
    return {case: rows[case] for case in TITLES if case in rows}


def figure(row: Row) -> str:
    return duration(row["value"]) if row["unit"] == "ms" else f"{short(row['value'])}/s"


def duration(value_ms: float) -> str:
    return f"{short(value_ms)} ms" if value_ms < 999.5 else f"{short(value_ms / 1_000)} s"


def times(case: str, row: Row) -> float:
    """How many times as good as DriftQ a peer is."""
    ratio: float = row["ratio_to_driftq"]
    return 1 / ratio if case in LESS_IS_BETTER else ratio


def picture(run: dict[str, Any]) -> str:
    panels = []
    for case, rows in by_case(run).items():
        bars = [Bar(row["peer"], row["value"], figure(row), row["peer"] == OURS) for row in rows]
        peers = run["peers"]["peers"].items()
        bars += [Bar(name, None, "has no counterpart") for name, peer in peers if case in peer["lacks"]]
        remark = "median, less is better" if case in LESS_IS_BETTER else "messages/s"
        panels.append(Panel(TITLES[case], remark, bars))
    return svg("DriftQ and other durable queues and logs, through their Python clients", panels)


# --- the page ---------------------------------------------------------------------------------------------------------


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


def peers_section(run: dict[str, Any]) -> list[str]:
    part, cases = run["peers"], by_case(run)
    names = [OURS, *(name for name in part["peers"] if name != OURS)]
    cell = {(row["case"], row["peer"]): row for rows in cases.values() for row in rows}

    def cells(case: str, text: Any) -> list[str]:
        return [text(cell[case, name]) if (case, name) in cell else "–" for name in names]

    def with_ratio(row: Row) -> str:
        return figure(row) if row["peer"] == OURS else f"{figure(row)} ({ratio_text(row['ratio_to_driftq'])})"

    lines = [
        "## Compared with others",
        "",
        *caution(part),
        "![The figures of the table as bars](images/performance.svg)",
        "",
    ]
    lines += paragraph(
        "Messages of 100 bytes, on disk before the reply. In parentheses: the figure divided by DriftQ's.",
        "The last row is a time, so there more than 1 is slower. A dash: the peer has no counterpart.",
    )
    lines += table(["", *names], ([TITLES[case], *cells(case, with_ratio)] for case in cases))
    lines += ["", "CPU per message, server + client, in microseconds, and the 99th percentile of the delivery:", ""]
    rows = [[TITLES[case], *cells(case, cpu_text)] for case in cases]
    if "latency" in cases:
        rows.append(["Delivery, p99", *cells("latency", lambda row: duration(row["p99_ms"]))])
    lines += table(["", *names], rows)
    return [*lines, "", *slower_section(cases)]


def cpu_text(row: Row) -> str:
    return f"{short(row['server_cpu_us_per_op'])} + {short(row['cpu_us_per_op'])}"


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 0.995 else f"{ratio:.2g}×"


def slower_section(cases: dict[str, list[Row]]) -> list[str]:
    """The cases in which a peer was better, from the figures."""
    lines = ["### What we are slower at", ""]
    items = []
    for case, rows in cases.items():
        better = [row for row in rows if row["peer"] != OURS and times(case, row) > EQUAL]
        if better:
            listed = ", ".join(f"{row['peer']} {times(case, row):.1f}×" for row in better)
            items.append(f"- {TITLES[case]}: better than DriftQ are {listed}.")
    lines += items or [f"In no case was a peer more than {100 * (EQUAL - 1):.0f} % better than DriftQ."]
    return [*lines, ""]


def method_section(run: dict[str, Any]) -> list[str]:
    part = run["peers"]
    lines = ["## Method", ""]
    lines += paragraph(
        f"`python -m bench.peers --save {run['name']}`. The median of {part['rounds']} rounds is shown; each case ran",
        f"for {part['seconds']:g} s. In a round each server runs alone, with an empty data folder on the same disk,",
        "and each case gets a fresh client process. Rounds begin with different peers, so that a noisy minute does not",
        "affect the same one every time; before each case the page cache is written out.",
    )
    lines += paragraph(
        f"Measured: {where(part)}.",
        f"A bare write and fdatasync of 4 KiB took {part['bare_sync_ms']:.2f} ms before the run.",
    )
    lines += [
        "- *Batches*: one client writes 1,000 messages at a time, in the way that has the highest throughput with it.",
        "- *One blocking caller*: one message, wait for the reply, the next.",
        "- *64 async callers*: 64 tasks in one process, each as above.",
        "- *Claim and ack*: what was produced before is taken and settled, up to 100 messages at a time.",
        "- *Produce to delivered*: 500 messages a second start on schedule; a waiting consumer in the same process",
        "  notes when it sees each. A late start counts as latency.",
        "- CPU is that of the server with all its child processes, as the kernel counts it, and that of the client.",
        "",
    ]
    lines += text_table(
        ["", "server", "client", "durable by", "used as"],
        (
            [
                name,
                peer["version"],
                peer["client"],
                peer["durability"],
                "; ".join([peer["notes"], *peer["lacks"].values()]),
            ]
            for name, peer in part["peers"].items()
        ),
    )
    if part["missing"]:
        lines += ["", "Not measured, because they could not be installed or started:", ""]
        lines += [f"- {name}: {reason}" for name, reason in part["missing"].items()]
    if part.get("failed"):
        lines += ["", "Cases that failed:", "", *(f"- {case}: {why}" for case, why in part["failed"].items())]
    return [*lines, ""]


def growth_section(run: dict[str, Any]) -> list[str]:
    lines = ["## Growth", ""]
    if "growth" not in run:
        return [*lines, f"This run has no figures; `python -m bench.growth --save {run['name']}` measures them.", ""]
    part = run["growth"]
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


def steady_section(run: dict[str, Any]) -> list[str]:
    lines = ["## A steady mixed load", ""]
    if "steady" not in run:
        return [*lines, f"This run has no figures; `python -m bench.steady --save {run['name']}` measures them.", ""]
    part = run["steady"]
    lines += paragraph(
        f"{part['per_s']:,} requests a second for {part['seconds']:g} s: produces, claims, acks, nacks, claims that",
        "are left to expire, stream appends and queries, through checkpoints, retention and expiries. Requests start",
        f"on schedule; a late start counts as latency. `python -m bench.steady`; {where(part)}.",
    )
    lines += caution(part)
    lines += table(
        ["latency", "p50", "p99", "p99.9", "longest"],
        (
            [kind, *(f"{figures[name]:.2f} ms" for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms"))]
            for kind, figures in part["latency"].items()
        ),
    )
    lines += ["", f"In that time: {part['events']}.", "", "The longest pauses:", ""]
    lines += text_table(
        ["at", "requests waited up to", "the server used", "the disk took", "cause"],
        (
            [f"{pause['at_s']:.1f} s", f"{pause['wait_ms']:.1f} ms", f"{pause['server_cpu_ms']:.0f} ms of CPU",
             f"{pause['sync_ms']:.1f} ms for a sync", pause["cause"]]
            for pause in part["pauses"]
        ),
    )  # fmt: skip
    return [*lines, ""]


def soak_section(run: dict[str, Any]) -> list[str]:
    if "soak" not in run:
        return []
    part = run["soak"]
    lines = ["### The same load for longer", ""]
    lines += paragraph(
        f"{part['per_s']:,} requests a second for {part['seconds'] / 60:.0f} minutes. `python -m bench.steady --soak`;",
        f"{where(part)}. p99.9 of all requests: {part['latency']['p999_ms']:.2f} ms. In that time: {part['events']}.",
    )
    shown = part["uses"][:: max(1, len(part["uses"]) // 7)]
    lines += table(
        ["after", *(f"{use['at_s'] / 60:.0f} min" for use in shown)],
        [
            ["memory of the server", *(f"{use['resident_mb']:.0f} MB" for use in shown)],
            ["its open descriptors", *(str(use["descriptors"]) for use in shown)],
            ["its data folder", *(f"{use['data_mb']:.0f} MB" for use in shown)],
        ],
    )
    return [*lines, ""]


def page(run: dict[str, Any]) -> str:
    lines = ["# Performance", ""]
    lines += paragraph(
        f"Made by `make performance RUN={run['name']}`, or from the same results by",
        f"`python -m bench.performance {run['name']}`, from the",
        f"[results of this run](../bench/results/{run['name']}.json); do not edit it. Rates depend on the machine,",
        "above all on its disk; ratios within one run and CPU per message depend on it less. How each bench measures",
        "is in [bench/README.md](../bench/README.md).",
    )
    for section in (peers_section, growth_section, steady_section, soak_section, method_section):
        lines += section(run)
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    run = load(sys.argv[1])
    PAGE.write_text(page(run), encoding="utf-8")
    PICTURE.write_text(picture(run), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

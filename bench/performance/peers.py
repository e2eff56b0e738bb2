"""DriftQ beside other queues and logs: the table, the picture, and how they were measured."""

from __future__ import annotations

from typing import Any

from bench.performance.markdown import Row, Run, caution, duration, paragraph, table, text_table, where
from driftq.charts import Bar, Panel, short, svg

OURS = "DriftQ"
TITLES = {
    "batches": "Batches of 1,000",
    "blocking": "One blocking caller",
    "callers": "64 async callers",
    "claims": "Claim and ack, 100 at a time",
    "latency": "Produce to delivered, 500/s",
}
LESS_IS_BETTER = {"latency"}
EQUAL = 1.05  # figures closer than this are called equal: a shared machine is not more precise


def compared(run: Run) -> list[str]:
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
    return [*lines, "", *slower(cases)]


def cpu_text(row: Row) -> str:
    return f"{short(row['server_cpu_us_per_op'])} + {short(row['cpu_us_per_op'])}"


def ratio_text(ratio: float) -> str:
    return f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×" if ratio >= 0.995 else f"{ratio:.2g}×"


def slower(cases: dict[str, list[Row]]) -> list[str]:
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


def method(run: Run) -> list[str]:
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


def picture(run: Run) -> str:
    panels = []
    for case, rows in by_case(run).items():
        bars = [Bar(row["peer"], row["value"], figure(row), row["peer"] == OURS) for row in rows]
        peers = run["peers"]["peers"].items()
        bars += [Bar(name, None, "has no counterpart") for name, peer in peers if case in peer["lacks"]]
        remark = "median, less is better" if case in LESS_IS_BETTER else "messages/s"
        panels.append(Panel(TITLES[case], remark, bars))
    return svg("DriftQ and other durable queues and logs, through their Python clients", panels)


def by_case(run: Run) -> dict[str, list[Row]]:
    """The rows of each case, the best first."""
    rows: dict[str, list[Row]] = {}
    for row in run["peers"]["results"]:
        rows.setdefault(row["case"], []).append(row)
    for case, some in rows.items():
        some.sort(key=lambda row: row["value"], reverse=case not in LESS_IS_BETTER)
    return {case: rows[case] for case in TITLES if case in rows}


def figure(row: Row) -> str:
    return duration(row["value"]) if row["unit"] == "ms" else f"{short(row['value'])}/s"


def times(case: str, row: Row) -> float:
    """How many times as good as DriftQ a peer is."""
    ratio: float = row["ratio_to_driftq"]
    return 1 / ratio if case in LESS_IS_BETTER else ratio

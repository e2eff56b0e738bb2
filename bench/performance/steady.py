"""A steady mixed load: its latencies, its longest pauses, and memory over a longer time."""

from __future__ import annotations

from bench.performance.markdown import Run, caution, paragraph, table, text_table, where


def steady(run: Run) -> list[str]:
    part = run["steady"]
    lines = ["## A steady mixed load", ""]
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


def soak(run: Run) -> list[str]:
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

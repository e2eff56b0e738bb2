"""docs/performance.md is made from a run, and only from it."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path

import pytest

from bench.growth import RESTART_MIN_S
from bench.named_run import load, place, save_part
from bench.performance.__main__ import PAGE, PICTURE
from bench.performance.peers import picture
from bench.performance.sections import SECTIONS, page

PLACE = {
    "date": "2030-01-02", "machine": "2 x Example", "memory_gb": 8, "system": "Linux 6", "python": "3.12.0",
    "commit": "abcdef", "load_1min": 0.1,
}  # fmt: skip


def row(case: str, peer: str, value: float, ratio: float, **fields: float) -> dict[str, object]:
    unit = "ms" if case == "latency" else "messages/s"
    costs = {"cpu_us_per_op": 2.0, "server_cpu_us_per_op": 3.0}
    return {"case": case, "peer": peer, "value": value, "unit": unit, "ratio_to_driftq": ratio, **costs, **fields}


def described(version: str, **lacks: str) -> dict[str, object]:
    return {"version": version, "client": "a-client 1", "durability": "fsync", "notes": "as usual", "lacks": lacks}


RUN = {
    "name": "example",
    "peers": {
        **PLACE,
        "rounds": 3,
        "seconds": 2.0,
        "bare_sync_ms": 0.18,
        "peers": {"DriftQ": described("1"), "Redis": described("7"), "Streams": described("0.3", claims="no claims")},
        "missing": {"RabbitMQ": "no such package"},
        "failed": {},
        "results": [
            row("batches", "DriftQ", 1_000_000, 1.0), row("batches", "Redis", 64_000, 0.064),
            row("batches", "Streams", 1_030_000, 1.03),
            row("claims", "DriftQ", 50_000, 1.0), row("claims", "Redis", 150_000, 3.0),
            row("latency", "DriftQ", 2.0, 1.0, p99_ms=5.0), row("latency", "Redis", 0.5, 0.25, p99_ms=9.0),
            row("latency", "Streams", 8.0, 4.0, p99_ms=2_810.0),
        ],
    },
}  # fmt: skip
GROWTH = {
    **PLACE,
    "results": [
        {"case": "streams", "sizes": [10, 40], "cpu_s": [0.1, 0.4], "exponent": 1.0},
        {"case": "keys: restart", "sizes": [10, 40], "cpu_s": [RESTART_MIN_S, 0.1], "exponent": 0.5},
    ],
}
FIGURES = {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.25, "max_ms": 40.0}
STEADY = {
    **PLACE, "per_s": 2_000, "seconds": 60.0, "latency": {"all requests": FIGURES}, "events": "9 checkpoints",
    "pauses": [{"at_s": 1.5, "wait_ms": 40.0, "server_cpu_ms": 30.0, "sync_ms": 1.0, "cause": "work of the server"}],
}  # fmt: skip


def test_the_page_and_its_picture_are_what_their_run_says():
    text = PAGE.read_text(encoding="utf-8")
    name = re.search(r"`python -m bench\.performance (\S+)`", text)
    assert name is not None
    run = load(name[1])
    assert text == page(run), f"run `python -m bench.performance {name[1]}`"
    assert PICTURE.read_text(encoding="utf-8") == picture(run)


def test_the_table_has_every_figure_with_its_ratio():
    text = page(RUN)
    assert "| Batches of 1,000 | 1.00 M/s | 64.0 k/s (0.064×) | 1.03 M/s (1.0×) |" in text
    assert "| Claim and ack, 100 at a time | 50.0 k/s | 150 k/s (3.0×) | – |" in text
    assert "| Produce to delivered, 500/s | 2.00 ms | 0.50 ms (0.25×) | 8.00 ms (4.0×) |" in text
    assert "| Delivery, p99 | 5.00 ms | 9.00 ms | 2.81 s |" in text
    assert "3.00 + 2.00" in text


def test_what_we_are_slower_at_is_computed():
    slower = page(RUN).partition("### What we are slower at")[2].partition("\n## ")[0]
    assert slower.strip().splitlines() == [
        "- Claim and ack, 100 at a time: better than DriftQ are Redis 3.0×.",
        "- Produce to delivered, 500/s: better than DriftQ are Redis 4.0×.",
    ]


def test_a_run_in_which_we_are_never_slower_says_so():
    run = copy.deepcopy(RUN)
    run["peers"]["results"] = [row("batches", "DriftQ", 10, 1.0), row("batches", "Redis", 5, 0.5)]
    assert "In no case was a peer more than 5 % better than DriftQ." in page(run)


def test_a_missing_peer_and_the_machine_are_named():
    text = page(RUN)
    assert "- RabbitMQ: no such package" in text
    assert "2 x Example" in text
    assert "0.18 ms" in text


def test_a_run_on_a_busy_machine_says_so():
    busy = copy.deepcopy(RUN)
    busy["peers"]["load_1min"] = 6.5
    assert "**The machine was not quiet:**" in page(busy)
    assert "(load 6.5 before this run)" in page(busy)
    assert "not quiet" not in page(RUN)


def test_parts_that_were_not_measured_say_how_to_measure_them():
    text = page(RUN)
    assert "`python -m bench.growth --save example`" in text
    assert "`python -m bench.steady --save example`" in text
    assert "bench.growth --save" not in page({**RUN, "growth": GROWTH})
    assert page({"name": "empty"}).count("--save empty`") == len({section.part for section in SECTIONS})


@pytest.mark.parametrize("command", sorted({section.command for section in SECTIONS}))
def test_the_command_that_measures_a_part_can_save_it(command):
    module = command.split()[2]
    source = importlib.util.find_spec(f"{module}.__main__" if is_package(module) else module)
    assert source is not None
    assert '"--save"' in Path(source.origin or "").read_text(encoding="utf-8")


def is_package(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.submodule_search_locations is not None


def test_memory_over_time_is_shown_if_it_was_measured():
    uses = [{"at_s": 60.0 * at, "resident_mb": 90.0 + at, "descriptors": 400, "data_mb": 12.0} for at in range(20)]
    soak = {**PLACE, "per_s": 1_000, "seconds": 1_200.0, "latency": FIGURES, "uses": uses, "events": "9 checkpoints"}
    text = page({**RUN, "soak": soak})
    assert "1,000 requests a second for 20 minutes" in text
    assert "| after | 0 min | 2 min |" in text
    assert "| memory of the server | 90 MB | 92 MB |" in text
    assert "for longer" not in page(RUN)


def test_growth_and_the_steady_load_are_shown():
    text = page({**RUN, "growth": GROWTH, "steady": STEADY})
    assert "| streams | 1.00 | 100 ms | 400 ms |" in text
    assert "| keys: restart | 0.50 | < 50 ms | 100 ms |" in text
    assert "| all requests | 1.00 ms | 2.00 ms | 3.25 ms | 40.00 ms |" in text
    assert "9 checkpoints" in text
    assert "| 1.5 s | 40.0 ms | 30 ms of CPU | 1.0 ms for a sync | work of the server |" in text


def test_the_picture_names_peers_without_a_counterpart():
    text = picture(RUN)
    assert text.count("has no counterpart") == 1
    assert text.count('class="o"') == 3


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


def test_a_run_is_saved_part_by_part(folder):
    save_part("a", "peers", {"x": 1}, folder)
    save_part("a", "growth", {"y": 2}, folder)
    save_part("a", "peers", {"x": 3}, folder)
    assert load("a", folder) == {"name": "a", "peers": {"x": 3}, "growth": {"y": 2}}
    assert json.loads((folder / "a.json").read_text()) == load("a", folder)


def test_a_part_names_its_place():
    assert place().keys() == PLACE.keys()

"""The dashboard and the alerts name metrics and labels that exist, and every alert says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml

from driftq.cli.main import SUMMARIES
from driftq.server.metrics.definitions import METRICS
from tests.tidy.sources import ROOT

DEFINED = {metric.name: set(metric.labels) for metric in METRICS}
FOREIGN = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}  # of Prometheus and its client library
ALWAYS = {"instance", "job", "le"}
SELECTOR = re.compile(r"\b([a-z_]+(?:_[a-z]+)+|up)(?:\{([^}]*)\})?(?=[\[\s)\-*><=]|$)")
WORDS = {"histogram_quantile", "predict_linear", "label_values"}
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "driftq.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0][
    "rules"
]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def unknown(expression: str) -> list[str]:
    """Metrics, and labels of them, that no broker exposes."""
    wrong = []
    for name, labels in SELECTOR.findall(expression):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if name in WORDS or name in FOREIGN:
            continue
        known = DEFINED.get(name, DEFINED.get(base))
        if known is None:
            wrong.append(name)
            continue
        wrong += [f"{name}{{{label}}}" for label in re.findall(r"(\w+)=", labels) if label not in known | ALWAYS]
    for clause in re.findall(r"by \(([^)]*)\)", expression):
        names = {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in SELECTOR.findall(expression)} & DEFINED.keys()
        known = set().union(*(DEFINED[name] for name in names)) | ALWAYS
        wrong += [label for label in map(str.strip, clause.split(",")) if label not in known]
    return wrong


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_and_label_exists(where: str, expression: str) -> None:
    assert SELECTOR.search(expression), where
    assert not unknown(expression), where


def test_a_planted_metric_and_a_planted_label_are_found() -> None:
    assert unknown("rate(driftq_nothing_total[5m])") == ["driftq_nothing_total"]
    assert unknown('driftq_dead_letters{colour="red"} > 0') == ["driftq_dead_letters{colour}"]
    assert unknown("sum by (colour) (driftq_dead_letters)") == ["colour"]


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    cells = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        covered = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not covered & cells, panel["title"]
        assert grid["x"] + grid["w"] <= 24
        cells |= covered


def test_every_alert_has_a_severity_a_summary_and_commands_that_exist() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        text = rule["annotations"]["summary"] + rule["annotations"]["description"]
        for command in re.findall(r"\bdriftq ([a-z]+)", text):
            assert command in SUMMARIES, f"{rule['alert']}: driftq {command}"

"""The text format: what Prometheus' own library writes and reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from driftq.server.metrics.counters import Histogram
from driftq.server.metrics.text_format import Family, MetricDefinition, lines

VALUES = (0, 7, 0.25, 1e-9, 123_456_789, 2**53, 1e22)
LABELS = ("plain", "a.b:c-d", 'quo"te', "back\\slash", "new\nline", "naïve", "")


def parsed(page: str) -> list[object]:
    return [
        (family.name, family.type, family.documentation, sorted(family.samples, key=repr))
        for family in text_string_to_metric_families(page)
    ]


def histogram() -> Histogram:
    filled = Histogram((0.5, 1, 2))
    for value in (0.1, 0.7, 0.9, 5.0):
        filled.observe(value)
    return filled


def families() -> list[Family]:
    return [
        Family(MetricDefinition("a_total", "counter", ("x", "y"), "Text with a \\ in it."), [
            ((label, "z"), value) for label, value in zip(LABELS, VALUES, strict=True)
        ]),
        Family(MetricDefinition("b", "gauge", (), "One."), [((), 3)]),
        Family(MetricDefinition("c", "gauge", ("x",), "None.")),
        Family(MetricDefinition("d_seconds", "histogram", ("x",), "Times."), histograms=[(("p",), histogram())]),
        Family(MetricDefinition("e_seconds", "histogram", (), "Times."), histograms=[((), histogram())]),
    ]  # fmt: skip


class Reference(Collector):
    """The same families through the library."""

    def collect(self) -> list[Metric]:
        metrics: list[Metric] = []
        for definition, samples, histograms in families():
            name, kind, labels, meaning = definition
            if kind == "histogram":
                metric: Metric = HistogramMetricFamily(name, meaning, labels=labels)
                for values, filled in histograms:
                    metric.add_metric(values, filled.buckets(), filled.total)  # type: ignore[attr-defined]
            else:
                metric = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(name, meaning, labels=labels)
                for values, value in samples:
                    metric.add_metric(values, value)  # type: ignore[attr-defined]
            metrics.append(metric)
        return metrics


def test_the_page_reads_like_the_one_that_the_library_writes():
    registry = CollectorRegistry()
    registry.register(Reference())
    page = "".join(lines(families()))
    assert parsed(page) == parsed(generate_latest(registry).decode())
    assert len(parsed(page)) == 5

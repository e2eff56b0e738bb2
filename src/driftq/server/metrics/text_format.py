"""The text format of Prometheus: families of samples as lines.

A page with thousands of series takes long, so it is made of lines that the caller takes a few at a time. The samples of
one family are collected together, so the buckets of a histogram always fit to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from driftq.server.metrics.counters import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricDefinition(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


Sample = tuple[tuple[str, ...], float]  # the values of the labels, and the value


class Family(NamedTuple):
    """The samples of one metric; histograms instead of values for a metric of that kind."""

    definition: MetricDefinition
    samples: Sequence[Sample] = ()
    histograms: Sequence[tuple[tuple[str, ...], Histogram]] = ()


def lines(families: Iterable[Family]) -> Iterator[str]:
    """The lines of a page, each with its end."""
    for definition, samples, histograms in families:
        name, kind, labels, meaning = definition
        yield f"# HELP {name} {_escaped_text(meaning)}\n# TYPE {name} {kind}\n"
        for values, value in samples:
            yield f"{name}{_labels(labels, values)} {float(value)!r}\n"
        for values, histogram in histograms:
            yield from _histogram_lines(name, labels, values, histogram)


def _histogram_lines(name: str, labels: tuple[str, ...], values: tuple[str, ...], histogram: Histogram) -> list[str]:
    buckets = histogram.buckets()
    texts = [
        f"{name}_bucket{_labels((*labels, 'le'), (*values, bound))} {float(count)!r}\n" for bound, count in buckets
    ]
    texts.append(f"{name}_count{_labels(labels, values)} {float(buckets[-1][1])!r}\n")
    texts.append(f"{name}_sum{_labels(labels, values)} {float(histogram.total)!r}\n")
    return texts


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = [f'{name}="{_escaped_label(value)}"' for name, value in zip(names, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def _escaped_label(text: str) -> str:
    if text.isidentifier() or text.isdigit():
        return text  # the usual case
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_text(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")

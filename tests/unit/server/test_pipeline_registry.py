"""The registry of pipelines: the last report, bounds, and an end; and settings without credentials."""

from __future__ import annotations

from driftq.server.handlers.pipelines import masked
from driftq.server.pipeline_registry import TTL_S, PipelineRegistry
from driftq.wire.pipelines import PipelineReport


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_rows_are_summed_up_and_entries_end():
    clock = Clock()
    registry = PipelineRegistry(clock)
    registry.report("p", PipelineReport("archive", rows=3))
    registry.report("p", PipelineReport("archive", rows=4))
    assert [(name, entry.total_rows) for name, entry in registry] == [("p", 7)]
    clock.now_s += TTL_S + 1
    assert list(registry) == []


def test_the_number_of_entries_is_bounded():
    registry = PipelineRegistry(Clock(), entries_max=2)
    for name in "abca":
        registry.report(name, PipelineReport("archive"))
    assert [name for name, _ in registry] == ["a", "c"]


def test_credentials_of_addresses_are_masked():
    assert masked("https://user:secret@host/path?token=x") == "https://***@host/path?***"
    assert masked(("s3://bucket/prefix", 7)) == ("s3://bucket/prefix", 7)

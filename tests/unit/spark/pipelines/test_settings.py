"""The settings of pipelines: files, single settings, and errors in them. No Spark."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_type_hints

import pytest

from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import settings
from driftq.spark.pipelines.settings import (
    PIPELINES,
    Configuration,
    archive_checkpoint,
    audit_every_ms,
    checkpoint,
    identity,
    load,
    toml_lines,
)

GIVEN = {"source.topics": ("orders",), "sink.table": "tables/orders", "sink.topic": "out"}
REQUIRED_FILES = {"costs": {"costs.prices": "prices.toml"}, "quality": {"quality.rules": "quality.toml"}}


def test_a_file_says_everything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.toml"
    path.write_text(
        """
        [pipeline]
        name = "metrics"
        trigger = "10 seconds"
        [source]
        topics = ["orders", "returns"]
        [sink]
        table = "tables/metrics"
        [metrics]
        window = "30 seconds"
        """
    )

    loaded = load(str(path))

    assert (loaded.pipeline.name, loaded.source.topics) == ("metrics", ("orders", "returns"))
    assert (loaded.metrics.window, loaded.metrics.watermark) == ("30 seconds", "1 minute")
    assert identity(loaded) == "metrics-orders+returns"
    assert checkpoint(loaded) == "tables/metrics.checkpoints/metrics-orders+returns"


def test_a_single_setting_wins_over_the_file_and_is_read_as_toml_or_as_text(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[pipeline]\nname = "dedupe"\n[source]\ntopics = ["a"]\n[sink]\ntopic = "b"\n')

    loaded = load(str(path), ["dedupe.watermark=2 hours", "source.max_offsets=7", 'source.topics=["x", "y"]'])

    assert (loaded.dedupe.watermark, loaded.source.max_offsets, loaded.source.topics) == ("2 hours", 7, ("x", "y"))


@pytest.mark.parametrize("name", PIPELINES)
def test_what_is_shown_can_be_run_again_and_every_setting_is_explained(name: str, tmp_path: Path) -> None:
    loaded = load(name, values=GIVEN | REQUIRED_FILES.get(name, {}))
    lines = list(toml_lines(loaded))
    path = tmp_path / "again.toml"
    path.write_text("\n".join(lines))

    again = load(str(path))

    assert tomllib.loads("\n".join(lines))["pipeline"]["name"] == name
    assert (again.source, again.sink, getattr(again, name)) == (loaded.source, loaded.sink, getattr(loaded, name))
    assert all(len(line.partition("  # ")[2]) > 10 for line in lines if line and not line.startswith("["))


def test_every_pipeline_has_a_section_and_every_section_a_pipeline() -> None:
    assert set(get_type_hints(Configuration)) == {"pipeline", "source", "sink", *PIPELINES}


@pytest.mark.parametrize(
    ("name", "assignments", "message"),
    [
        ("metrcs", [], "there is no pipeline 'metrcs'; did you mean metrics"),
        ("metrics", ["metrics.windw=1 minute"], "metrics.windw is not a setting; did you mean metrics.window"),
        ("metrics", ["sorce.url=x"], "there is no section 'sorce'; did you mean source"),
        ("metrics", ["metrics.window=soon"], "metrics.window: expected a value such as '10 seconds'"),
        ("metrics", ["metrics.window=0 seconds"], "expected a value such as"),
        ("metrics", ["archive.schema=a INT"], r"\[archive\] does not apply to metrics"),
        ("metrics", ["source.max_offsets=-1"], "source.max_offsets"),
        ("metrics", ["source.fail_on_data_loss=perhaps"], "source.fail_on_data_loss"),
        ("metrics", ["sink.table="], r"metrics needs sink.table \(--table DIR\)"),
        ("metrics", ["source.topics=[]"], r"metrics needs source.topics \(--topic NAME\)"),
        ("metrics", ["window"], "--set takes section.key=value"),
        ("metrics", ["window=1 minute"], "--set takes section.key=value"),
        ("nowhere.toml", [], "nowhere.toml: No such file"),
    ],
)
def test_what_is_wrong_is_named(name: str, assignments: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(name, assignments, {} if name.endswith(".toml") else GIVEN)


def test_a_file_without_a_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[source]\n")

    with pytest.raises(SettingsError, match=r"\[pipeline\] name is missing: one of archive"):
        load(str(path))


def test_a_pattern_stands_for_topics() -> None:
    loaded = load("archive", values={"source.pattern": "orders.*", "sink.table": "t"})

    assert identity(loaded) == "archive-orders._"


def test_two_pipelines_that_write_to_different_topics_are_not_the_same() -> None:
    one, other = (load("dedupe", values={**GIVEN, "sink.table": "", "sink.topic": topic}) for topic in ("a", "b"))

    assert (identity(one), checkpoint(other)) == ("dedupe-orders-a", "checkpoints/dedupe-orders-b")


def test_a_default_applies_to_settings_that_are_not_given() -> None:
    loaded = load("archive", ["source.url=http://a"], GIVEN, {"source.url": "http://b", "source.token": "t"})

    assert (loaded.source.url, loaded.source.token) == ("http://a", "t")


def test_a_token_is_not_shown() -> None:
    loaded = load("archive", values={**GIVEN, "source.token": "secret"})

    assert "secret" not in "\n".join(toml_lines(loaded))


def test_reading_a_configuration_needs_no_spark() -> None:
    program = f"import sys, {settings.__name__}; assert not {{'pyspark', 'pyarrow'}} & set(sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_interval_for_audits_is_a_number_with_a_unit() -> None:
    values = {"source.topics": ("orders",), "sink.table": "tables/orders"}

    assert audit_every_ms(load("archive", (), {**values, "archive.audit_every": "10m"})) == 600_000
    assert audit_every_ms(load("archive", (), values)) == 0
    for wrong in ("10", "0m", "soon"):
        with pytest.raises(SettingsError, match="audit_every"):
            load("archive", (), {**values, "archive.audit_every": wrong})


def test_an_audit_finds_the_checkpoint_of_its_archive() -> None:
    values = {"source.topics": ("orders",), "sink.table": "tables/orders"}

    assert archive_checkpoint(load("audit", (), values)) == checkpoint(load("archive", (), values))
    named = {**values, "pipeline.checkpoint": "elsewhere"}
    assert archive_checkpoint(load("audit", (), named)) == "elsewhere"

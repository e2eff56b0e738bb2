"""Bodies of reports of pipelines, and of the settings of a broker.

A pipeline reports each micro-batch with `POST /v1/pipelines/{name}/report`. Reports are not durable: the broker keeps
the last one of each pipeline in memory, for a while.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from driftq.wire.fields import ID_LENGTH_MAX, Body, Name, Natural

TOPICS_MAX = 1_000

PipelineState = Literal["running", "done", "failed"]
ReportText = Annotated[str, Meta(max_length=1_024)]


class PipelineReport(Body, frozen=True, omit_defaults=True):
    """What a pipeline says of itself. `lag` counts messages after the end of the micro-batch, -1 if that is not known;
    `audit` is the last verdict."""

    kind: Annotated[str, Meta(max_length=ID_LENGTH_MAX)]
    topics: Annotated[tuple[Name, ...], Meta(max_length=TOPICS_MAX)] = ()
    target: ReportText = ""
    state: PipelineState = "running"
    batch: Annotated[int, Meta(ge=-1)] = -1
    rows: Natural = 0
    took_ms: Natural = 0
    lag: Annotated[int, Meta(ge=-1)] = -1
    audit: ReportText = ""
    error: ReportText = ""


class PipelineInfo(Struct, frozen=True):
    """A pipeline by its last report. `rows` are those of its last micro-batch, `total_rows` of all since it was first
    seen."""

    name: str
    kind: str
    topics: tuple[str, ...]
    target: str
    state: PipelineState
    batch: int
    rows: int
    total_rows: int
    took_ms: int
    lag: int
    audit: str
    error: str
    first_seen: str
    seen: str


class PipelinesReply(Struct, frozen=True):
    """The pipelines that reported in the last day, by name."""

    pipelines: list[PipelineInfo]


class SettingInfo(Struct, frozen=True):
    """A setting: its value, and where that comes from: "default", a file, the environment or `--set`."""

    name: str
    value: Any
    origin: str


class ConfigReply(Struct, frozen=True):
    """Every setting of the server. Credentials in addresses are masked."""

    settings: list[SettingInfo]

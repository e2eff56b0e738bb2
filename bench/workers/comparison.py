"""Jobs per second of a task that does nothing, in each framework, with the CPU that worker and server spent on them.

A round starts every framework alone. For each of its variants jobs are enqueued, then one worker process is started.
Every 50 ms the queue, the CPU time of the worker (with its children) and that of the server are read. The figures are
those between the first sample after a tenth of the jobs and the last one, so neither the start of a worker nor an empty
queue counts. "Per core" is jobs per second of CPU of worker and server together.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.installation import ROOT, MissingError, python_packages
from bench.peers.server_process import StartError
from bench.report import emit, median
from bench.workers.frameworks import FRAMEWORKS, Framework, Variant

SAMPLE_S = 0.05
WARM_UP = 0.1  # of the jobs
START_S = 30.0
OURS = "DriftQ"


class Sample(NamedTuple):
    """One look at queue and processes."""

    at_s: float
    remaining: int
    worker_cpu_s: float
    server_cpu_s: float


class Figures(NamedTuple):
    """What one worker did."""

    jobs_per_s: float
    jobs_per_core_s: float
    worker_cpu_us: float  # for a job
    server_cpu_us: float

    @classmethod
    def between(cls, first: Sample, last: Sample) -> Figures:
        jobs = first.remaining - last.remaining
        worker_s, server_s = last.worker_cpu_s - first.worker_cpu_s, last.server_cpu_s - first.server_cpu_s
        return cls(
            jobs / (last.at_s - first.at_s), jobs / (worker_s + server_s), 1e6 * worker_s / jobs, 1e6 * server_s / jobs
        )


Results = dict[tuple[str, Variant], list[Figures]]


def measure(framework: Framework, variant: Variant, folder: Path, seconds: float, env: dict[str, str]) -> Figures:
    count = int(framework.jobs_per_s * seconds)
    framework.enqueue(variant, count)
    os.sync()
    before = framework.remaining(variant)
    worker = framework.worker(variant, folder, env)
    samples: list[Sample] = []
    deadline_s = time.monotonic() + START_S
    try:
        while not samples or (samples[-1].at_s - samples[0].at_s < seconds and samples[-1].remaining > before - count):
            time.sleep(SAMPLE_S)
            sample = Sample(time.monotonic(), framework.remaining(variant), worker.cpu_s(), framework.server_cpu_s())
            if sample.remaining <= before - WARM_UP * count:
                samples.append(sample)
            elif sample.at_s > deadline_s:
                log = worker.log.read_text(errors="replace")[-500:]
                raise StartError(f"{framework.name} has done nothing for {START_S:.0f} s: {log}")
    finally:
        worker.stop()
    if samples[-1].remaining <= before - count:  # an empty queue ends the last interval too early
        samples.pop()
    return Figures.between(samples[0], samples[-1])


def installed(names: list[str], *, download: bool) -> tuple[dict[str, Framework], dict[str, str], Path | None]:
    """The frameworks that can run, why others cannot, and where their packages are."""
    packages: Path | None = None
    usable: dict[str, Framework] = {}
    missing: dict[str, str] = {}
    try:
        packages = python_packages(download=download)
        sys.path.append(str(packages))
    except MissingError as error:
        missing |= {name: str(error) for name in names if name != OURS}
    for name in names:
        if name not in missing:
            framework = FRAMEWORKS[name]()
            try:
                framework.install(download=download)
            except MissingError as error:
                missing[name] = str(error)
            else:
                usable[name] = framework
    return usable, missing, packages


def run(names: list[str], rounds: int, seconds: float, folder: str | None, *, download: bool) -> dict[str, Any]:
    """Every framework once in each round, beginning with another one."""
    frameworks, missing, packages = installed(names, download=download)
    paths = [str(ROOT), *([str(packages)] if packages else []), os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": ":".join(path for path in paths if path)}
    results: Results = {}
    for number in range(rounds):
        order = [*frameworks.values()]
        shift = number % max(1, len(order))
        for framework in order[shift:] + order[:shift]:
            place = Path(tempfile.mkdtemp(prefix="bench-workers-", dir=folder))
            try:
                framework.start(place)
                for variant in framework.variants:
                    figures = measure(framework, variant, place, seconds, env)
                    results.setdefault((framework.name, variant), []).append(figures)
            finally:
                framework.stop()
                shutil.rmtree(place)
    rows = summary(results)
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("framework", "variant", "jobs_per_s")}
        emit("workers", f"no-op jobs: {row['framework']}, {row['variant']}", row["jobs_per_s"], "jobs/s", **fields)
    for name, reason in missing.items():
        emit("workers", f"missing: {name}", 0, "missing", reason=reason)
    described = {name: {"version": version_of(it), "durability": it.durability} for name, it in frameworks.items()}
    return {"rounds": rounds, "seconds": seconds, "frameworks": described, "missing": missing, "results": rows}


def version_of(framework: Framework) -> str:
    try:
        return version(framework.package)
    except PackageNotFoundError:
        return "unknown"


def summary(results: Results) -> list[dict[str, Any]]:
    """The medians of each variant, with the ratios of our slowest variant to them."""
    rows = [
        {
            "framework": name, "variant": variant.title,
            **{field: median([getattr(figures, field) for figures in runs]) for field in Figures._fields},
        }
        for (name, variant), runs in results.items()
    ]  # fmt: skip
    ours = [row for row in rows if row["framework"] == OURS]
    for row in rows:
        if ours and row["framework"] != OURS:
            for field in ("jobs_per_s", "jobs_per_core_s"):
                row[f"ours_to_{field}"] = min(mine[field] for mine in ours) / row[field]
    return rows

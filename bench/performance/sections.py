"""The sections of the page in their order, and the page made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bench.performance import growth, peers, steady
from bench.performance.markdown import Run, paragraph


class Section(NamedTuple):
    """A section, and the part of a run that it is made from."""

    part: str  # the key in the run
    command: str  # measures the part; `--save NAME` is added to it
    lines: Callable[[Run], list[str]]  # is called only if the run has the part; begins with a heading


SECTIONS = (
    Section("peers", "python -m bench.peers", peers.compared),
    Section("growth", "python -m bench.growth", growth.growth),
    Section("steady", "python -m bench.steady", steady.steady),
    Section("soak", "python -m bench.steady --soak --seconds 1140", steady.soak),
    Section("peers", "python -m bench.peers", peers.method),
)


def page(run: Run) -> str:
    lines = ["# Performance", ""]
    lines += paragraph(
        f"Made by `make performance RUN={run['name']}`, or from the same results by",
        f"`python -m bench.performance {run['name']}`, from the",
        f"[results of this run](../bench/results/{run['name']}.json); do not edit it. Rates depend on the machine,",
        "above all on its disk; ratios within one run and CPU per message depend on it less. How each bench measures",
        "is in [bench/README.md](../bench/README.md).",
    )
    for section in SECTIONS:
        if section.part in run:
            lines += section.lines(run)
    lines += not_measured(run)
    return "\n".join(lines).rstrip("\n") + "\n"


def not_measured(run: Run) -> list[str]:
    """The commands that measure what the run does not have."""
    commands = {section.part: section.command for section in SECTIONS if section.part not in run}
    if not commands:
        return []
    lines = ["## Not in this run", "", "These commands add what is missing:", ""]
    return [*lines, *(f"- `{command} --save {run['name']}`" for command in commands.values()), ""]

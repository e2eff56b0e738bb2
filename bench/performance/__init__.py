"""Writes docs/performance.md and its picture from a named run.

    python -m bench.performance NAME

Every figure comes from bench/results/NAME.json. A run has parts, which benches add to it with `--save NAME`. Each part
has a line in `sections.SECTIONS` and a function, in a module for its subject, that makes its lines of the page. A part
that the run does not have is left out, and the end of the page names the command that measures it. The page and the
picture are pure functions of the run.
"""

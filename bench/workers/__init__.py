"""Workers and tasks: what a job costs, compared with dramatiq and celery, and how soon jobs start and results arrive.

    python -m bench.workers                          one JSON line per result
    python -m bench.workers --part comparison        only the comparison
    python -m bench.workers --save NAME              also bench/results/NAME.json, for docs/performance.md

`comparison` runs the frameworks of `frameworks`, each with its own worker command and the task of a module in
`programs`. `figures` measures DriftQ alone.
"""

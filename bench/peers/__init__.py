"""DriftQ compared with other durable queues and logs, each through its usual Python client.

    python -m bench.peers                    one JSON line per result, three rounds
    python -m bench.peers --save NAME        the same, and bench/results/NAME.json for docs/performance.md
    python -m bench.peers --save NAME --more --rounds 1      one more round for the same result

A round starts each server alone, with its data in a temporary folder on the same disk, runs every case against it from
a fresh client process, and stops it. The order changes from round to round. `catalog` lists the peers, `cases` the
load, `installation` brings what is missing, `server_process` runs it.
"""

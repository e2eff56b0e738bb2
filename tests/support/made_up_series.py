"""Series of the last hours for the pictures of the console: a day's curve, a deploy that was slow, and a bad quarter of
an hour of a payment gateway."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

from driftq.server.observation.series import NAME_STEP_MS, STEP_MS, SeriesTable, seal

HOURS = 6
GROUPS = {
    ("orders", "billing"): (38.0, 0.4),
    ("orders", "fulfilment"): (38.0, 2.0),
    ("orders", "analytics"): (38.0, 60.0),
    ("emails", "senders"): (9.0, 0.6),
    ("agent-steps", "agents"): (14.0, 1.0),
}


def write_series(folder: Path, topics: tuple[str, ...]) -> None:
    """Write the file that a broker continues from."""
    table, chance, now_ms = SeriesTable(), random.Random(11), int(time.time() * 1_000)
    noise, backlog = 0.0, 0.0
    for step in range(HOURS * 3_600_000 // STEP_MS):
        at_ms = now_ms - HOURS * 3_600_000 + step * STEP_MS
        hour = step * STEP_MS / 3_600_000
        noise = 0.9 * noise + chance.gauss(0, 2.5)
        produced = max(5.0, 64 + 16 * math.sin(hour * 1.4) + noise)
        is_bad = 4.3 < hour < 4.55
        settled = produced * 0.62 if is_bad else min(produced * 1.25, produced + backlog / 10)
        settled = settled * 2
        backlog = max(0.0, backlog + 10 * (produced - settled / 2))
        fsync_ms = abs(chance.gauss(2.4, 0.3)) + (14 if 2.1 < hour < 2.2 else 0)
        table.totals.put(
            at_ms,
            {
                "produced": produced,
                "produced_bytes": produced * 410,
                "delivered": settled + (9 if is_bad else 0.4),
                "settled": settled,
                "failed": chance.uniform(6, 11) if is_bad else chance.choice((0, 0, 0, 0.2)),
                "dead": 0.3 if is_bad else 0,
                "refused": 0,
                "stream_records": 130 + 5 * noise,
                "lag": 850 + backlog,
                "lag_seconds": 20 + backlog / 60,
                "in_flight": 14 + abs(noise),
                "waiting": 60 if is_bad else 28,
                "dead_letters": 12 if hour < 4.3 else min(42, 12 + 120 * (hour - 4.3)),
                "messages": 2_100 + 30 * hour,
                "payload_bytes": 300_000 + 9_000 * hour,
                "commit_p99_ms": fsync_ms + 1.2,
                "fsync_p99_ms": fsync_ms,
                "stalls": 2 if 2.1 < hour < 2.2 else 0,
                "disk_free_bytes": 61e9 - 2e8 * hour,
                "connections": 31,
                "workers": 3,
            },
        )
        if step % (NAME_STEP_MS // STEP_MS) == 0:
            rows = {
                (topic,): {"produced": produced / (2 + index), "messages": 900 + hour * 30}
                for index, topic in enumerate(topics)
            }
            table.put_topics(at_ms, rows)
            table.put_groups(
                at_ms,
                {
                    name: {
                        "delivered": rate * produced / 64,
                        "settled": rate * settled / 64,
                        "failed": 2.0 if is_bad else 0.0,
                        "lag": 20 + backlog * late / 4,
                        "lag_seconds": late + backlog * late / 200,
                        "in_flight": 9,
                        "waiting": 4,
                    }
                    for name, (rate, late) in GROUPS.items()
                },
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "series.bin").write_bytes(seal(table.pack()))

"""Read a file of JSON lines into a topic as fast as the disk goes, each line once, even if this program is run again.

    driftq serve --memory
    python examples/batch_ingest.py events.ndjson

A named producer (`ingest-<file>`) fences an earlier run of the same import that still hangs. After a crash the program
resumes at the end of the topic: it asks the broker, and keeps no state of its own.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import driftq

TOPIC = "events"


def ingest(broker: driftq.DriftQ, path: Path) -> int:
    """Lines that were written by this call."""
    broker.topics.create(TOPIC)
    (partition,) = broker.topics.offsets(TOPIC).partitions
    written = 0
    with broker.producer(TOPIC, f"ingest-{path.name}", compress=True) as producer, path.open("rb") as lines:
        for number, line in enumerate(lines):
            if number >= partition.end:  # the rest of the last time
                producer.send(line.rstrip(b"\n"))
                written += 1
    return written


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("events.ndjson")
    if not path.exists():
        path.write_text("".join(f'{{"event": {number}}}\n' for number in range(50_000)), encoding="utf-8")
    with driftq.connect() as broker:
        began_s = time.perf_counter()
        written = ingest(broker, path)
        print(f"{written} lines in {time.perf_counter() - began_s:.2f} s, then {ingest(broker, path)}")


if __name__ == "__main__":
    main()

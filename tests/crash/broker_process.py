"""A broker as a process of its own: an `Engine` that takes one JSON object per line and answers with one.

`python -m tests.crash.broker_process FOLDER [--journal-segment BYTES] [--mutate NAME]`. It has no
HTTP, so that a failure of the crash tests is one of the engine. It waits for a first line before it opens the folder,
so that the next process can import its modules in the meantime. Then it prints `{"ready": …}` with what the start
found. A mutation breaks the engine on purpose, to prove that the audit notices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import zlib
from typing import Any

import msgspec

from driftq.cli.exit_codes import Exit, exit_on_error
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Reply
from driftq.engine import maintenance
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import StorageOptions
from driftq.wire import records
from driftq.wire.message import RetryPolicy
from tests.crash import mutations

LEASE_MS = 400
RETRY = RetryPolicy(max_attempts=0, backoff_ms=50, max_backoff_ms=200, jitter="full")


def packed(values: list[str]) -> tuple[bytes, int, int]:
    rows = [records.Record(value.encode()) for value in values]
    return records.pack(rows), len(rows), sum(len(row.value) for row in rows)


def command_of(ask: dict[str, Any]) -> c.Command:
    match ask["do"]:
        case "topic":
            return c.CreateTopic(ask["topic"], ask["partitions"])
        case "produce":
            batch, count, size = packed(ask["values"])
            producer, once = None, None
            if "producer" in ask:
                digest = zlib.crc32("".join(ask["values"]).encode())
                producer = f.ProducerSequence(ask["producer"], 1, ask["seq"], digest)
            if "key" in ask:
                once = c.ProduceKey("", ask["topic"], ask["key"])
            return c.Produce(ask["topic"], batch, count, size, b"", ask["partition"], producer, once)
        case "claim":
            return c.Claim(ask["topic"], "g", ask["owner"], ask["max"], LEASE_MS)
        case "ack" | "nack":
            held = (c.Held(ask["partition"], ask["offset"], ask["offset"] + 1, ask["token"]),)
            kind = c.Ack if ask["do"] == "ack" else c.Nack
            return kind(ask["topic"], "g", ask["owner"], held)
        case "stream":
            return c.CreateStream(ask["path"], "text/plain")
        case "append":
            batch, count, size = packed([ask["value"]])
            return c.AppendStream(
                ask["path"], "text/plain", batch, count, size, if_match=ask["if_match"], close=ask["close"]
            )
        case other:
            raise AssertionError(other)


class Service:
    """The lines of one parent."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def take(self, line: bytes) -> None:
        ask = json.loads(line)
        if ask["do"] == "read":
            self.say({"id": ask["id"], "records": self.read(ask), "reply": "Read"})
            return
        if ask["do"] == "stats":
            first_lsn, lsn = self.engine.journal.first_lsn(), self.engine.sequencer.durable_lsn
            self.say({"id": ask["id"], "reply": "Stats", "first_lsn": first_lsn, "lsn": lsn})
            return
        self.engine.submit_to(command_of(ask), lambda reply: self.answer(ask["id"], reply))

    def answer(self, number: int, reply: Reply) -> None:
        line = {"id": number, "reply": type(reply).__name__, **msgspec.to_builtins(reply)}
        if isinstance(reply, Claimed):
            line["messages"] = [
                [delivery.partition, offset, value]
                for delivery in reply.deliveries
                for offset, value in self.records(delivery.log_id, delivery.first, delivery.end)
            ]
        self.say(line)

    def read(self, ask: dict[str, Any]) -> list[tuple[int, str]]:
        state = self.engine.latest_state
        if "path" in ask:
            stream = state.streams.by_path.get(ask["path"])
            log_id = stream.log_id if stream is not None else -1
        else:
            log_id = state.topics[ask["topic"]].log_ids[ask["partition"]] if ask["topic"] in state.topics else -1
        if log_id < 0:
            return []
        return self.records(log_id, ask["offset"], self.engine.durable_end(log_id))

    def records(self, log_id: int, first: int, end: int) -> list[tuple[int, str]]:
        numbered: list[tuple[int, str]] = []
        while first < end:
            for batch in self.engine.read(log_id, first, end, 1 << 20):
                header = records.read_header(batch)
                for index, record in enumerate(records.unpack(batch, header)):
                    if first <= header.first_offset + index < end:
                        numbered.append((header.first_offset + index, record.value.decode()))
                first = header.end_offset
        return numbered

    def say(self, line: dict[str, Any]) -> None:
        os.write(1, json.dumps(line).encode() + b"\n")


async def serve(folder: str, options: StorageOptions, limits: BrokerLimits) -> None:
    engine = await Engine.open(folder, options=options, limits=limits)
    report = engine.report
    assert report is not None
    torn = report.journal.torn
    service = Service(engine)
    service.say(
        {
            "ready": os.getpid(),
            "snapshot_lsn": report.snapshot_lsn,
            "tail_lsn": report.tail_lsn,
            "torn_bytes": torn.size_bytes if torn else 0,
        }
    )
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def listen() -> None:
        while line := await reader.readline():
            service.take(line)
            await asyncio.sleep(0)  # let the commit begin, so that a pipeline is more than one frame

    listening = asyncio.ensure_future(listen())
    await asyncio.wait([listening, engine.stopped], return_when=asyncio.FIRST_COMPLETED)
    failure = engine.stopped.exception() if engine.stopped.done() else listening.exception()
    if failure is not None:
        listening.cancel()
        raise failure
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--journal-segment", type=int, default=64 << 10)
    parser.add_argument("--log-segment", type=int, default=32 << 10)
    parser.add_argument("--chores", type=float, default=0.05, help="seconds between two looks at what is to be done")
    parser.add_argument("--mutate", choices=sorted(mutations.TABLE))
    arguments = parser.parse_args()
    maintenance.INTERVAL_S = arguments.chores  # many checkpoints, watermarks and new segments in a short run
    if arguments.mutate:
        mutations.TABLE[arguments.mutate]()
    options = StorageOptions(journal_segment_bytes=arguments.journal_segment, log_segment_bytes=arguments.log_segment)
    while os.read(0, 1) not in (b"\n", b""):
        pass
    with exit_on_error():
        asyncio.run(serve(arguments.folder, options, BrokerLimits(retry=RETRY)))
    sys.exit(Exit.OK)


if __name__ == "__main__":
    main()

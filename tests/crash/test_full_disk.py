"""A full filesystem: new work is refused before a byte is written, acks succeed, and service resumes with free
space."""

from __future__ import annotations

import asyncio
import os

import pytest

from driftq.cli.exit_codes import Exit
from tests.crash.broker_run import BrokerProcess, Ended
from tests.crash.mounts import tmpfs
from tests.support.server import running
from tests.support.wait import until, until_now

SIZE_BYTES = 3 << 20
OPTIONS = ("--journal-segment", str(256 << 10), "--log-segment", str(256 << 10))


async def produced(broker: BrokerProcess, number: int) -> dict:
    return await broker.ask("produce", topic="t", partition=0, values=[f"p:{number}" + "." * 2_000])


async def fill(broker: BrokerProcess) -> int:
    """Produce until the disk is full; returns the number of accepted messages."""
    for number in range(5_000):
        reply = await produced(broker, number)
        if reply["reply"] == "Rejected":
            assert reply["code"] == "DISK_FULL", reply
            return number
    raise AssertionError("the disk was never full")


def test_a_full_disk_refuses_produces_lets_acks_pass_and_serves_again_when_space_returns(tmp_path, profile):
    async def scenario(folder: str, ballast: str) -> None:
        broker = await BrokerProcess.start(folder, *OPTIONS)
        await broker.ask("topic", topic="t", partitions=1)
        taken = await fill(broker)
        assert taken > 20
        claimed = await broker.ask("claim", topic="t", owner="w", max=10)
        assert [offset for _, offset, _ in claimed["messages"]] == list(range(10))
        for _, offset, _ in claimed["messages"]:
            ask = {"topic": "t", "owner": "w", "partition": 0, "offset": offset, "token": claimed["token"]}
            assert (await broker.ask("ack", **ask))["reply"] == "Settlement"
        assert len((await broker.ask("read", topic="t", partition=0, offset=0))["records"]) == taken
        assert (await produced(broker, taken))["code"] == "DISK_FULL"
        os.unlink(ballast)

        async def is_taken() -> bool:
            return (await produced(broker, taken))["reply"] == "Produced"

        await until(is_taken, 20)
        await broker.kill()
        broker = await BrokerProcess.start(folder, *OPTIONS)
        records = (await broker.ask("read", topic="t", partition=0, offset=0))["records"]
        assert [value.rstrip(".") for _, value in records] == [f"p:{number}" for number in range(taken + 1)]
        again = await broker.ask("claim", topic="t", owner="w", max=1_000)
        assert min(offset for _, offset, _ in again["messages"]) == 10, "what was acked on the full disk stays acked"
        assert await broker.stop() == 0

    with tmpfs(tmp_path / "small", SIZE_BYTES, profile) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        asyncio.run(scenario(str(folder / "data"), str(ballast)))


def test_a_broker_killed_on_a_full_disk_opens_again(tmp_path, profile):
    async def scenario(folder: str) -> None:
        broker = await BrokerProcess.start(folder, *OPTIONS)
        await broker.ask("topic", topic="t", partitions=1)
        taken = await fill(broker)
        await broker.kill()
        broker = await BrokerProcess.start(folder, *OPTIONS)
        assert len((await broker.ask("read", topic="t", partition=0, offset=0))["records"]) == taken
        await broker.kill()

    with tmpfs(tmp_path / "small", SIZE_BYTES, profile) as folder:
        asyncio.run(scenario(str(folder / "data")))


def test_a_folder_that_does_not_fit_is_refused_when_it_is_made(tmp_path, profile):
    with tmpfs(tmp_path / "tiny", 64 << 10, profile) as folder:
        with pytest.raises(Ended) as ended:
            asyncio.run(BrokerProcess.start(str(folder / "data"), *OPTIONS))
        assert ended.value.code == Exit.CANNOT_CREATE
        assert "no room" in ended.value.errors


def test_a_server_on_a_full_disk_is_not_ready_and_says_why(tmp_path, profile):
    settings = ("storage.segment_bytes=262144", "limits.batch_bytes=65536", "limits.message_bytes=32768")
    with tmpfs(tmp_path / "small", SIZE_BYTES, profile) as folder:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes(1 << 20))
        with running(str(folder / "data"), *settings) as server:
            assert server.call("POST", "/v1/topics?name=t&partitions=1").status == 201
            body = {"topic": "t", "value": "v" * 8_000}
            assert server.call("GET", "/v1/readyz").status == 200
            while server.call("POST", "/v1/produce", body).status == 200:
                pass
            assert server.call("POST", "/v1/produce", body).json()["error"] == "DISK_FULL"
            ready = server.call("GET", "/v1/readyz")
            assert ready.status == 503
            assert (ready.json()["reason"], ready.json()["folder"]) == ("disk_full", str(folder / "data"))
            assert "retry-after" in ready.headers
            assert server.call("POST", "/v1/claim", {"topic": "t", "group": "new", "owner": "w"}).json()["messages"]
            ballast.unlink()
            until_now(lambda: server.call("GET", "/v1/readyz").status == 200, 20)
            assert server.call("POST", "/v1/produce", body).status == 200

"""The registry of workers: entries that end by themselves, commands that reach their process, and bounds."""

from __future__ import annotations

import asyncio

from driftq.server.worker_registry import HEARTBEATS_PER_S_MAX, TTL_S_MIN, WorkerRegistry
from driftq.wire.workers import HEARTBEAT_MS, HeartbeatRequest
from tests.support.handler_fixture import handler_fixture


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def heartbeat(host: str = "h") -> HeartbeatRequest:
    return HeartbeatRequest(host, 7, "1.0")


def test_an_entry_lives_as_long_as_its_heartbeats():
    clock = Clock()
    registry = WorkerRegistry(clock)
    registry.heartbeat("a", heartbeat(), 100)
    clock.now_s += TTL_S_MIN / 2
    registry.heartbeat("b", heartbeat(), 100)
    registry.heartbeat("a", heartbeat("again"), 100)
    clock.now_s += TTL_S_MIN
    assert len(registry) == 2
    clock.now_s += 0.1
    assert len(registry) == 0
    assert registry.find("a") is None


def test_a_command_is_returned_with_every_heartbeat_and_a_stop_is_not_taken_back():
    registry = WorkerRegistry(Clock())
    assert registry.request("a", "drain") is None
    first = registry.heartbeat("a", heartbeat(), 100)
    assert first is not None
    assert first.command == ""
    for asked, expected in (("drain", "drain"), ("stop", "stop"), ("drain", "stop")):
        registry.request("a", asked)
        for _ in range(2):
            reply = registry.heartbeat("a", heartbeat(), 100)
            assert reply is not None
            assert reply.command == expected


def test_the_number_of_entries_and_their_bytes_are_bounded():
    clock = Clock()
    registry = WorkerRegistry(clock, entries_max=3, bytes_max=1_000)
    for id in "abc":
        assert registry.heartbeat(id, heartbeat(), 300) is not None
    assert registry.heartbeat("d", heartbeat(), 1) is None
    assert registry.heartbeat("a", heartbeat(), 400) is not None
    assert registry.heartbeat("a", heartbeat(), 401) is None, "too many bytes: the entry is given up"
    assert [entry.id for entry in registry.page("", 10)[0]] == ["b", "c"]
    assert registry.remove("b")
    assert not registry.remove("b")
    assert registry.heartbeat("a", heartbeat(), 700) is not None
    clock.now_s += 1_000
    assert registry.heartbeat("e", heartbeat(), 1_000) is not None, "what ended takes no room"


def test_many_entries_send_fewer_heartbeats():
    registry = WorkerRegistry(Clock())
    for number in range(10 * HEARTBEATS_PER_S_MAX):
        registry.heartbeat(str(number), heartbeat(), 100)
    assert registry.heartbeat_ms == 10_000
    assert WorkerRegistry(Clock()).heartbeat_ms == HEARTBEAT_MS


def test_a_page_is_bounded_by_entries_and_by_bytes():
    registry = WorkerRegistry(Clock())
    for number in range(30):
        registry.heartbeat(f"w{number:02}", heartbeat(), 100 << 10)
    ids: list[str] = []
    pages = 0
    has_more = True
    while has_more:
        entries, has_more = registry.page(ids[-1] if ids else "", 7)
        ids += [entry.id for entry in entries]
        pages += 1
    assert ids == [f"w{number:02}" for number in range(30)]
    assert pages == 5
    assert len(registry.page("", 1_000)[0]) < 30, "a page has about a megabyte"


def test_the_calls_list_workers_and_refuse_what_is_wrong():
    async def steps() -> None:
        async with handler_fixture() as at:
            worker = {
                "name": "app.send",
                "topic": "emails",
                "group": "g",
                "task": "send.v1",
                "concurrency": 4,
                "busy": 1,
            }
            body = {
                "host": "h",
                "pid": 7,
                "version": "1.0",
                "uptime_ms": 5_000,
                "workers": [worker, {**worker, "task": "b"}],
            }
            assert (await at.call("PUT", "/v1/workers/w1", body)).body == {"command": "", "heartbeat_ms": HEARTBEAT_MS}
            (info,) = (await at.call("GET", "/v1/workers")).body["workers"]
            assert (info["id"], info["concurrency"], info["busy"], info["tasks"]) == ("w1", 8, 2, ["b", "send.v1"])
            shown = (await at.call("GET", "/v1/workers/w1")).body
            assert shown.keys() == info.keys()
            # Only the broker's clock stands still here, so its times move back.
            assert info == {**shown, "seen": info["seen"], "since": info["since"]}
            asked = await at.call("POST", "/v1/workers/w1/drain")
            assert (asked.status, asked.body["command"]) == (202, "drain")
            assert (await at.call("PUT", "/v1/workers/w1", body)).body["command"] == "drain"
            assert (await at.call("DELETE", "/v1/workers/w1")).status == 204
            assert (await at.call("DELETE", "/v1/workers/w1")).status == 204
            for call in (("GET", "/v1/workers/w1"), ("POST", "/v1/workers/w1/stop"), ("POST", "/v1/workers/w1/drain")):
                assert (await at.call(*call)).status == 404
            for wrong in (
                {},
                {**body, "pid": -1},
                {**body, "state": "asleep"},
                {**body, "more": 1},
                {**body, "host": "h" * 300},
                {**body, "workers": [worker] * 501},
                b" " * (300 << 10),
            ):
                assert (await at.call("PUT", "/v1/workers/w1", wrong)).status == 400
            assert (await at.call("PUT", f"/v1/workers/{'w' * 300}", body)).status == 400
            assert (await at.call("GET", "/v1/workers")).body == {"workers": []}

    asyncio.run(steps())

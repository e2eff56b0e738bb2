"""Both clients against a real broker: the same methods, replies and errors."""

from __future__ import annotations

import asyncio
import gc
import inspect
import pydoc
import socket
import threading
import warnings

import pytest

import driftq
from driftq.client import api
from driftq.client.endpoint import AsyncApi, SyncApi
from driftq.client.transport.sansio import RetryOptions
from tests.support.server import Server
from tests.support.wait import until


@pytest.fixture
def topic(broker, request):
    name = request.node.name[:200]
    broker.topics.create(name, partitions=3)
    return name


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (kind, other)
        for name, kind in vars(api).items()
        if isinstance(kind, type) and issubclass(kind, SyncApi) and kind is not SyncApi
        if (other := getattr(api, f"Async{name}", None)) is not None
    ],
)
def test_both_clients_have_the_same_methods_with_the_same_arguments(blocking, awaited):
    assert public(blocking) - {"asynchronous"} == public(awaited)
    for name in public(awaited):
        mine, theirs = getattr(blocking, name), getattr(awaited, name)
        if inspect.isfunction(mine):
            assert [*inspect.signature(mine).parameters] == [*inspect.signature(theirs).parameters], name
        else:
            assert mine is theirs or not hasattr(mine, "__wrapped__"), f"{name} is not a single word"


def test_every_method_has_a_docstring_and_typed_parameters(broker):
    assert "partitions" in inspect.signature(broker.topics.create).parameters
    assert "on disk" in (type(broker).send.__doc__ or "")
    shown = pydoc.plain(pydoc.render_doc(broker.send))
    assert "send(topic: str, value: Value, *, key: str = ''," in shown
    assert ") -> ProduceReply\n" in shown, "what it returns, not the call that it builds"
    assert "Chooses the partition" in shown
    assert str(inspect.signature(broker.topics.list)).endswith(" -> list[str]")
    awaited = broker.asynchronous()
    assert str(inspect.signature(awaited.topics.list)).endswith(" -> Awaitable[list[str]]")
    assert str(inspect.signature(awaited.schedules.iterate)).endswith(" -> AsyncIterator[ScheduleInfo]")
    assert issubclass(api.AsyncDriftQ, AsyncApi)


def test_a_message_is_delivered_as_it_was_sent(broker, topic):
    values = [b"bytes \xff\x00", "text é", "", {"json": [1, None]}, 7]
    for value in values:
        broker.send(topic, value, key="k")
    messages = broker.claim(topic, "g", max=10)
    assert [message.value for message in messages] == [
        b"bytes \xff\x00", "text é".encode(), b"", b'{"json":[1,null]}', b"7",
    ]  # fmt: skip
    assert messages[1].text == "text é"
    assert messages[3].json() == {"json": [1, None]}
    assert messages[4].json(int) == 7
    assert {message.key for message in messages} == {"k"}
    assert not broker.ack(messages).refused
    assert broker.groups.describe(topic, "g").lag == 0


def test_an_idempotency_key_stores_a_message_once(broker, topic):
    first = broker.send(topic, "a", idempotency_key="k1")
    again = broker.send(topic, "a", idempotency_key="k1")
    assert (again.partition, again.offset, again.duplicate) == (first.partition, first.offset, True)


def test_the_fields_of_an_envelope_arrive(broker, topic):
    broker.send(topic, "x", run_id="r", step_id="s", parent_step_id="p", tenant="acme", labels={"kind": "plan"})
    (message,) = broker.claim(topic, "g")
    envelope = message.envelope
    assert (envelope.run_id, envelope.step_id, envelope.parent_step_id) == ("r", "s", "p")
    assert (envelope.tenant_id, envelope.labels) == ("acme", {"kind": "plan"})


def test_each_message_of_a_batch_has_a_result(broker, topic):
    reply = broker.send_many(topic, ["a", {"b": 1}, b"c"])
    assert (reply.produced, reply.failed) == (3, 0)
    assert [result.offset for result in reply.results] == [0, 1, 2]


def test_a_with_block_acks_its_message_or_nacks_it_with_the_error(broker, topic):
    broker.send(topic, "good")
    (message,) = broker.claim(topic, "g")
    with message:
        pass
    assert message.settled
    broker.send(topic, "bad")
    (message,) = broker.claim(topic, "g")
    with pytest.raises(ValueError, match="boom"), message:
        raise ValueError("boom")
    broker.send(topic, "never")
    (message,) = broker.claim(topic, "g")
    with message:
        raise driftq.Reject("not for us")
    (letter,) = broker.dead_letters.list(topic)
    assert letter.dlq is not None
    assert "not for us" in letter.dlq.last_error + letter.dlq.reason


def test_a_message_of_another_worker_cannot_be_acked(broker, topic):
    broker.send(topic, "x")
    (message,) = broker.claim(topic, "g")
    message.release()
    (again,) = broker.claim(topic, "g")
    with pytest.raises(driftq.errors.LeaseLost) as caught:
        message.ack()
    assert caught.value.status == 409
    assert "claim again" in str(caught.value)
    again.ack()
    again.ack()  # idempotent


def test_refusals_name_what_to_do(broker):
    with pytest.raises(driftq.errors.NotFound) as caught:
        broker.send("nowhere", "x")
    assert not caught.value.retryable
    assert "create it first" in str(caught.value)
    with pytest.raises(driftq.errors.InvalidCall):
        broker.topics.create("bad name!")
    with pytest.raises(driftq.errors.InvalidCall):
        broker.topics.change("t", colour="red")
    with pytest.raises(driftq.errors.InvalidCall):
        driftq.connect("ftp://example.org")


def test_the_offsets_of_many_topics_take_one_call(broker, topic):
    other = f"{topic}.b"
    broker.topics.create(other)
    for number in range(3):
        broker.send(other, f"value {number}")
    reply = broker.topics.offsets_of([topic, "nowhere", other], last=True)
    assert (reply.answered, [topic_offsets.topic for topic_offsets in reply.topics]) == (3, [topic, other])
    assert [(log.partition, log.start, log.end) for log in reply.topics[0].partitions] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    [log] = reply.topics[1].partitions
    single = broker.topics.offsets(other, last=True)
    assert (log.start, log.end, log.payload_bytes) == (0, 3, 21)
    assert (log.last, reply.instance) == (single.partitions[0].last, single.instance)
    assert broker.topics.offsets_of([other]).topics[0].partitions[0].last == ""
    with pytest.raises(driftq.errors.InvalidCall):
        broker.topics.offsets_of([])
    with pytest.raises(driftq.errors.InvalidCall):
        broker.topics.offsets_of(["t"] * 1_001)


def test_a_reply_about_many_partitions_ends_and_says_how_far_it_got(broker, topic):
    broker.topics.create(f"{topic}.wide", partitions=1_024)
    names = [f"{topic}.wide"] * 12
    reply = broker.topics.offsets_of(names)
    assert (reply.answered, len(reply.topics)) == (10, 10)
    assert broker.topics.offsets_of(names[reply.answered :]).answered == 2


def test_a_reader_commits_its_own_offsets_and_nothing_is_claimed_from_its_group(broker, topic):
    broker.send(topic, "x", key="a")
    ends = {log.partition: log.end for log in broker.topics.offsets(topic).partitions}
    broker.groups.commit_offsets("warehouse", {topic: dict.fromkeys(ends, 0)})
    assert broker.groups.describe(topic, "warehouse").lag == 1
    broker.groups.commit_offsets("warehouse", {topic: ends})
    group = broker.groups.describe(topic, "warehouse")
    assert (group.lag, group.commits_offsets) == (0, True)
    with pytest.raises(driftq.errors.Conflict, match="commits the offsets of a reader"):
        broker.claim(topic, "warehouse")
    with pytest.raises(driftq.errors.InvalidCall, match="cannot have read up to 9"):
        broker.groups.commit_offsets("warehouse", {topic: {0: 9}})


def test_a_topic_can_be_described_changed_and_deleted(broker, topic):
    assert topic in broker.topics.list()
    assert broker.topics.change(topic, retention_ms=1_000).config["retention_ms"] == 1_000
    broker.send(topic, "x", key="a")
    assert sum(part.end for part in broker.topics.offsets(topic).partitions) == 1
    broker.claim(topic, "g")
    broker.groups.pause(topic, "g")
    assert broker.groups.describe(topic, "g").paused
    broker.groups.resume(topic, "g")
    broker.groups.seek(topic, "g", "latest")
    assert [group.group for group in broker.groups.list(topic)] == ["g"]
    broker.topics.delete(topic)
    assert topic not in broker.topics.list()


def test_an_outcome_is_all_or_nothing(broker, topic):
    broker.topics.create(f"{topic}-next")
    broker.stream(f"{topic}/log", "text/plain").create()
    broker.send(topic, "work")
    (message,) = broker.claim(topic, "g")
    with message.outcome() as outcome:
        outcome.send(f"{topic}-next", "follows").append(f"{topic}/log", "done\n", content_type="text/plain")
    assert message.settled
    (follows,) = broker.claim(f"{topic}-next", "g")
    assert follows.text == "follows"
    assert broker.stream(f"{topic}/log").read().text == "done\n"
    broker.send(topic, "more")
    (message,) = broker.claim(topic, "g")
    with pytest.raises(driftq.errors.NotFound), message.outcome() as outcome:
        outcome.send("nowhere", "x")
    assert not message.settled
    message.ack()  # it is still held


def test_an_effect_happens_once_even_for_two_messages_with_the_same_key(broker, topic):
    for _ in range(2):
        broker.send(topic, "pay", key="a", labels={"n": "1"})
    done = []
    for message in broker.claim(topic, "g", max=2):
        with message.effect("payment-1") as effect:
            if effect.fresh:
                done.append(message.offset)
                effect.result = {"receipt": 17}
        assert effect.result == {"receipt": 17}
        if not message.settled:
            message.ack()
    assert len(done) == 1
    assert broker.groups.describe(topic, "g").lag == 0


def test_an_effect_that_fails_can_be_tried_again(broker, topic):
    broker.send(topic, "pay")
    (message,) = broker.claim(topic, "g")
    with pytest.raises(RuntimeError), message.effect() as effect:
        raise RuntimeError("the gateway is down")
    assert broker.find_effect(topic, "g", effect.key)["status"] == "FAILED"
    with message.effect() as effect:
        assert effect.fresh
    assert message.settled


def test_a_job_can_be_found_and_cancelled(broker, topic):
    broker.send(topic, {"n": 1}, task="a.v1", id="job-1", delay_ms=60_000)
    assert broker.jobs.find(topic, "job-1")["task"] == "a.v1"
    broker.claim(topic, "g")
    assert broker.jobs.cancel(topic, "job-1")


def test_a_client_continues_after_a_restart_of_the_broker(tmp_path):
    server = Server(str(tmp_path))
    port = server.port
    with driftq.connect(f"http://127.0.0.1:{port}") as broker:
        broker.topics.create("t")
        broker.send("t", "before")
        server.kill()
        restarted: list[Server] = []
        thread = threading.Thread(target=lambda: restarted.append(Server(str(tmp_path), port=port)))
        thread.start()
        broker.send("t", "after", idempotency_key="k")  # waits for the broker and goes through
        thread.join()
        assert [message.text for message in broker.claim("t", "g", max=5)] == ["before", "after"]
        restarted[0].stop()


def disconnect_after(lines: int) -> tuple[int, list[bytes]]:
    """A listener that reads a request and disconnects without a reply, `lines` times; then nothing listens."""
    listening = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        with listening:
            for _ in range(lines):
                connection, _ = listening.accept()
                with connection:
                    seen.append(connection.recv(65_536))

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()[1], seen


def test_a_call_without_a_reply_is_retried_only_if_it_is_idempotent():
    retry = RetryOptions(deadline_ms=1_000, first_contact_ms=1_000, backoff_ms=10)
    port, seen = disconnect_after(2)
    with driftq.connect(f"http://127.0.0.1:{port}", retry=retry) as broker:
        with pytest.raises(driftq.errors.OutcomeUnknown):
            broker.send("t", "once")
        assert len(seen) == 1
    port, seen = disconnect_after(2)
    with driftq.connect(f"http://127.0.0.1:{port}", retry=retry) as broker:
        with pytest.raises(driftq.errors.DriftQError):
            broker.send("t", "twice", idempotency_key="k")
        assert len(seen) == 2


def test_threads_share_a_client(broker, topic):
    def send(number: int) -> None:
        for index in range(50):
            broker.send(topic, f"{number}-{index}", key=str(number))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [message.text for message in broker.claim(topic, "g", max=1_000)]
    assert len(seen) == len(set(seen)) == 400


def test_the_async_client_behaves_the_same(server, topic):
    async def talk() -> None:
        async with driftq.connect_async(f"http://127.0.0.1:{server.port}") as broker:
            await broker.send(topic, {"n": 1}, key="a")
            await asyncio.gather(*(broker.send(topic, {"n": number}) for number in range(2, 20)))
            async for message in broker.consume(topic, "g"):
                async with message:
                    assert message.json()["n"] >= 1
                if (await broker.groups.describe(topic, "g")).lag == 0:
                    break
            with pytest.raises(driftq.errors.NotFound):
                await broker.topics.describe("nowhere")
            await broker.send(topic, "pay")
            (message,) = await broker.claim(topic, "g")
            async with message.effect() as effect:
                effect.result = 1
            assert message.settled
            await broker.send(topic, "more")
            (message,) = await broker.claim(topic, "g")
            async with message.outcome() as outcome:
                outcome.send(topic, "next")
            (message,) = await broker.claim(topic, "g")
            assert message.text == "next"
            await message.reject("enough")

    asyncio.run(talk())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_can_be_used_in_several_loops(server, topic):
    broker = driftq.connect_async(f"http://127.0.0.1:{server.port}")
    for _ in range(3):
        assert topic in asyncio.run(broker.topics.list())
    del broker
    gc.collect()  # connections of loops that are over are closed by the collector: here, not later


def test_a_client_that_is_not_closed_leaks_no_socket(server):
    broker = driftq.connect(f"http://127.0.0.1:{server.port}")
    broker.topics.list()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ResourceWarning)
        del broker
        gc.collect()
    assert not heard


def test_closing_an_async_client_closes_the_sockets_of_calls_that_are_under_way(server, broker, topic):
    async def talk() -> None:
        client = driftq.connect_async(f"http://127.0.0.1:{server.port}")
        claim = asyncio.ensure_future(client.claim(topic, "g", wait_ms=30_000))
        transport = client._transport
        await until(lambda: _connected(transport), 10)
        await client.close()
        assert not transport._connections
        with pytest.raises(driftq.errors.DriftQError):
            await claim

    asyncio.run(talk())


async def _connected(transport) -> bool:
    return bool(transport._connections)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_messages_that_wait_while_another_is_handled_keep_their_lease(broker, server, asynchronous):
    topic = f"waiting.{asynchronous}"
    broker.topics.create(topic, retry={"backoff_ms": 1})
    broker.send_many(topic, [str(number) for number in range(8)])
    seen: list[tuple[str, int]] = []
    taken: list[driftq.Message] = []
    working = threading.Event()

    def handle(message):
        working.wait(0.2)
        seen.append((message.text, message.attempts))
        taken.extend(broker.claim(topic, "g", max=8))  # by another worker of the group
        return len(seen) == 8

    async def read() -> None:
        async with driftq.connect_async(server.url) as other:
            async for message in other.consume(topic, "g", prefetch=8, lease_ms=600):
                done = handle(message)
                await message.ack()
                if done:
                    return

    if asynchronous:
        asyncio.run(read())
    else:
        for message in broker.consume(topic, "g", prefetch=8, lease_ms=600):
            done = handle(message)
            message.ack()
            if done:
                break
    assert seen == [(str(number), 1) for number in range(8)]
    assert not taken

"""A call that is not awaited is an error: of the next call, of the producer, and of the attempt in a worker."""

from __future__ import annotations

import asyncio
import inspect
import pydoc

import pytest

import driftq
from driftq.client.pending_call import ForgottenCalls, Pending
from driftq.testing import memory_broker


@pytest.fixture(scope="module")
def memory():
    with memory_broker() as broker:
        broker.topics.create("t", 2)  # `partitions` by position
        yield broker


async def value(number: int) -> int:
    await asyncio.sleep(0)
    return number


def test_a_pending_call_is_a_coroutine_like_any_other():
    async def steps() -> list[int]:
        calls = ForgottenCalls()

        def pending(number: int) -> Pending[int]:
            return Pending(value(number), calls, "value")

        results = [
            await pending(1),
            await asyncio.create_task(pending(2)),
            await asyncio.wait_for(pending(3), 20),
            *await asyncio.gather(pending(4), pending(5)),
        ]
        pending(6).close()  # given up on purpose
        calls.check()
        return results

    assert asyncio.run(steps()) == [1, 2, 3, 4, 5]
    assert asyncio.run(Pending(value(7), ForgottenCalls(), "value")) == 7


def test_a_forgotten_call_is_raised_by_the_next_one(memory, caplog):
    async def steps() -> None:
        async with memory.asynchronous() as broker:
            broker.send("t", "never sent")
            with pytest.raises(driftq.errors.InvalidCall, match=r"send\(\) was not awaited"):
                await broker.topics.list()
            assert "t" in await broker.topics.list(), "it is raised once"

    asyncio.run(steps())
    assert "send() was not awaited, so it did not happen: write `await send(…)`" in caplog.text


@pytest.mark.parametrize("how", ["append", "flush", "close"])
def test_a_forgotten_append_is_raised_by_its_producer(memory, how):
    async def steps() -> None:
        async with memory.asynchronous() as broker:
            stream = broker.stream(f"forgotten/{how}", "text/plain")
            await stream.create()
            tokens = stream.producer()
            await tokens.append("a")
            tokens.append("b")
            with pytest.raises(driftq.errors.InvalidCall, match=r"append\(\) was not awaited"):
                await (tokens.append("c") if how == "append" else getattr(tokens, how)())
            await tokens.close()
            assert (await stream.read_all()).data == b"a"

    asyncio.run(steps())


def test_leaving_the_block_of_a_producer_raises_what_was_forgotten_in_it(memory):
    async def steps() -> None:
        async with memory.asynchronous() as broker:
            with pytest.raises(driftq.errors.InvalidCall, match="was not awaited"):
                async with broker.producer("t") as orders:
                    orders.send("x")

            async def fail() -> None:
                async with broker.producer("t") as orders:
                    orders.send("x")
                    raise KeyError

            with pytest.raises(KeyError):  # the error of the block matters more
                await fail()

    asyncio.run(steps())


def test_an_attempt_that_forgot_a_call_fails(memory):
    @driftq.worker("t", group="forgetful")
    async def work(message: driftq.AsyncMessage) -> None:
        message.stream("tokens/1").append("lost")  # no await

    memory.send("t", "x", retry=driftq.RetryPolicy(max_attempts=1))
    assert memory.drain(work)[0].failed == 1
    (letter,) = memory.dead_letters.list("t")
    assert "append() was not awaited" in letter.dlq.last_error


def test_jobs_are_enqueued_with_a_value_and_options(memory):
    first = memory.jobs.enqueue("t", {"to": "ann"}, task="email.v1", id="mail-1", delay_ms=60_000)
    again = memory.jobs.enqueue("t", {"to": "ann"}, task="email.v1", id="mail-1", delay_ms=60_000)
    assert (first.id, first.duplicate, again.duplicate) == ("mail-1", False, True)
    assert memory.jobs.find("t", "mail-1")["state"] == "scheduled"
    with pytest.raises(driftq.errors.InvalidCall, match="a job has a task, an id, or both"):
        memory.jobs.enqueue("t", "x")


@pytest.mark.parametrize("thing", ["memory.send", "driftq.DriftQ.send", "driftq.AsyncDriftQ.send"])
def test_help_shows_the_parameters_and_their_meaning(memory, thing):
    shown = pydoc.render_doc(eval(thing, {"memory": memory, "driftq": driftq}), renderer=pydoc.plaintext)
    unquoted = shown.replace("'str'", "str").replace("'Value'", "Value")
    assert "send(topic: str, value: Value, *, key: str = ''" in unquoted
    assert thing != "memory.send" or ") -> ProduceReply\n" in shown, "what it returns, not the call that it builds"
    assert "idempotency_key: The same key again, within ten minutes, stores nothing" in shown


def test_every_public_name_explains_itself():
    silent = [name for name in driftq.__all__ if name != "__version__" and not inspect.getdoc(getattr(driftq, name))]
    assert not silent
    for kind in (driftq.DriftQ, type(driftq.connect().topics), type(driftq.connect().jobs), driftq.Message):
        members = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
        assert not [name for name in members if not inspect.getdoc(inspect.getattr_static(kind, name))], kind


def test_methods_can_be_called_on_their_class(memory):
    assert driftq.DriftQ.send(memory, "t", "x").topic == "t"
    assert "t" in type(memory.topics).list(memory.topics)

"""Middleware that is not used costs nothing: the loop calls the function itself."""

from __future__ import annotations

import asyncio

import driftq
from driftq.client.worker.hooks import HookChain


class Idle(driftq.Middleware):
    """Defines no hook."""


class Start(driftq.Middleware):
    """A hook of the process, none of an attempt."""

    def startup(self, context: dict[str, object]) -> None:
        """Nothing."""


def before(message: object) -> None:
    """Nothing."""


def test_without_hooks_of_an_attempt_the_loop_calls_the_function_itself() -> None:
    @driftq.worker("orders", group="billing")
    async def handle(message: driftq.AsyncMessage) -> None: ...

    async def handlers() -> list[object]:
        hooks = driftq.Hooks()
        hooks.before(before)
        async with driftq.connect_async("http://127.0.0.1:1") as client:
            given: list[list[driftq.Middleware]] = [[], [Idle(), Start()], [hooks]]
            return [handle.new_loop(client, middleware)._handler for middleware in given]

    none, idle, used = asyncio.run(handlers())
    assert none is idle is handle.function
    assert used is not handle.function
    assert HookChain.of([Idle(), Start()]) is None

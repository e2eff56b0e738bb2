"""What a claim gives and how it is handed back: pure, for messages, workers and outcomes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from driftq.client import calls
from driftq.client.errors import code_of, refused
from driftq.client.flows import Call
from driftq.client.http import Reply
from driftq.wire.queue import Delivered, SettleReply


class Place(NamedTuple):
    """Under which claim a message was taken."""

    topic: str
    group: str
    owner: str


class Held(Protocol):
    """Whatever was claimed and is not settled yet."""

    @property
    def place(self) -> Place: ...
    @property
    def delivered(self) -> Delivered: ...


def runs(messages: Iterable[Held]) -> list[dict[str, object]]:
    """Neighbours under one token are named together."""
    found: list[dict[str, object]] = []
    last = end = -1
    token = ""
    for message in messages:
        each = message.delivered
        if found and (each.partition, each.offset, each.token) == (last, end, token):
            end += 1
            found[-1]["end"] = end
            continue
        last, end, token = each.partition, each.offset + 1, each.token
        found.append({"partition": last, "offset": each.offset, "end": end, "token": token})
    return found


def settle(verb: str, messages: Sequence[Held], **more: object) -> Call[SettleReply]:
    """One call for messages of one group."""
    place = messages[0].place
    return calls.settle(verb, place.topic, place.group, place.owner, runs(messages), **more)


def settle_one(verb: str, message: Held, done: Callable[[], None], **more: object) -> Call[None]:
    """For one message: its refusal is the call's."""
    call = settle(verb, [message], **more)

    def read(reply: Reply) -> None:
        settled = call.read(reply)
        if settled.refused:
            first = settled.refused[0]
            raise refused(code_of(first.error, 409), first.message, 409)
        done()

    return Call("POST", call.path, read, refusal=call.refusal, body=call.body, repeatable=True)


def ack_part(message: Held) -> dict[str, object]:
    """An ack as a part of an outcome."""
    place = message.place
    return {"topic": place.topic, "group": place.group, "owner": place.owner, "messages": runs([message])}

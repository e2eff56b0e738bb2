"""What a router receives and returns: the same for the broker's router at produce and for a pipeline over a topic.

A router takes a `RouteInput` and returns a `RouteDecision`, or None to leave the message as it is. It cannot change the
payload and cannot refuse a message. Calling routers, and handling their failures, is done elsewhere.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from driftq.wire.fields import NAME_LENGTH_MAX
from driftq.wire.message import Envelope

META_ENTRIES_MAX = 32

_Label = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
_MetaKey = Annotated[str, Meta(min_length=1, max_length=128)]
_MetaValue = Annotated[str, Meta(max_length=1_024)]
_UNREAD = object()


class RouteDecision(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a message goes. Empty fields leave it to the envelope and the hash of the key."""

    label: _Label = ""
    target_topic: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    partition_override: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    meta: Annotated[dict[_MetaKey, _MetaValue], Meta(max_length=META_ENTRIES_MAX)] | None = None


class BadRouteDecision(Exception):
    """What a router returned is not a decision."""


class RouteInput:
    """A message that is being produced: the requested topic, key, value and envelope. It is read-only."""

    __slots__ = ("_json", "envelope", "key", "task", "topic", "value")

    def __init__(
        self, topic: str, value: bytes, key: str = "", envelope: Envelope | None = None, task: str = ""
    ) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.envelope = envelope or Envelope()
        self.task = task
        self._json: Any = _UNREAD

    def json(self) -> Any:
        """The value parsed as JSON; None if it is not JSON."""
        if self._json is _UNREAD:
            try:
                self._json = msgspec.json.decode(self.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._json = None
        return self._json


def checked(answer: object) -> RouteDecision | None:
    """A router's answer as a decision. A mapping works like a `RouteDecision`. Raises `BadRouteDecision`."""
    if answer is None:
        return None
    plain = msgspec.to_builtins(answer) if isinstance(answer, RouteDecision) else answer
    try:
        return msgspec.convert(plain, RouteDecision)
    except msgspec.ValidationError as error:
        raise BadRouteDecision(str(error)) from None


class RouteReply(Struct, frozen=True, omit_defaults=True):
    """What would happen to a message. `result` is what came of calling the router: routed, unrouted, timeout, error,
    invalid, none (there is no router), or not_asked (the idempotency key is known, so the message would go where the
    first one went). `refused` is the error that a produce would get."""

    topic: str
    router: str
    result: str
    routed_topic: str
    explanation: list[str]
    partition: int | None = None
    label: str = ""
    meta: dict[str, str] | None = None
    decision: RouteDecision | None = None
    duplicate: bool = False
    refused: dict[str, Any] | None = None

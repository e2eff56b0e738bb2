"""What a router sees and what it may say: the same for the broker's hook at produce and for a pipeline over a topic.

A router takes a `RouteInput` and gives a `RouteDecision`, or None for "leave it as it is". It decides; it cannot change
the payload and cannot stop a message. How routers are asked, and what happens when one fails, is not known here.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from driftq.wire.message import Envelope

LABEL_MAX = 249
META_MAX = 32

_Label = Annotated[str, Meta(max_length=LABEL_MAX)]
_MetaKey = Annotated[str, Meta(min_length=1, max_length=128)]
_MetaValue = Annotated[str, Meta(max_length=1_024)]
_UNREAD = object()


class RouteDecision(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a message goes. What is empty is left to the envelope and the key's hash."""

    label: _Label = ""
    target_topic: Annotated[str, Meta(max_length=249)] = ""
    partition_override: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    meta: Annotated[dict[_MetaKey, _MetaValue], Meta(max_length=META_MAX)] | None = None


class BadRouteDecision(Exception):
    """What a router gave is no decision."""


class RouteInput:
    """A message that is being produced: the requested topic, key, value and envelope. Nothing of it may be changed."""

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
        """The value read as JSON; None if it is not JSON."""
        if self._json is _UNREAD:
            try:
                self._json = msgspec.json.decode(self.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._json = None
        return self._json


def checked(answer: object) -> RouteDecision | None:
    """An answer from outside, as a decision. Mappings work like `RouteDecision`; raises `BadRouteDecision`."""
    if answer is None:
        return None
    plain = msgspec.to_builtins(answer) if isinstance(answer, RouteDecision) else answer
    try:
        return msgspec.convert(plain, RouteDecision)
    except msgspec.ValidationError as error:
        raise BadRouteDecision(str(error)) from None

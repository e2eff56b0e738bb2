"""Commands of an operator on messages: retry them at once, redrive, move or delete them, purge a topic.

They are parts of larger pieces of work. The server finds the messages, a slice at a time, and names them here.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.commands import Command, Held, Produce


class RetryMessages(Command, frozen=True):
    """Messages of a partition that wait for a time, in backoff or delayed, are due now, for every group."""

    topic: str
    partition: int
    offsets: tuple[int, ...]


class PurgeTopic(Command, frozen=True):
    """Drop every message of a topic, for every group, whatever state it is in."""

    topic: str


class MovePart(Struct, frozen=True, gc=False):
    """Messages of one partition, and the batch that stores them in another topic: its record i is the message at
    `offsets[i]`. The message of a job with an id has a part of its own."""

    partition: int
    offsets: tuple[int, ...]
    produce: Produce


class MoveMessages(Command, frozen=True):
    """Produce messages to another topic and settle the originals for every group, in one frame. Idempotent. Each part
    is all or nothing: one that is refused changes nothing, and the others take effect."""

    topic: str
    parts: tuple[MovePart, ...]


class RedrivePart(Struct, frozen=True, gc=False):
    """Dead letters of one partition, and the batch that sends them back: its record i is the letter at `offsets[i]`. A
    letter of a job with an id has a part of its own."""

    partition: int
    offsets: tuple[int, ...]
    produce: Produce


class Redrive(Command, frozen=True):
    """Produce dead letters again and settle them for the group that redrives, in one frame. Idempotent. Each part is
    all or nothing: one that is refused changes nothing, and the others take effect."""

    topic: str
    group: str
    parts: tuple[RedrivePart, ...]


class DeleteDeadLetters(Command, frozen=True):
    """Settle dead letters for the group that redrives them, so that they do not wait any more. Idempotent."""

    topic: str
    group: str
    letters: tuple[Held, ...]

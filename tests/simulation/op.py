"""One operation of a simulated client: what was asked, when, and what is known about the answer."""

from __future__ import annotations

from typing import Any

from driftq.core.model.commands import Command
from driftq.core.model.replies import Reply

PLAIN = "plain message"  # the note of a message that may share an append with others


class Op:
    """`lsn` is the last frame that existed when it was decided; `own` says that this frame is its own."""

    __slots__ = ("actor", "at_ms", "command", "is_unknown", "lsn", "note", "own", "reply", "seen_lsn", "step")

    def __init__(self, command: Command, actor: Any, note: Any, at_ms: int, step: int, seen_lsn: int) -> None:
        self.command = command
        self.actor = actor
        self.note = note
        self.at_ms = at_ms
        self.step = step
        self.seen_lsn = seen_lsn  # what was durable when it was asked
        self.lsn = 0
        self.own = False
        self.reply: Reply | None = None
        self.is_unknown = False

    def __str__(self) -> str:
        return f"{type(self.command).__name__} of {self.actor} at step {self.step}"

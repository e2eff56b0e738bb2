"""One operation of a simulated client: its command, when it was sent, and its reply if there is one."""

from __future__ import annotations

from typing import Any

from driftq.core.model.commands import Command
from driftq.core.model.replies import Reply

JOB_OF_A_BATCH = b"jb batcher"  # what the value of every job of a job batch begins with
PLAIN = "plain message"  # the note of a message that may be coalesced with others


class Operation:
    """`lsn` is the last frame when the command was decided; `own` is true if the command wrote that frame."""

    __slots__ = ("actor", "at_ms", "command", "is_unknown", "lsn", "note", "own", "reply", "seen_lsn", "step")

    def __init__(self, command: Command, actor: Any, note: Any, at_ms: int, step: int, seen_lsn: int) -> None:
        self.command = command
        self.actor = actor
        self.note = note
        self.at_ms = at_ms
        self.step = step
        self.seen_lsn = seen_lsn  # the durable lsn when it was sent
        self.lsn = 0
        self.own = False
        self.reply: Reply | None = None
        self.is_unknown = False

    def __str__(self) -> str:
        return f"{type(self.command).__name__} of {self.actor} at step {self.step}"

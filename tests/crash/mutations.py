"""Ways to break the engine on purpose. The audit must notice each of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model.replies import Reply
from driftq.engine import sequencer
from driftq.storage import disk


def reply_first() -> None:
    """Reply when a command is decided, not when its frame is durable."""
    decide = sequencer.Sequencer.submit

    def submit(self: sequencer.Sequencer, command: object, now_ms: int, on_reply: sequencer.OnReply) -> None:
        replies: list[Reply] = []
        decide(self, command, now_ms, replies.append)  # type: ignore[arg-type]
        if not replies:
            lsn, _, reply = self._replies.pop()
            self._replies.append((lsn, lambda _: None, reply))
            replies.append(reply)
        on_reply(replies[0])

    sequencer.Sequencer.submit = submit  # type: ignore[method-assign, assignment]


def forget_acks() -> None:
    """Leave the settlement of a message out of its frame."""
    _change_frames(lambda facts: [fact for fact in facts if not isinstance(fact, f.Settled)] or [f.HoleMade(0, 0)])


def forget_producers() -> None:
    """Leave a producer's sequence and a message's key out of the frame that holds its data."""
    _change_frames(
        lambda facts: [replace(fact, along=None) if isinstance(fact, f.Appended) else fact for fact in facts]
    )


def _change_frames(change) -> None:
    encode = sequencer.encode

    def changed(facts: Sequence[f.Fact]) -> bytes:
        return encode(change(facts))

    sequencer.encode = changed


def no_sync() -> None:
    """Report a sync as done without calling it."""
    disk._sync_data = lambda fd: None
    disk.OsDisk.sync_folder = lambda self, label, path: None  # type: ignore[method-assign]


TABLE = {mutation.__name__: mutation for mutation in (reply_first, forget_acks, forget_producers, no_sync)}

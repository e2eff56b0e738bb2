"""Commands that meet records which are only in the archive: they wait for them, off the loop, and are decided again.

    submit ──▶ decide ── ColdRange ──▶ fetch ──▶ decide again, with the state and the time of then
    claim  ──▶ decided, durable ──▶ fetch what was claimed ──▶ reply

A decision changes nothing until it is complete, so it can be made again. If the archive is away, the caller gets
`UNAVAILABLE` and the state is as before. What the broker does by itself (leases that ended, retention) must not stop
for one record: it is decided with that record unreadable, as if the disk could not read it, and the message is retried.

What a claim got is fetched before its reply, because the reply is written in pieces that cannot wait. If that fails,
the messages go back at once, without an attempt counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model.replies import Claimed, Delivery, Rejected, Reply
from driftq.engine.cold_reads import ColdReads, OnFetched, RecordsAway
from driftq.engine.projection import StoreReader
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.records import read_header

if TYPE_CHECKING:
    from driftq.core.context import LogReader
    from driftq.storage.log_store import LogStore

OnReply = Callable[[Reply], None]
SWEEP_WAIT_S = 2.0  # for records that one of many leases needs
READ_BYTES = 1 << 20  # of a claim, looked at in one step


class ColdCommands:
    """The commands of one engine. `submit_warm` is the way past this."""

    def __init__(
        self,
        cold_reads: ColdReads,
        store: LogStore,
        reader: LogReader,
        submit_warm: Callable[[c.Command, OnReply], None],
    ) -> None:
        self._cold_reads = cold_reads
        self._store = store
        assert isinstance(reader, StoreReader)
        self._reader = reader
        self._submit_warm = submit_warm

    def submit(self, command: c.Command, on_reply: OnReply) -> None:
        if type(command) is c.Claim and self._cold_reads.is_used:
            on_reply = partial(self._claimed, command, on_reply)
        try:
            self._submit_warm(command, on_reply)
        except ColdRange as cold:
            again: OnFetched = partial(self._submit_again, command, on_reply)
            if isinstance(command, c.Sweep):
                again = self._once_within(SWEEP_WAIT_S, again)
            self._cold_reads.fetch(cold, again)

    def _once_within(self, wait_s: float, again: OnFetched) -> OnFetched:
        """Call it once: with the result, or after some time without."""
        timer: asyncio.TimerHandle | None = None

        def proceed(away: RecordsAway | None) -> None:
            nonlocal timer
            if timer is not None:
                timer.cancel()
                timer = None
                again(away)

        timer = asyncio.get_running_loop().call_later(wait_s, proceed, RecordsAway("it takes long"))
        return proceed

    def _submit_again(self, command: c.Command, on_reply: OnReply, away: RecordsAway | None) -> None:
        if away is None:
            self.submit(command, on_reply)
        elif isinstance(command, c.Sweep):
            with self._reader.without_cold_records():
                self._submit_warm(command, on_reply)
        else:
            on_reply(Rejected(Code.UNAVAILABLE, str(away)))

    # --- claims ---

    def _claimed(self, command: c.Claim, on_reply: OnReply, reply: Reply) -> None:
        if isinstance(reply, Claimed):
            self._fetch(command, reply, 0, 0, on_reply, None)
        else:
            on_reply(reply)

    def _fetch(
        self, command: c.Claim, claimed: Claimed, index: int, offset: int, on_reply: OnReply, away: RecordsAway | None
    ) -> None:
        """Fetch what the deliveries from this index on hold, the first one from this offset on."""
        if away is not None:
            self._give_back(command, claimed, on_reply, away)
            return
        while index < len(claimed.deliveries):
            delivery = claimed.deliveries[index]
            try:
                offset = self._reach(delivery, max(offset, delivery.first))
            except ColdRange as cold:
                again = partial(self._fetch, command, claimed, index, offset, on_reply)
                self._cold_reads.fetch(cold, again)
                return
            index, offset = index + 1, 0
        on_reply(claimed)

    def _reach(self, delivery: Delivery, offset: int) -> int:
        """Look at what was claimed. What is damaged is the affair of the reply."""
        while offset < delivery.end:
            try:
                batches = self._store.read(delivery.log_id, offset, delivery.end, READ_BYTES)
            except CorruptLog as error:
                offset = max(offset + 1, error.end_offset)
                continue
            if not batches:
                break
            offset = read_header(batches[-1]).end_offset
        return offset

    def _give_back(self, command: c.Claim, claimed: Claimed, on_reply: OnReply, away: RecordsAway) -> None:
        held = tuple(c.Held(part.partition, part.first, part.end, claimed.token) for part in claimed.deliveries)
        release = c.ReleaseMessages(command.topic, command.group, command.owner, held, sent=False)
        self._submit_warm(release, lambda _: on_reply(Rejected(Code.UNAVAILABLE, str(away))))

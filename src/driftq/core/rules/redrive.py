"""Sending a dead letter back: produced again and settled in one frame, so that a repeated redrive never doubles it."""

from __future__ import annotations

from driftq.core import facts as f
from driftq.core.case import Case
from driftq.core.commands import Redrive
from driftq.core.progress import Place
from driftq.core.replies import Done, Rejected, Reply
from driftq.core.rules.produce import produce
from driftq.core.rules.topics import bad_partition, find_group
from driftq.wire.errors import Code


def redrive(case: Case, command: Redrive) -> Reply:
    group = find_group(case, command.topic, command.group, "earliest")
    if isinstance(group, Rejected):
        return group
    topic = case.state.topics[command.topic]
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    progress = group.progress[command.partition]
    if not 0 <= command.offset < case.reader.end(progress.log_id):
        return Rejected(Code.NOT_FOUND, f"there is no dead letter at offset {command.offset}")
    if progress.place_of(command.offset)[0] is Place.SETTLED:
        return Done(changed=False)
    reply = produce(case, command.produce)
    if isinstance(reply, Rejected):
        return reply
    run = ((command.offset, command.offset + 1),)
    case.facts.append(f.Settled(group.group_id, progress.log_id, run, f.ACKED, case.now_ms))
    return reply

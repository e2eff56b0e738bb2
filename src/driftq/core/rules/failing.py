"""What happens to a message that was not acked: it rests and comes back, or it becomes a dead letter. Nack, reject,
lost lease and deadline all end here, so there is one retry decision."""

from __future__ import annotations

import msgspec

from driftq.core import choosing
from driftq.core import facts as f
from driftq.core.case import Case, Unreadable
from driftq.core.groups import DEAD_PREFIX, Group, Topic
from driftq.core.logs import Log
from driftq.core.progress import Progress
from driftq.core.retry import delay_ms, is_exhausted
from driftq.core.timeouts import TIMEOUT, is_timeout
from driftq.wire.message import DeadLetter, Head, RetryPolicy, encode_head, read_head
from driftq.wire.records import pack_one
from driftq.wire.times import to_rfc3339

ACK_TIMEOUT = "ack_timeout"


def fail(
    case: Case, group: Group, progress: Progress, offset: int, error: str, *, lost: bool, delay: int | None = None
) -> None:
    """An attempt ended badly."""
    log = case.state.logs[progress.log_id]
    topic = case.state.topics[group.topic]
    entry = progress.entries.get(offset)
    attempts = entry.attempts if entry is not None else 1
    error = bounded(error, case.limits.error_bytes)
    try:
        policy = _policy(case, topic, read_head(case.reader.record(log.log_id, offset).head))
    except Unreadable:
        policy = case.limits.retry  # it cannot be copied to the dead letters: it rests until somebody restores it
    exhausted = is_exhausted(policy, attempts) and not topic.dead_of
    if exhausted and bury(case, group, progress, offset, "max_attempts", error, lost=lost):
        return
    if delay is None:
        delay = delay_ms(policy, attempts, case.chance.uniform(), case.limits.retry_floor_ms)
    retry_at_ms = case.now_ms + delay
    case.expect_event(log, error)
    case.facts.append(f.Failed(group.group_id, log.log_id, offset, case.now_ms, retry_at_ms, error, lost))


def _policy(case: Case, topic: Topic, head: Head) -> RetryPolicy:
    """The envelope's policy, else the topic's, else the server's; one without a backoff borrows the server's."""
    server = case.limits.retry
    policy = head.envelope.retry_policy if head.envelope is not None else None
    policy = policy or topic.config.retry
    if policy is None:
        is_job = head.job is not None
        return msgspec.structs.replace(server, max_attempts=case.limits.job_attempts_max) if is_job else server
    if policy.backoff_ms == 0:
        return msgspec.structs.replace(server, max_attempts=policy.max_attempts)
    return policy


def expire_leases(case: Case, group: Group, progress: Progress, most: int) -> int:
    """Leases that ran out are failures like any other. Returns how many messages that concerned."""
    lost = choosing.expired(progress, case.now_ms, most)
    log = case.state.logs[progress.log_id]
    for number, offset in enumerate(lost):
        if case.is_full():
            return number
        over = is_timeout(log, offset, progress.place_of(offset)[1])
        fail(case, group, progress, offset, TIMEOUT if over else ACK_TIMEOUT, lost=not over)
    return len(lost)


def bury(
    case: Case, group: Group, progress: Progress, offset: int, reason: str, error: str, *, lost: bool = False
) -> bool:
    """Settle a message and append its dead letter, in one frame. False if the record cannot be read: then nothing."""
    log = case.state.logs[progress.log_id]
    entry = progress.entries.get(offset)
    held = entry is not None or progress.held.lease_at(offset) is not None
    try:
        record = case.reader.record(log.log_id, offset)
    except Unreadable:
        return False
    head = read_head(record.head)
    letter = DeadLetter(
        topic=log.topic,
        partition=log.partition,
        offset=offset,
        group=group.name,
        attempts=entry.attempts if entry is not None else int(held),
        lease_losses=(entry.lease_losses if entry is not None else 0) + lost,
        last_error=error or (entry.error if entry is not None else ""),
        reason=reason,
        dead_at=to_rfc3339(case.now_ms),
    )
    batch = pack_one(record.value, record.key, encode_head(_stripped(head, letter)))
    case.expect_event(log, letter.last_error)
    case.append(_dead_log(case, log), batch, 1, len(record.key) + len(record.value))
    run = ((offset, offset + 1),)
    case.facts.append(f.Settled(group.group_id, log.log_id, run, f.DEAD, case.now_ms, letter.last_error))
    case.burials[group.group_id, log.log_id, offset] = (reason, letter.last_error)
    return True


def _dead_log(case: Case, log: Log) -> Log:
    return case.state.logs[case.state.topics[DEAD_PREFIX + log.topic].log_ids[log.partition]]


def _stripped(head: Head, letter: DeadLetter) -> Head:
    """Routing and retry policy would act again on the dead letter; everything else is kept."""
    envelope = head.envelope
    if envelope is not None:
        envelope = msgspec.structs.replace(envelope, target_topic="", partition_override=None, retry_policy=None)
    return msgspec.structs.replace(head, envelope=envelope, dlq=letter)


def bounded(text: str, most_bytes: int) -> str:
    """At most so many bytes of UTF-8, cut between characters."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= most_bytes else raw[:most_bytes].decode("utf-8", "ignore")

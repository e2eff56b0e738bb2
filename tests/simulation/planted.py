"""Planted bugs: each changes one line of the product, and the simulation must notice it.

A planted bug names a function, a part of its source and the replacement. The function is compiled again in its own
module and replaces the original everywhere. If the product no longer contains the text, planting fails, and the table
must be updated. Nothing is written to disk.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.simulation.intervention_bugs import INTERVENTION_BUGS


class Bug(NamedTuple):
    """`target` is "module:function" or "module:Class.method" under driftq."""

    target: str
    old: str
    new: str


SYNC = 'self.file.sync("journal.sync")'
TWICE = f"try:\n        {SYNC}\n    except Exception:\n        {SYNC}"
HELD = "_by_log([(group.progress[run.partition], (run.first, run.end)) for run in command.held]).items()"

BUGS: dict[str, tuple[Bug, ...]] = {
    # --- the disk
    "nosync": (Bug("storage.journal_writer:ActiveSegment.write", SYNC, "pass"),),
    "nodirsync": (
        Bug("storage.journal_files:name_segment", 'disk.sync_folder("journal.sync_folder", folder)', "pass"),
    ),
    "retry_fsync": (Bug("storage.journal_writer:ActiveSegment.write", SYNC, TWICE),),
    "crc_skip": (Bug("storage.blocks:scan", "!= crc:", "== -1:"),),
    "snapshot_no_rename": (
        Bug("storage.snapshots:save", '"snapshot.create", f"{path}.tmp"', '"snapshot.create", path'),
        Bug("storage.snapshots:save", 'disk.rename("snapshot.rename", f"{path}.tmp", path)', "pass"),
    ),
    "snapshot_not_synced": (Bug("storage.snapshots:save", 'file.sync("snapshot.sync")', "pass"),),
    "snapshot_without_log_sync": (Bug("storage.log_sync:LogSync._sync_file", 'file.sync("log.sync")', "pass"),),
    "log_names_not_synced": (
        Bug("storage.log_sync:LogSync._sync_folder", 'self._disk.sync_folder("log.sync_folder", path)', "pass"),
    ),
    "journal_trimmed_too_far": (Bug("engine.snapshot_store:first_needed_lsn", "lsns[0] + 1", "lsns[-1] + 10_000"),),
    "collected_too_early": (
        Bug(
            "storage.file_log_store:FileLogStore.collect",
            "self._garbage[0].lsn <= safe_lsn",
            "True",
        ),
    ),
    "shared_entry_lost_by_compaction": (
        Bug(
            "storage.shared_segments:SharedSegments._copy",
            "self.append(log_id, first, count, self.read(log_id, entry))",
            "self.read(log_id, entry)",
        ),
    ),
    "shared_segment_removed_before_the_sync": (
        Bug("storage.shared_segments:SharedSegments._compact", "self._retired.append", "self._removable.append"),
    ),
    "shared_entries_dropped_at_the_start": (
        Bug("storage.file_log_store:FileLogStore._is_in_snapshot", "first_offset < log.replayed_from", "False"),
    ),
    "shared_names_not_synced": (
        Bug("storage.shared_segments:SharedSegments.begin_sync", "work.add_folder(self._folder)", "pass"),
    ),
    "checkpoint_over_a_gap": (
        Bug("storage.journal_files:frames_between", "min(upto_lsn, after_lsn + 1)", "upto_lsn"),
        Bug("storage.journal_files:frames_between", "if after_lsn < upto_lsn:", "if 0:"),
    ),
    "truncated_one_frame_too_short": (
        Bug("repair.truncate:_write_prefix", "item.lsn <= plan.kept_lsn", "item.lsn < plan.kept_lsn"),
    ),
    "truncated_past_the_damage": (
        Bug("repair.folder_reader:FolderFold.take", "if frame.lsn != self.lsn + 1:", "if 0:"),
    ),
    # --- schedules
    "schedule_fires_twice": (
        Bug("core.state.schedules:Schedule.pass_times", "if time > time_ms", "if time >= time_ms"),
    ),
    "schedule_fires_without_its_message": (
        Bug(
            "core.rules.schedules:_fire_time", "if isinstance(reply, Produced):", "ctx.roll_back(savepoint)\n    if 1:"
        ),
    ),
    "schedule_firing_not_recorded": (Bug("core.rules.schedules:_fire_time", "ctx.facts.append(fact)", "pass"),),
    "schedule_time_lost_by_a_restart": (
        Bug("core.state.schedules:Schedule.restore", "fact.plan.times, fact.plan.is_final", "(), True"),
    ),
    "schedule_fires_an_old_plan": (Bug("core.rules.schedules:_after", "if time_ms > cursor_ms", ""),),
    "schedule_catches_up_with_all": (Bug("core.rules.schedules:_fire", 'schedule.spec.catch_up == "all"', "1"),),
    "schedule_catches_up_before_its_plan": (Bug("core.rules.schedules:_waits_for_plan", "return", "return False and"),),
    "schedule_fires_while_paused": (Bug("core.state.schedules:Schedule.next_ms", "self.paused or ", ""),),
    "schedule_catches_up_after_a_pause": (
        Bug("core.state.schedules:ScheduleTable._paused", "schedule.pass_times(fact.at_ms)", "pass"),
    ),
    "schedule_fires_early": (
        Bug("core.rules.schedules:_passed", "schedule.due_ms(time_ms) <= ctx.now_ms", "time_ms <= ctx.now_ms"),
        Bug("core.state.schedules:Schedule.next_ms", "self.due_ms(self.times[0])", "self.times[0]"),
    ),
    "schedule_window_ignored": (Bug("core.rules.schedules:_fire", "<= window_ms", "< 1 << 60"),),
    "schedule_skips_what_is_refused_for_now": (
        Bug("core.rules.schedules:_fire_time", "reply.code is Code.OVERLOADED", "0"),
    ),
    # --- access
    "token_gains_rights": (
        Bug(
            "core.rules.access_tokens:narrow",
            "if not covers(parse_grants(token.grants), parse_grants(grants)):",
            "if 0:",
        ),
    ),
    "stream_quota_not_checked": (
        Bug("core.rules.streams:create", 'refused = over_quota(ctx, command.path, "streams")', "refused = None"),
    ),
    "tenant_counts_wrong_after_a_restart": (
        Bug("core.state.snapshot:SnapshotRestore._plain_streams", "self._state.tenants.count_stream(path, 1)", "pass"),
    ),
    "old_secret_never_ends": (
        Bug("core.state.access_tokens:AccessToken.secrets", "if self.old_until_ms > now_ms:", "if self.old_until_ms:"),
    ),
    "narrowed_token_wide_again_after_a_restart": (
        Bug(
            "core.state.access_tokens:AccessTokenTable._restored",
            "fact.grants, fact.expires_ms,",
            "fact.created.grants, fact.expires_ms,",
        ),
    ),
    # --- job batches
    "on_complete_lost": (
        Bug("core.transitions.job_batches:_Ends._end", 'if role == "on_complete" or', 'if role != "on_complete" and'),
    ),
    "on_complete_doubled": (
        Bug(
            "core.transitions.job_batches:_Ends._end",
            "produced = self._produce(template, replace(part, role=role))",
            "produced = [self._produce(template, replace(part, role=role)) for _ in (1, 2)][0]",
        ),
    ),
    "member_counted_twice": (
        Bug("core.transitions.job_batches:_Collector._end", "if key not in self._seen and", "if"),
    ),
    "end_for_another_group_counted": (
        Bug("core.transitions.job_batches:_Collector._end", "group in (None, batch.created.created.group)", "True"),
    ),
    "trimmed_member_never_ends": (
        Bug("core.transitions.job_batches:_Collector.take", "self._end(fact.log_id, 0, fact.start_offset", "(fact"),
    ),
    "open_batch_ends": (Bug("core.transitions.job_batches:_Ends._check", "or not view.sealed", ""),),
    "chain_continues_after_a_failure": (
        Bug("core.transitions.job_batches:_Ends._check", "(view.cancelled or view.has_failed())", "view.cancelled"),
    ),
    "result_not_passed_on": (
        Bug("core.transitions.job_batches:_Ends._result", 'Raw(result or b"null")', 'Raw(b"null")'),
    ),
    "job_of_a_batch_forgotten_by_a_restart": (
        Bug("core.state.job_batches:JobBatchTable._members_restored", "if state == b.RUNNING and", "if 0 and"),
    ),
    "result_of_a_member_forgotten_by_a_restart": (
        Bug("core.state.job_batches:JobBatchTable._members_restored", "batch.keep(result)", "pass"),
    ),
    "due_batch_not_swept": (
        Bug("core.state.job_batches:JobBatchTable.sweep_ms", "batch.is_due or batch.cancelled_ms", "0"),
    ),
    # --- the audit
    "change_without_its_record": (Bug("core.broker:Broker.decide", "if command.audit is not None:", "if 0:"),),
    "record_without_its_change": (
        Bug(
            "core.broker:Broker.decide",
            "isinstance(reply, Rejected)",
            "isinstance(reply, Rejected) and not command.audit",
        ),
    ),
    "repeat_recorded_as_a_change": (Bug("core.rules.audit:record", "CHANGED if ctx.facts else UNCHANGED", "CHANGED"),),
    "recorded_twice": (
        Bug(
            "core.rules.audit:record",
            "_append(ctx, (replace(entry, result=CHANGED if ctx.facts else UNCHANGED),))",
            "_append(ctx, 2 * (replace(entry, result=CHANGED if ctx.facts else UNCHANGED),))",
        ),
    ),
    "audit_can_be_changed": (
        Bug("core.transitions.lookups:audit_refusal", "if own_name(topic) != AUDIT_TOPIC:", "if 1:"),
    ),
    # --- the sequencer
    "ack_before_sync": (Bug("engine.sequencer:Sequencer.submit", "if self.decided_lsn <= self.durable_lsn:", "if 1:"),),
    "read_before_sync": (Bug("engine.sequencer:Sequencer.query", "if self.decided_lsn <= self.durable_lsn:", "if 1:"),),
    "read_of_a_later_state": (
        Bug(
            "engine.sequencer:Sequencer.query",
            "answer = look()",
            "show, on_response = on_response, lambda _: show(look()); answer = None",
        ),
    ),
    "coalesced_offset_of_another": (
        Bug("engine.group_commit:GroupCommit._reply_to_each", "reply.first_offset + index", "reply.first_offset"),
    ),
    "coalesced_keys_mixed_up": (
        Bug(
            "engine.group_commit:GroupCommit._submit_coalesced",
            "pack_columns(values, keys)",
            "pack_columns(values, keys[::-1])",
        ),
    ),
    "commit_delayed_without_end": (
        Bug("engine.group_commit:GroupCommit.is_delayed", "and now_s < self._delay_until_s", ""),
    ),
    "commit_delayed_by_a_slow_disk": (
        Bug("engine.group_commit:GroupCommit.start_delay", "min(DELAY_MAX_S, append_s)", "append_s"),
    ),
    "append_inline_for_a_crowd": (
        Bug("engine.group_commit:GroupCommit.is_inline", " or self.callers() > 1", ""),
        Bug("engine.group_commit:GroupCommit.is_inline", " or self._expected_callers > 1", ""),
    ),
    "claim_from_a_reader": (
        Bug("core.transitions.lookups:find_or_create_group", "group is not None and group.commits_offsets", "0"),
    ),
    "reader_forgotten_by_snapshot": (
        Bug("core.state.snapshot:snapshot_facts", "group.idle, group.commits_offsets", "group.idle"),
    ),
    "deliver_before_sync": (Bug("core.rules.claim:_pick", "min(log.end, ctx.reader.end(log.log_id))", "log.end"),),
    "refusal_with_facts": (Bug("core.broker:Broker.decide", "Decision([], reply)", "Decision(ctx.facts, reply)"),),
    # --- leases
    "lease_forgets_what_was_extended": (
        Bug("core.state.progress:Progress._renew", "old.at_ms, until_ms, run)", "old.at_ms, until_ms)"),
    ),
    "lease_forgets_after_a_restart": (
        Bug("core.state.progress:Progress.restore_entry", "entry.lease.run = fact.offset, fact.offset + 1", "pass"),
    ),
    "expiry_ends_at_the_first_block": (
        Bug("core.state.held_ranges:HeldRanges.overlapping", "len(self._lows)):", "1):"),
    ),
    # --- dedup
    "dedup_not_persisted": (Bug("core.state.producers:ProducerTable.snapshot", "self.states.items()", "()"),),
    "stale_epoch_accepted": (Bug("core.state.producers:ProducerTable.judge", "if by.epoch < state.epoch:", "if 0:"),),
    "gap_accepted": (
        Bug(
            "core.state.producers:ProducerTable._judge_seq", "if by.seq == state.seq + 1 or", "if by.seq > state.seq or"
        ),
    ),
    "other_bytes_accepted": (
        Bug(
            "core.state.producers:ProducerTable._judge_seq",
            "if seen.digest == by.digest else SequenceVerdict.MISMATCH",
            "",
        ),
    ),
    "repeat_of_first_is_a_restart": (
        Bug(
            "core.state.producers:ProducerTable._judge_unnamed",
            "by.seq == 0 and by.digest != state.first_digest",
            "by.seq == 0",
        ),
    ),
    "key_ttl_restarted": (
        Bug("core.state.idempotency_keys:ProducedKeyTable.restore", "fact.expires_ms", "fact.expires_ms + 60_000"),
    ),
    "key_forgotten": (
        Bug("core.state.idempotency_keys:ProducedKeyTable.find", "self._until_ms(key, now_ms) > now_ms", "False"),
    ),
    "job_id_forgotten_before_the_end": (
        Bug(
            "core.state.idempotency_keys:ProducedKeyTable._until_ms",
            "if self._tenure.is_unfinished(key.log_id, key.offset):",
            "if 0:",
        ),
    ),
    "job_id_forgotten_at_the_end": (
        Bug("core.state.idempotency_keys:ProducedKeyTable.end_jobs", "at_ms + key.ttl_ms", "key.expires_ms"),
    ),
    "job_id_lost_by_a_sweep": (
        Bug("core.state.idempotency_keys:ProducedKeyTable.sweep", "if next_ms <= at_ms:", "if 1:"),
    ),
    # --- groups
    "nofence": (
        Bug("core.rules.settle:_is_holder", "lease.token == token if token else lease.owner == owner", "True"),
    ),
    "stale_holder_extends": (Bug("core.rules.settle:extend", "_by_log(targets.held).items()", HELD),),
    "cursor_is_highest_ack": (Bug("core.state.progress:Progress.settle", "if first <= self.floor:", "if 1:"),),
    "floor_past_unacked": (
        Bug("core.state.progress:Progress.settle", "lowest[0] <= self.floor", "lowest[0] <= self.floor + 1"),
    ),
    "gaps_hold_back": (
        Bug("core.rules.claim:_pick", "end = min(", "end = progress.floor if len(progress.settled) > 4 else min("),
    ),
    "tenants_out_of_turn": (
        Bug("core.transitions.claim_selection:fresh", "log.fair_from if fair else end", "log.fair_from"),
        Bug("core.rules.produce:stored_marks", "config.fair != FAIR_TENANT", "config.fair == 'never'"),
    ),
    "retries_first": (Bug("core.rules.claim:_take", "// WHOLE\n", "// WHOLE or 1\n"),),
    "retries_last": (Bug("core.rules.claim:_take", "quota = (", "quota = 0 * ("),),
    "retry_share_not_carried": (Bug("core.state.progress:Progress.lease", "fact.retry_debt", "0"),),
    "attempts_not_persisted": (
        Bug(
            "core.state.progress:Progress.restore_entry",
            "Entry.restored(fact)",
            "Entry.restored(fact); entry.attempts = 0",
        ),
    ),
    "version_not_raised": (Bug("core.state.progress:Progress.lease", "entry.version += 1", "pass"),),
    "in_flight_off_by_one": (
        Bug("core.rules.claim:_shares", "progress.in_flight + lost", "progress.in_flight + lost + 1"),
    ),
    "large_message_never_claimed": (
        Bug("core.transitions.claim_selection:ByteBudget.take", "first + self.is_first", "first"),
    ),
    "claim_without_its_acks": (Bug("core.rules.claim:claim", "if command.acks else", "if 0 else"),),
    "acked_and_expired_at_once": (Bug("core.transitions.expiry:expire_leases", "    if acked:", "    if 0:"),),
    "acked_late_and_delivered": (Bug("core.rules.claim:_due", "if acked else due", "if 0 else due"),),
    "late_ack_frees_a_slot": (
        Bug("core.rules.claim:_shares", "_held_count(progress, acked) if acked else 0", "acked.count"),
    ),
    "max_attempts_off_by_one": (Bug("core.transitions.retry:is_exhausted", "<= attempts", "< attempts"),),
    "backoff_ignored": (Bug("core.transitions.retry:fail", "ctx.now_ms + delay", "ctx.now_ms"),),
    "lease_lost_early": (Bug("core.transitions.expiry:expire_leases", "ctx.now_ms, limit", "ctx.now_ms + 30, limit"),),
    "deadline_ignored": (
        Bug("core.rules.claim:_without_overdue", "if not share.log.deadline_offsets or", "if 1 or"),
        Bug("core.rules.claim:_take_due", "overdue = 0 < deadline_ms <= ctx.now_ms", "overdue = False"),
    ),
    "delay_ignored": (Bug("core.state.progress:Progress.delay_all", "item[0] > now_ms", "False"),),
    "pause_ignored": (Bug("core.rules.claim:claim", "if group.paused:", "if 0:"),),
    "dead_letter_without_settle": (
        Bug("core.transitions.dead_letter:dead_letter", "ctx.facts.append(Settled(", "bool(Settled("),
    ),
    "settled_without_dead_letter": (
        Bug(
            "core.transitions.dead_letter:dead_letter",
            "ctx.append(_dead_log(ctx, log), pack_one(dead.value, dead.key, dead.head), 1, dead.size_bytes)",
            "pass",
        ),
    ),
    "redrive_refused_and_appended": (
        Bug("core.rules.redrive:_RedriveDecision.take", "self._ctx.roll_back(savepoint)", "pass"),
    ),
    "redriven_twice_in_one_frame": (
        Bug("core.rules.redrive:_RedriveDecision._redrive", "not letters.isdisjoint(self._redriven)", "False"),
    ),
    "redriven_to_all_groups": (Bug("core.rules.redrive:_direct", "if not mark.group:", "if 1:"),),
    "cancelled_for_some": (Bug("core.state.logs:Log.passed_over", "yield from self.cancelled", "pass"),),
    "clock_shortens_leases": (Bug("core.state.deadlines:_shift_progress", "lease.until_ms += step_ms", "pass"),),
    "clock_ends_backoffs": (Bug("core.state.deadlines:_shift_progress", "if entry.was_delivered():", "if 0:"),),
    "lost_wake_up": (
        Bug(
            "core.broker:Broker._due_sweep",
            "state.deadlines.push(subject, self._sweep_again_ms(subject, now_ms))",
            "pass",
        ),
    ),
    "idle_too_early": (
        Bug("core.rules.sweep:_find_idle_group", "group.active_ms > since_ms", "group.active_ms > ctx.now_ms"),
    ),
    "idle_group_counts": (
        Bug(
            "core.state.backlog:backlog_of",
            "if not (group := state.groups[group_id]).idle",
            "if (group := state.groups[group_id])",
        ),
    ),
    "retention_forgets_groups": (
        Bug("core.rules.sweep:_retain_log", "_kept_from(ctx, log, config.keep_unread)", "log.end"),
    ),
    "timeout_ignored_by_extend": (Bug("core.transitions.expiry:extensions", "if not log.timeout_offsets:", "if 1:"),),
    "timeout_is_a_lost_lease": (
        Bug(
            "core.transitions.expiry:expire_leases",
            "timed_out = is_timeout(",
            "timed_out = False and is_timeout(",
        ),
    ),
    "timeout_forgotten": (Bug("core.state.logs:Log.restore", "_numbers(fact.timeout_offsets)", "NO_NUMBERS"),),
    # --- results and progress
    "result_without_its_ack": (Bug("core.rules.settle:_ack", "ctx.facts.append(f.Settled(", "bool(f.Settled("),),
    "result_lost_by_the_ack": (Bug("core.rules.settle:_ack", "in targets.reported:", "in ():"),),
    "results_not_persisted": (Bug("core.state.results:ResultTable.snapshot", "yield from self._entries", "pass"),),
    "result_of_before_a_seek": (
        Bug(
            "core.state.fold:Fold._group_sought",
            "self.results.seek(fact.group_id, fact.log_id, fact.offset)",
            "pass",
        ),
    ),
    "progress_kept_after_the_end": (
        Bug("core.state.fold:Fold._settled", "self.reports.settle(fact.group_id, fact.log_id, fact.ranges)", "pass"),
    ),
    # --- what a connection holds
    "oldest_kept_too": (
        Bug(
            "engine.consumer_window:ConsumerWindow.extensions",
            "end_ms = self._oldest_since_ms + self._lease_ms",
            "end_ms = self._settled_ms + self._lease_ms",
        ),
    ),
    "oldest_gets_no_full_lease": (
        Bug("engine.consumer_window:ConsumerWindow.extensions", "< min(end_ms, horizon_ms):", "< 0:"),
    ),
    "leases_not_kept": (Bug("core.rules.settle:keep_leases", "in ranges.items():", "in ():"),),
    "kept_without_settlements": (Bug("engine.consumer_window:ConsumerWindow.remove", "if settled:", "if 1:"),),
    "timer_forgets_the_waiting": (
        Bug("engine.consumer_window:ConsumerWindow.next_ms", "if self.held and", "if 0 and"),
    ),
    "credit_ignored": (
        Bug("engine.consumer_window:ConsumerWindow.room", "self.size(now_ms) - self.held", "self.size(now_ms)"),
    ),
    "window_stays_wide": (
        Bug("engine.consumer_window:ConsumerWindow.size", " if is_first_lease or is_idle else 1", ""),
    ),
    # --- streams, stages, effects
    "if_match_ignored": (Bug("core.rules.streams:_check_preconditions", "command.if_match != log.end", "False"),),
    "close_lost": (
        Bug("core.state.streams:StreamTable.restore", "fact.closed, fact.closed_by", "False, fact.closed_by"),
    ),
    "stream_seq_ignored": (Bug("core.rules.streams:_check_preconditions", "if command.stream_seq and", "if 0 and"),),
    "published_twice": (
        Bug(
            "core.rules.stages:publish",
            "command.batch_number <= last.batch_number",
            "command.batch_number < last.batch_number",
        ),
    ),
    "other_content_taken_for_a_repeat": (
        Bug("core.rules.stages:_repeated", "command.content != last.content", "False"),
    ),
    "content_not_in_the_snapshot": (
        Bug("core.state.stages:Stages.restore_writer", "fact.parts, fact.content", 'fact.parts, "of old"'),
    ),
    "staged_visible": (
        Bug(
            "core.rules.stages:stage",
            "first_offset = ctx.state.logs[f.STAGING_LOG].end",
            "first_offset = ctx.state.logs[f.STAGING_LOG].end; ctx.append(target, command.batch, command.count, 0)",
        ),
    ),
    "staging_cut_too_far": (
        Bug(
            "core.rules.stages:publish",
            "start = stages.lowest_offset(lambda entry: entry.writer == command.writer,",
            "start = max(ctx.state.logs[f.STAGING_LOG].end,",
        ),
    ),
    "history_event_missing": (Bug("core.rules.topic_history:_EventWriter._runs", "in ranges:", "in ranges[1:]:"),),
    "states_hide_the_delayed": (Bug("core.rules.queries:_pending", "progress.entries_in(first, stop)", "[]"),),
    "outcome_without_acks": (Bug("core.rules.outcome:outcome", "for ack in command.acks:", "for ack in ():"),),
    "outcome_without_commits": (
        Bug("core.rules.outcome:_parts", "for commit in command.commits:", "for commit in ():"),
    ),
    "outcome_unfenced": (
        Bug("core.rules.settle:_already_settled", "not targets.fenced and not is_dead", "not is_dead"),
    ),
    "outcome_of_a_nacked_message": (
        Bug(
            "core.rules.settle:_check_message",
            "elif targets.fenced and entry is not None and not entry.lost:",
            "elif 0:",
        ),
    ),
    "outcome_forgotten": (Bug("core.rules.outcome:outcome", "if known is not None:", "if 0:"),),
    "outcomes_not_persisted": (Bug("core.state.outcomes:Outcomes.snapshot", "self._known.items()", "()"),),
    "outcome_kept_too_long": (Bug("core.state.outcomes:Outcomes.find", "and known.expires_ms > now_ms", ""),),
    "other_outcome_called_a_repeat": (
        Bug("core.rules.outcome:_repeated", "known.digest == outcomes.digest(command)", "True"),
    ),
    "dead_letter_acked": (Bug("core.rules.settle:_already_settled", "not targets.fenced and not is_dead", "1"),),
    "late_reason_dropped": (Bug("core.rules.settle:nack", "elif progress.entries[offset].lost:", "elif 0:"),),
    "effect_begun_by_name": (
        Bug(
            "core.rules.effects:_is_same_caller",
            "return bool(command.token) and",
            "return command.owner == effect.owner or",
        ),
    ),
    "effect_unfenced": (Bug("core.rules.effects:_held", "if effect.fence != fence:", "if 0:"),),
    "effect_forgotten": (Bug("core.rules.effects:begin", "effect.status is EffectStatus.COMMITTED:", "False:"),),
    **{name: (Bug(*bug),) for name, bug in INTERVENTION_BUGS.items()},
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with one bug in it."""
    with planted_bugs(*BUGS[name]):
        yield


@contextmanager
def planted_bugs(*bugs: Bug) -> Iterator[None]:
    undo: list[tuple[Any, Any, Any]] = []
    try:
        for bug in bugs:
            _plant(bug, undo)
        yield
    finally:
        for table, key, old in reversed(undo):
            if isinstance(table, dict):
                table[key] = old
            else:
                setattr(table, key, old)


def _plant(bug: Bug, undo: list[tuple[Any, Any, Any]]) -> None:
    module_name, _, path = bug.target.partition(":")
    module = importlib.import_module(f"driftq.{module_name}")
    owner: Any = module
    *classes, function_name = path.split(".")
    for class_name in classes:
        owner = getattr(owner, class_name)
    old = inspect.unwrap(getattr(owner, function_name))
    text = _SOURCES.get(old) or textwrap.dedent(inspect.getsource(old))
    assert text.count(bug.old) >= 1, f"{bug.target} does not contain {bug.old!r} any more: update the table"
    text = text.replace(bug.old, bug.new, 1)
    scope: dict[str, Any] = {}
    exec(compile(text, f"<planted in {bug.target}>", "exec"), module.__dict__, scope)
    new = scope[function_name]
    _SOURCES[new] = text
    if classes:
        undo.append((owner, function_name, getattr(owner, function_name)))
        setattr(owner, function_name, new)
        return
    _replace_everywhere(old, new, undo)


_SOURCES: dict[Any, str] = {}  # so that one function can have two changes


def _replace_everywhere(old: Any, new: Any, undo: list[tuple[Any, Any, Any]]) -> None:
    """In every module that refers to the function by any name, and in the tables of such modules."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("driftq") or module is None:
            continue
        for key, value in list(vars(module).items()):
            if value is old:
                undo.append((module, key, old))
                setattr(module, key, new)
            elif isinstance(value, dict) and not key.startswith("__"):
                for inner, known in list(value.items()):
                    if known is old:
                        undo.append((value, inner, old))
                        value[inner] = new

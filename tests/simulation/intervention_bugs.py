"""Planted bugs (see `planted`) of what operators do: retry now, move, purge, delete; and of the ids of unique jobs."""

RULES = "core.rules.interventions"

INTERVENTION_BUGS: dict[str, tuple[str, str, str]] = {
    "retried_only_by_groups_that_exist": (f"{RULES}:retry", "if delayed:", "if 0:"),
    "retry_not_kept_for_groups_that_start": ("core.state.logs:Log.make_due", "self.delays.end(offset)", "pass"),
    "retry_does_not_wake": ("core.state.deadlines:make_due", "progress.make_due(fact)", "return"),
    "moved_while_held": ("core.transitions.lookups:is_movable", "return not any(", "return not 0 or any("),
    "moved_for_one_group": (f"{RULES}:_move_part", "topic.groups.values():", "list(topic.groups.values())[:1]:"),
    "moved_twice_in_one_frame": (f"{RULES}:_move_part", "in taken for offset", "in () for offset"),
    "same_id_moved_twice_in_one_frame": (f"{RULES}:move", "if part.produce.job is not None:", "if 0:"),
    "deleted_letter_redriven": (f"{RULES}:delete_letters", "if ranges:", "if 0:"),
    "purge_keeps_leases": (
        "core.state.progress:Progress.clear", "self._restart(end)", "self.floor = self.cursor = end",
    ),
    "end_of_a_job_not_noted": (
        "core.state.idempotency_keys:ProducedKeyTable._end", "replace(key, is_open=False) if key.is_open else key",
        "key",
    ),
}  # fmt: skip

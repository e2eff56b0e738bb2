"""Runs: the messages and streams that share a `run_id`, as a tree, with their states."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model.replies import Done
from driftq.server.access.identity import Verdict, decide, require, require_topic, sees_stream
from driftq.server.handlers.codec import json_response, page_cursor, page_limit, refused
from driftq.server.http import BadRequest, Request, Response
from driftq.server.job_status import ENDED, attempt_info, job_summary
from driftq.server.slices import collected, slices
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import OBSERVE, PRODUCE, READ
from driftq.wire.runs import RUN_STATES, CancelRunReply, RunInfo, RunsReply, RunState, RunStep, RunSummary

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.server.access.identity import Identity
    from driftq.server.handlers.context import Context
    from driftq.server.observation.run_index import IndexedRun, IndexedStep
    from driftq.wire.jobs import JobStateName

DEPTH_MAX = 64
CANCELS_AT_ONCE = 100
_PLACE = re.compile(r"([0-9]{1,16}):(.*)", re.ASCII | re.DOTALL)
_WAITING = ("ready", "scheduled", "retrying")


class RunsHandlers:
    """Handlers of `/v1/runs`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._index = context.observers.runs

    async def list(self, request: Request) -> Response:
        """The runs with steps or streams that the caller may see, the newest first."""
        limit, wanted = page_limit(request), request.query.get("state", "")
        if wanted not in ("", *RUN_STATES):
            raise BadRequest(f"invalid state {wanted!r}: use one of {', '.join(RUN_STATES)}")
        after_ms, after_id = _place(request.query.get("after", ""))
        await self._index.caught_up()

        def rows(view: StateView) -> Iterator[RunSummary | None]:
            runs = sorted(self._index.runs.values(), key=_newest, reverse=True)
            for run in runs:
                if after_ms is None or (run.last_ms, run.run_id) < (after_ms, after_id):
                    summary = _summary(view, run, request.identity)
                    yield summary if summary is not None and wanted in ("", summary.state) else None
                else:
                    yield None

        shown = []
        async for part in slices(self._engine.queries, rows):
            shown += part
            if len(shown) > limit:
                break
        after = None
        if len(shown) > limit:
            last = self._index.runs.get(shown[limit - 1].run_id)
            after = f"{last.last_ms}:{last.run_id}" if last is not None else None
        return json_response(RunsReply(shown[:limit], self._index.is_complete, after))

    async def describe(self, request: Request, run_id: str) -> Response:
        require(request, OBSERVE)
        await self._index.caught_up()
        run = self._index.runs.get(run_id)
        if run is None:
            return self._unknown(run_id)
        tree = _tree(list(run.steps.values()))

        def rows(view: StateView) -> Iterator[RunStep | None]:
            return (_step(view, step, depth, request.identity) for step, depth in tree)

        steps = await collected(self._engine.queries, rows)
        streams = await self._engine.queries.result(lambda view: _streams(view, run, request.identity))
        if not steps and not streams:
            return self._unknown(run_id)
        state = run_state([step.state for step in steps])
        began, changed = to_rfc3339(run.first_ms), to_rfc3339(run.last_ms)
        return json_response(
            RunInfo(run_id, state, began, changed, steps, streams, run.omitted, self._index.is_complete)
        )

    async def cancel(self, request: Request, run_id: str) -> Response:
        """Cancel every message of a run that has not ended, as far as the caller may."""
        await self._index.caught_up()
        run = self._index.runs.get(run_id)
        if run is None:
            return self._unknown(run_id)

        def rows(view: StateView) -> Iterator[RunStep | None]:
            return (_step(view, step, 0, None) for step in list(run.steps.values()))

        steps = await collected(self._engine.queries, rows)
        allowed = {step.topic for step in steps if decide(request.identity, PRODUCE, step.topic) is Verdict.ALLOWED}
        readable = [step.topic for step in steps if decide(request.identity, READ, step.topic) is Verdict.ALLOWED]
        if not allowed and not readable:
            return self._unknown(run_id)
        if not allowed:
            require_topic(request, PRODUCE, readable[0])
        steps = [step for step in steps if step.topic in allowed and step.state not in ENDED]
        cancelled = 0
        for begin in range(0, len(steps), CANCELS_AT_ONCE):
            commands = (
                c.Cancel(step.topic, step.partition, step.offset) for step in steps[begin : begin + CANCELS_AT_ONCE]
            )
            replies = await asyncio.gather(*(self._engine.submit(command) for command in commands))
            cancelled += sum(isinstance(reply, Done) and reply.changed for reply in replies)
        return json_response(CancelRunReply(run_id, len(steps), cancelled))

    def _unknown(self, run_id: str) -> Response:
        more = "" if self._index.is_complete else "; the index is being built after a start, try again"
        return refused(Code.NOT_FOUND, f"there is no run {run_id!r} of the last day{more}")


def _newest(run: IndexedRun) -> tuple[int, str]:
    return run.last_ms, run.run_id


def _place(text: str) -> tuple[int | None, str]:
    place = page_cursor(_PLACE, text)
    return (int(place[1]), place[2]) if place is not None else (None, "")


def _summary(view: StateView, run: IndexedRun, identity: Identity | None) -> RunSummary | None:
    """None if the caller may see none of it."""
    states: dict[str, int] = {}
    for step in run.steps.values():
        state = _state(view, step, identity)
        if state is not None:
            states[state] = states.get(state, 0) + 1
    streams = _streams(view, run, identity)
    if not states and not streams:
        return None
    began, changed = to_rfc3339(run.first_ms), to_rfc3339(run.last_ms)
    return RunSummary(run.run_id, run_state(states), sum(states.values()), states, len(streams), began, changed)


def run_state(states: Iterator[str] | list[JobStateName] | dict[str, int]) -> RunState:
    """The state of a run from those of its steps."""
    names = set(states)
    if "running" in names:
        return "running"
    if names.intersection(_WAITING):
        return "waiting"
    if "dead" in names:
        return "failed"
    return "cancelled" if names == {"cancelled"} else "done"


def _state(view: StateView, step: IndexedStep, identity: Identity | None) -> JobStateName | None:
    log = view.state.logs.get(step.log_id)
    if log is None or decide(identity, READ, log.topic) is not Verdict.ALLOWED:
        return None
    state = job_summary(view, log, step.offset).state
    return "dead" if state == "finished" and _is_dead(view, step) else state


def _is_dead(view: StateView, step: IndexedStep) -> bool:
    """Whether a message without a task or an id is a dead letter of a group, as far as that is remembered."""
    log = view.state.logs[step.log_id]
    groups = view.state.topics[log.topic].groups.values()
    return any(step.offset in group.progress[log.partition].dead for group in groups if not group.commits_offsets)


def _step(view: StateView, step: IndexedStep, depth: int, identity: Identity | None) -> RunStep | None:
    state = _state(view, step, identity)
    if state is None:
        return None
    log = view.state.logs[step.log_id]
    summary, lane = job_summary(view, log, step.offset), log.lanes.key_of(step.offset)
    history = view.state.job_attempts.of(log.log_id, step.offset)
    ended_ms = max((attempt.ended_ms for attempt in history), default=0) if state in ENDED else 0
    return RunStep(
        topic=log.topic,
        partition=log.partition,
        offset=step.offset,
        state=state,
        depth=depth,
        created_at=to_rfc3339(step.at_ms),
        step_id=step.step_id,
        parent_step_id=step.parent_step_id,
        task=lane.task if lane is not None else "",
        attempts=summary.attempts,
        error=summary.error,
        owner=summary.owner,
        due_at=to_rfc3339(summary.due_ms) if summary.due_ms else None,
        ended_at=to_rfc3339(ended_ms) if ended_ms else None,
        history=[attempt_info(attempt) for attempt in history if attempt.number],
    )


def _streams(view: StateView, run: IndexedRun, identity: Identity | None) -> list[str]:
    known = view.state.streams.by_path
    return [path for path in run.streams if path in known and sees_stream(identity, path)]


def _tree(steps: list[IndexedStep]) -> list[tuple[IndexedStep, int]]:
    """The steps in the order of the tree, each with its depth. A step whose parent is not there is a root."""
    steps.sort(key=lambda step: (step.at_ms, step.log_id, step.offset))
    names = {step.step_id for step in steps if step.step_id}
    children: dict[str, list[IndexedStep]] = {}
    for step in steps:
        is_child = step.parent_step_id in names and step.parent_step_id != step.step_id
        children.setdefault(step.parent_step_id if is_child else "", []).append(step)
    ordered: list[tuple[IndexedStep, int]] = []
    waiting = [(step, 0) for step in reversed(children.pop("", []))]
    while waiting or children:
        if not waiting:  # steps that are each other's parents
            waiting = [(step, 0) for step in reversed(children.pop(next(iter(children))))]
        step, depth = waiting.pop()
        ordered.append((step, depth))
        below = children.pop(step.step_id, []) if step.step_id else []
        waiting += ((child, min(DEPTH_MAX, depth + 1)) for child in reversed(below))
    return ordered

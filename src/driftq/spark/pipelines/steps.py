"""One step of an agent run, as a state machine over events. Pure: knows no Spark.

A message is a step; every group that works on it has a row of its own. Events may come before the message they speak of
(two logs are read at slightly different times) and after a restart they come again with the same batch: what is made of
them depends on nothing but the state before and the events.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field, msgpack, structs

ERROR_MAX = 2_000


class StepEvent(Struct, frozen=True, gc=False):
    """Something that happened to a message. `produced` carries what the envelope says; the others a group."""

    kind: str
    offset: int
    at_ms: int
    order: int = 0
    group: str = ""
    owner: str = ""
    attempt: int = 0
    error: str = ""
    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    task: str = ""


class Work(Struct, gc=False):
    """What one group did with a message. Times in milliseconds, 0 for "not yet"."""

    state: str = "waiting"
    attempts: int = 0
    failures: int = 0
    owner: str = ""
    error: str = ""
    started_ms: int = 0
    attempted_ms: int = 0
    ended_ms: int = 0
    busy_ms: int = 0
    version: int = 0


class Step(Struct):
    """A message and all that is known of it."""

    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    task: str = ""
    produced_ms: int = 0
    works: dict[str, Work] = field(default_factory=dict)


Steps = dict[int, Step]
_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(Steps)


def packed(steps: Steps) -> bytes:
    return _encoder.encode(steps)


def unpacked(data: bytes) -> Steps:
    return _decoder.decode(data) if data else {}


def advance(steps: Steps, events: Iterable[StepEvent]) -> list[tuple[int, str]]:
    """Apply events; gives the (offset, group) pairs that changed, each once, in order. A message that no group has
    touched yet is told under the empty group, which ends as soon as there is a real one."""
    changed: dict[tuple[int, str], None] = {}
    for event in sorted(events, key=lambda each: (each.at_ms, each.kind != "produced", each.order)):
        step = steps.setdefault(event.offset, Step())
        if event.kind == "produced":
            _produced(step, event)
        else:
            _worked(step, event)
        for group, work in step.works.items():
            if group == event.group or event.kind == "produced":
                work.version += 1
                changed[event.offset, group] = None
    return sorted(changed)


def _produced(step: Step, event: StepEvent) -> None:
    step.run_id, step.step_id, step.parent_step_id = event.run_id, event.step_id, event.parent_step_id
    step.tenant_id, step.task, step.produced_ms = event.tenant_id, event.task, event.at_ms
    if not step.works:
        step.works[""] = Work()


def _worked(step: Step, event: StepEvent) -> None:
    waiting = step.works.pop("", None)
    work = step.works.get(event.group)
    if work is None:
        # It goes on counting where the row of nobody's group stopped, so that the later version is the true one.
        work = step.works[event.group] = Work(version=waiting.version if waiting is not None else 0)
    if event.kind == "delivered":
        work.state, work.owner, work.attempts = "running", event.owner, max(work.attempts, event.attempt)
        work.attempted_ms = event.at_ms
        work.started_ms = work.started_ms or event.at_ms
        return
    if work.state == "running":
        work.busy_ms += max(0, event.at_ms - work.attempted_ms)
    work.attempts = max(work.attempts, event.attempt)
    if event.kind in ("failed", "expired"):
        work.state, work.failures = "retrying", work.failures + 1
        work.error = (event.error or "ack_timeout")[:ERROR_MAX]
    elif event.kind == "released":
        work.state = "waiting"
    else:
        work.state = {"acked": "succeeded"}.get(event.kind, event.kind)
        work.ended_ms = event.at_ms
        if event.kind == "dead":
            work.error = (event.error or work.error)[:ERROR_MAX]


def rows(steps: Steps, changed: Iterable[tuple[int, str]]) -> list[dict[str, object]]:
    """What a table says of these steps now."""
    found: list[dict[str, object]] = []
    for offset, group in changed:
        step = steps[offset]
        work = step.works.get(group)
        if work is None:
            continue  # the row of nobody's group, which a real one has replaced
        row: dict[str, object] = {"offset": offset, "group": group, **structs.asdict(work)}
        row.update({name: value for name, value in structs.asdict(step).items() if name != "works"})
        found.append(row)
    return found

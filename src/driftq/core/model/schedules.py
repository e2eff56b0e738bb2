"""Commands of schedules and their replies. The facts are in `core.model.schedule_facts`."""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.commands import Command
from driftq.core.model.replies import Reply
from driftq.core.model.schedule_facts import SchedulePlan, ScheduleSpec

# --- commands ---------------------------------------------------------------------------------------------------------


class CreateSchedule(Command, frozen=True):
    """Create a schedule, with its first plan. With `replace`, one of that name is changed instead of refused."""

    schedule: str
    spec: ScheduleSpec
    plan: SchedulePlan
    replace: bool = False


class PauseSchedule(Command, frozen=True):
    schedule: str
    paused: bool = True


class DeleteSchedule(Command, frozen=True):
    schedule: str


class RunSchedule(Command, frozen=True):
    """Produce the message of a schedule now, once for each `request_id`."""

    schedule: str
    request_id: str


class NextPlan(Struct, frozen=True, gc=False):
    """A plan for a schedule as it was when the plan was made."""

    number: int
    revision: int
    plan: SchedulePlan


class PlanSchedules(Command, frozen=True):
    """Extend the plans of schedules. A plan for what has changed or has fired since is left out."""

    plans: tuple[NextPlan, ...]


class FireSchedules(Command, frozen=True):
    """Fire what is due: some of it, oldest first."""


# --- replies ----------------------------------------------------------------------------------------------------------


class ScheduleReady(Reply, frozen=True):
    """The schedule is as requested. Neither created nor changed: it was so before."""

    schedule: str
    created: bool = False
    changed: bool = False


class ScheduleRan(Reply, frozen=True):
    topic: str
    partition: int
    offset: int
    job: str  # the id of its message
    duplicate: bool = False

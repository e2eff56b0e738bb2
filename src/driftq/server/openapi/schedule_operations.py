"""The documentation of schedules."""

from __future__ import annotations

from driftq.server.openapi.operation import (
    DONE,
    PAGE,
    READ_ERRORS,
    WRITE_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    as_json,
)
from driftq.wire import schedules

_TAG = "schedules"

OPERATIONS: Operations = {
    ("GET", "/v1/schedules"): Operation(
        "List schedules",
        "The schedules that the caller may see, in the order of their names, each with its next time.",
        _TAG,
        {200: ReplyDoc("A page of schedules. It may be short and have a next one.", schedules.SchedulesReply)},
        query=(
            Query("prefix", str, "Only names that begin with this."),
            Query("topic", str, "Only schedules of this topic."),
            *PAGE,
        ),
        errors=(400,),
    ),
    ("POST", "/v1/schedules"): Operation(
        "Create a schedule",
        "It produces its message at each time of a cron expression, or at an interval. Each firing has the id "
        "`schedule@time` and is produced once. Repeating the call has no further effect; with `replace` a schedule "
        "that differs is changed.",
        _TAG,
        {
            201: ReplyDoc("The schedule was created.", schedules.ScheduleInfo),
            200: ReplyDoc("It was changed, or existed as requested.", schedules.ScheduleInfo),
        },
        as_json(schedules.ScheduleRequest),
        errors=WRITE_ERRORS,
    ),
    ("GET", "/v1/schedules/{name}"): Operation(
        "Describe a schedule",
        "What it produces, its next ten times, its last message, and the error of the last time if it was skipped.",
        _TAG,
        {200: ReplyDoc("The schedule.", schedules.ScheduleInfo)},
        errors=READ_ERRORS,
    ),
    ("DELETE", "/v1/schedules/{name}"): Operation(
        "Delete a schedule", "Its messages stay.", _TAG, DONE, errors=READ_ERRORS
    ),
    ("POST", "/v1/schedules/{name}/pause"): Operation(
        "Pause a schedule", "It does not fire until it is resumed.", _TAG, DONE, errors=READ_ERRORS
    ),
    ("POST", "/v1/schedules/{name}/resume"): Operation(
        "Resume a schedule",
        "It fires at its next time. Times that passed while it was paused are not caught up with.",
        _TAG,
        DONE,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/schedules/{name}/run"): Operation(
        "Run a schedule now",
        "Produces its message once more, also while it is paused. Its times stay as they are. A repeat with the same "
        "`request_id` produces nothing. A body is optional.",
        _TAG,
        {
            201: ReplyDoc("The message was produced.", schedules.RanReply),
            200: ReplyDoc("It was produced before.", schedules.RanReply),
        },
        as_json(schedules.RunRequest),
        body_optional=True,
        errors=WRITE_ERRORS,
    ),
}

"""The documentation of the clock."""

from __future__ import annotations

from driftq.server.documenting.operation import Operation, Reply
from driftq.wire import admin as a

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v1/clock"): Operation(
        "The broker's time and the machine's", "server", {200: Reply("Both, and whether they disagree.", a.ClockInfo)}
    ),
    ("POST", "/v1/clock/accept"): Operation(
        "Accept the machine's clock as the broker's time",
        "server",
        {200: Reply("The broker's time is the machine's. Running leases keep the time they had left.", a.ClockInfo)},
    ),
}

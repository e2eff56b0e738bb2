"""The core and the storage, running: order, time, threads and wake-ups."""

from driftq.extras import require

require("the broker", "server")

"""The server: HTTP requests in, commands out; replies in, HTTP responses out."""

from driftq.extras import require

require("the broker", "server")

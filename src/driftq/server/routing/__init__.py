"""The old path of `driftq.server.router`, for programs that import from it."""

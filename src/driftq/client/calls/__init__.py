"""Every call as a pure function: arguments in, a request with its reply parser out."""

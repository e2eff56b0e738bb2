"""State transitions that several rules share: lookups, appends, retries, dead letters, claim selection."""

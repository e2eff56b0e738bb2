"""The vocabulary of the core: commands, queries, facts, replies. Plain values; no rules, no state."""

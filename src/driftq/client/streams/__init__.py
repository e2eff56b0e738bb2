"""Durable streams: create, append, read, follow."""

"""Bytes that survive: the journal, the logs, snapshots, and the one door to the filesystem."""

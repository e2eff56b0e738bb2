"""Shared by several kinds of tests: simulated parts, fixtures, real servers and clients."""

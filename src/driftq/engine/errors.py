"""Errors of a running engine, for callers that catch them without importing the engine."""


class EngineStopped(Exception):
    """The engine was closed, or a disk failure stopped it: the outcome of unanswered commands is unknown."""

"""DriftQ: queues, jobs and durable streams on one journal.

This is the one door. It stays small on purpose: a user needs about a dozen names, and everything else is reached by the
path of its module or not at all. Nothing heavy is imported here, so `import driftq` costs next to nothing.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]

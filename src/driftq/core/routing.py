"""Which partition a key belongs to: the broker and its producers ask the same function."""

from __future__ import annotations

from driftq.wire.partitions import fnv1a as fnv1a
from driftq.wire.partitions import partition_of as partition_of

"""Errors of one kind under one name; the broker and the pipelines ask the same function."""

from __future__ import annotations

from driftq.wire.fingerprints import fingerprint as fingerprint

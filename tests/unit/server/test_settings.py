"""Settings of earlier versions: the error names what replaces them."""

from __future__ import annotations

import pytest

from driftq.server.settings import REMOVED, load
from driftq.settings.loader import SettingsError


def test_a_removed_setting_names_its_replacement():
    with pytest.raises(SettingsError, match="topics set TOPIC --fair tenant"):
        load(None, {}, ["queue.fair_tenants=false"])
    with pytest.raises(SettingsError, match="was removed"):
        load(None, {"DRIFTQ_QUEUE__FAIR_TENANTS": "true"}, [])


def test_what_is_removed_is_not_there():
    names = {assignment.partition("=")[0] for assignment in REMOVED}
    for name in names:
        with pytest.raises(SettingsError, match=name):
            load(None, {}, [f"{name}=1"])

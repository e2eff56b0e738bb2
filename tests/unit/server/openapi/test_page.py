"""The page that shows the API document: nothing from elsewhere, and a strict policy."""

from __future__ import annotations

import base64
import hashlib
import re

from driftq.server.openapi import page


def test_the_page_needs_nothing_from_elsewhere_and_its_policy_fits_it():
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page.PAGE)
    assert "innerHTML" not in page.SCRIPT
    for tag in ("style", "script"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.PAGE, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in page.POLICY
    assert page.POLICY.startswith("default-src 'none';")
    assert "unsafe" not in page.POLICY

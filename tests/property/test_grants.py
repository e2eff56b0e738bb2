"""A pattern matches what the regular expression of the same meaning matches, and covering grants allow no less."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from driftq.wire.grants import Grant, allows, covers, matches

patterns = st.text("ab.*/", min_size=1, max_size=8)
names = st.text("ab./", max_size=10)
grants = st.lists(st.builds(Grant, st.sampled_from(["read", "manage"]), patterns), min_size=1, max_size=3).map(tuple)


@given(patterns, names)
def test_a_pattern_matches_as_its_regular_expression_does(pattern, name):
    expected = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == bool(re.fullmatch(expected, name))


@given(grants, grants, st.sampled_from(["read", "manage"]), names)
def test_what_is_covered_is_never_allowed_more_than_what_covers_it(wide, narrow, verb, name):
    if covers(wide, narrow) and allows(narrow, verb, name):
        assert allows(wide, verb, name)


@given(grants)
def test_grants_cover_themselves(some):
    assert covers(some, some)

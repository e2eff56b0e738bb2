"""Grants: what a pattern matches, what one grant allows, and whether some grants cover others."""

from __future__ import annotations

import pytest

from driftq.wire.grants import (
    VERBS,
    Grant,
    allows,
    any_name,
    covers,
    literal_prefix,
    matches,
    parse_grant,
    parse_grants,
    pattern_of,
)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("*", "", True),
        ("*", "runs/7", True),
        ("a*b", "ab", True),
        ("a*a", "a", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "acb", False),
        ("*.eu", "orders.eu", True),
        ("**", "x", True),
        ("a.c", "abc", False),
        ("runs/*", "runs/7/steps", True),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(pattern, name, fits):
    assert matches(pattern, name) is fits


@pytest.mark.parametrize(
    "text", ["", "all", "produce", "produce:", "observe:x", "admin:*", "produce:a b", "read:\n", "x:y"]
)
def test_what_is_no_grant_is_refused_with_a_reason(text):
    with pytest.raises(ValueError, match="is not a grant"):
        parse_grant(text)


def test_a_grant_is_written_as_it_was_read_and_a_consumer_has_every_group_unless_it_names_one():
    assert str(parse_grant("consume:orders")) == "consume:orders/*"
    assert str(parse_grant("consume:orders.*/billing")) == "consume:orders.*/billing"
    assert str(parse_grant("admin")) == "admin"
    assert parse_grants(["read:a", "read:a"]) == (Grant("read", "a"),)
    for texts in ([], [f"read:{number}" for number in range(65)]):
        with pytest.raises(ValueError, match="1 to 64"):
            parse_grants(texts)


def test_nothing_is_allowed_by_default_and_an_administrator_may_do_everything():
    assert not any(allows((), verb, name) for verb in VERBS for name in ("", "a"))
    assert all(allows(parse_grants(["admin"]), verb, name) for verb in VERBS for name in ("", "a", "a/b"))
    manager = parse_grants(["manage:*"])
    assert {verb for verb in VERBS if allows(manager, verb, "a")} == {"manage"}


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        (["produce:*"], ["produce:a*"], True),
        (["produce:a*"], ["produce:*"], False),
        (["produce:a*"], ["produce:a*b*"], True),
        (["produce:a*b"], ["produce:a*"], False),
        (["produce:a*b"], ["produce:ab"], True),
        (["consume:orders"], ["consume:orders/billing"], True),
        (["consume:orders/billing"], ["consume:orders"], False),
        (["admin"], ["observe", "read:x"], True),
        (["manage:*"], ["admin"], False),
        (["read:a", "read:b"], ["read:b"], True),
    ],
)
def test_grants_cover_others_if_they_allow_everything_that_those_allow(wide, narrow, covered):
    assert covers(parse_grants(wide), parse_grants(narrow)) is covered


def test_a_pattern_is_asked_for_like_a_name():
    assert pattern_of(any_name("runs/*")) == "runs/*"
    assert literal_prefix("runs/*/x") == "runs/"
    assert literal_prefix("runs") == "runs"

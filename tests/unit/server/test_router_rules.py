"""Rules in TOML: what they match, which one wins, and what is wrong with a file is said at start."""

from __future__ import annotations

import pytest

from driftq.server.router.factory import load, parse
from driftq.settings.loader import SettingsError
from driftq.wire.message import Envelope
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput, checked


def decided(rules: str, message: RouteInput) -> RouteDecision | None:
    return parse(rules).route(message)


def message(topic="inbox", value=b"{}", key="", task="", **envelope) -> RouteInput:
    return RouteInput(topic, value, key, Envelope(**envelope), task)


@pytest.mark.parametrize(
    ("match", "fits", "fits_not"),
    [
        ('topic = "inbox.*"', message("inbox.eu"), message("inbox")),
        ('topic = "INBOX"', message("INBOX"), message("inbox")),
        ('topic = ["a", "b?"]', message("b1"), message("c")),
        ('key = "user-[0-9]"', message(key="user-7"), message(key="user-x")),
        ('key = ""', message(), message(key="k")),
        ('tenant = "acme"', message(tenant_id="acme"), message(tenant_id="acme2")),
        ('run_id = "run_*"', message(run_id="run_1"), message()),
        ('task = "resize"', message(task="resize"), message()),
        ('labels = { kind = "inv*" }', message(labels={"kind": "invoice"}), message(labels={"kind": "order"})),
        ('labels = { kind = "*" }', message(labels={"kind": ""}), message(labels={"other": "x"})),
        ('value = { "a.b" = "x" }', message(value=b'{"a":{"b":"x"}}'), message(value=b'{"a":{"b":"y"}}')),
        ('value = { "a.1.b" = 3 }', message(value=b'{"a":[0,{"b":3}]}'), message(value=b'{"a":[0,{"b":"3"}]}')),
        ("value = { ok = true }", message(value=b'{"ok":true}'), message(value=b'{"ok":1}')),
        ("value = { n = 1 }", message(value=b'{"n":1.0}'), message(value=b'{"n":true}')),
        ('value = { n = [1, "two"] }', message(value=b'{"n":"two"}'), message(value=b'{"n":2}')),
        ('value = { n = "*" }', message(value=b'{"n":""}'), message(value=b"not json")),
        ('topic = "inbox", value = { n = 1 }', message(value=b'{"n":1}'), message("other", value=b'{"n":1}')),
    ],
)
def test_a_rule_matches_what_it_says(match, fits, fits_not):
    rules = f'[[rule]]\nname = "r"\nmatch = {{ {match} }}\nroute = {{ label = "yes" }}'
    assert decided(rules, fits) == RouteDecision("yes", meta={"rule": "r"})
    assert decided(rules, fits_not) is None


def test_the_first_rule_that_matches_decides():
    rules = """
        [[rule]]
        match = { topic = "a*" }
        route = { label = "first", target_topic = "t", partition = 2, meta = { why = "because" } }
        [[rule]]
        match = { topic = "ab" }
        route = { label = "second" }
        [[rule]]
        name = "rest"
        route = { label = "third" }
    """
    assert decided(rules, message("ab")) == RouteDecision("first", "t", 2, {"rule": "rule 1", "why": "because"})
    assert decided(rules, message("b")) == RouteDecision("third", meta={"rule": "rest"})


def test_a_rule_without_a_route_keeps_later_rules_away():
    rules = '[[rule]]\nmatch = { topic = "raw" }\n[[rule]]\nroute = { label = "all" }'
    assert decided(rules, message("raw")) is None
    assert decided(rules, message("x")) is not None


def test_deep_nesting_is_not_json_for_a_rule():
    rules = '[[rule]]\nmatch = { value = { a = 1 } }\nroute = { label = "x" }'
    assert decided(rules, message(value=b"[" * 100_000)) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[rule]]\nmatch = { topik = 'x' }", "rule 1: match` |topik"),
        ("[[rule]]\n[[rule]]\nroute = { partition = -1 }", "rule 2.*partition"),
        ("[[rule]]\nname = 'a'\nmatch = { topic = 'x' }\n[[rule]]\nname = 'a'\nmatch = { topic = 'y' }", "two rules"),
        ("[[rule]]\nname = 'all'\nroute = { label = 'x' }\n[[rule]]\nname = 'late'", "'late' is never reached: 'all'"),
        ("[[rule]]\nmatch = { value = { 'a..b' = 1 } }", "'a..b' is not a path"),
        (f"[[rule]]\nname = 'r'\nroute = {{ label = '{'x' * 300}' }}", "rule 'r': route: .*249"),
        ("[[rule]]\nmatch = { topic = [] }", "rule 1.*topic"),
        ("[[rule", "rules: "),
        ("", "rule"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(text, complaint):
    with pytest.raises(SettingsError, match=complaint):
        parse(text)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.toml: No such file"):
        load(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    "answer",
    [
        {"label": 3},
        {"lable": "x"},
        {"partition_override": -1},
        {"partition_override": True},
        {"meta": {"k": 1}},
        {"meta": {str(n): "" for n in range(33)}},
        {"target_topic": "x" * 250},
        "label",
        RouteDecision(label="x" * 250),
        RouteDecision(meta={"k": "x" * 1_025}),
    ],
)
def test_nonsense_from_a_router_is_no_decision(answer):
    with pytest.raises(BadRouteDecision):
        checked(answer)


def test_a_mapping_is_as_good_as_a_decision():
    assert checked({"label": "x", "partition_override": None}) == RouteDecision("x")
    assert checked(None) is None

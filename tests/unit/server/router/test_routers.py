"""The routers: rules in TOML, Python functions, webhooks; errors in their targets are reported at the start."""

from __future__ import annotations

import pytest

from driftq.server.outbound.client import OutboundClient
from driftq.server.router.routers import PythonRouter, RulesRouter, WebhookRouter, load_function
from driftq.server.settings import Settings
from driftq.settings.loader import SettingsError
from driftq.wire.message import Envelope
from driftq.wire.router import BadRouteDecision, RouteDecision, RouteInput, checked


def decision(rules: str, message: RouteInput) -> RouteDecision | None:
    return RulesRouter.parse(rules).route(message)


def message(topic="inbox", value=b"{}", key="", task="", **envelope) -> RouteInput:
    return RouteInput(topic, value, key, Envelope(**envelope), task)


@pytest.mark.parametrize(
    ("match", "matching", "other"),
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
def test_a_rule_matches_what_it_says(match, matching, other):
    rules = f'[[rule]]\nname = "r"\nmatch = {{ {match} }}\nroute = {{ label = "yes" }}'
    assert decision(rules, matching) == RouteDecision("yes", meta={"rule": "r"})
    assert decision(rules, other) is None


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
    assert decision(rules, message("ab")) == RouteDecision("first", "t", 2, {"rule": "rule 1", "why": "because"})
    assert decision(rules, message("b")) == RouteDecision("third", meta={"rule": "rest"})


def test_a_rule_without_a_route_ends_the_search():
    rules = '[[rule]]\nmatch = { topic = "raw" }\n[[rule]]\nroute = { label = "all" }'
    assert decision(rules, message("raw")) is None
    assert decision(rules, message("x")) is not None


def test_a_rule_does_not_match_json_that_is_nested_too_deeply():
    rules = '[[rule]]\nmatch = { value = { a = 1 } }\nroute = { label = "x" }'
    assert decision(rules, message(value=b"[" * 100_000)) is None


@pytest.mark.parametrize(
    ("text", "error"),
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
def test_a_file_with_an_error_is_refused_with_its_position(text, error):
    with pytest.raises(SettingsError, match=error):
        RulesRouter.parse(text)


def test_a_missing_file_is_named_in_the_error(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.toml: No such file"):
        RulesRouter.load(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    "reply",
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
def test_an_invalid_reply_of_a_router_is_no_decision(reply):
    with pytest.raises(BadRouteDecision):
        checked(reply)


def test_a_mapping_is_accepted_as_a_decision():
    assert checked({"label": "x", "partition_override": None}) == RouteDecision("x")
    assert checked(None) is None


class Labeller:
    """A router as a class."""

    def route(self, message):
        return RouteDecision(label="class")


async def label_later(message):
    return RouteDecision(label="later")


def test_a_python_router_is_loaded_by_its_name():
    here = __name__
    import sys

    sys.modules.setdefault(here, sys.modules[Labeller.__module__])
    assert load_function(f"{here}:Labeller")(None) == RouteDecision(label="class")
    assert PythonRouter(load_function(f"{here}:label_later")).inline is False


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("nothing", "module:attribute"),
        ("no_such_module_here:x", "no_such_module_here"),
        ("json:nothing", "nothing"),
        ("json:__name__", "is not callable"),
    ],
)
def test_a_python_router_that_cannot_be_loaded_is_named_in_the_error(target, error):
    with pytest.raises(SettingsError, match=error):
        load_function(target)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/route",
        "ftp://127.0.0.1/",
        "https://",
        "https://user:pass@example.org/",
        "https://example.org/#x",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1.example.org/",
        "nothing",
    ],
)
def test_a_webhook_must_be_https_or_on_this_machine(url):
    with pytest.raises(SettingsError, match=r"router\.target"):
        WebhookRouter(url, OutboundClient(Settings()))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/r?x=1", "http://[::1]/", "http://localhost", "https://example.org"]
)
def test_a_webhook_over_https_or_on_this_machine_is_accepted(url):
    WebhookRouter(url, OutboundClient(Settings()))

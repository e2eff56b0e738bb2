"""Routers: what they receive and return, and routing by rules.

A router takes a `RouteInput` and returns a `RouteDecision`, or None to leave the message as it is. It cannot change the
payload and cannot refuse a message. Calling routers, and handling their failures, is done elsewhere.

`Rules` is a router that is written as a TOML file. The first rule whose conditions all hold decides:

    [[rule]]
    name = "large invoices"
    match = { topic = "inbox.*", labels = { kind = "invoice" }, value = { "total.currency" = ["EUR", "CHF"] } }
    route = { target_topic = "invoices", label = "finance", meta = { source = "rules" } }

A text is a pattern (`*`, `?`, `[…]`; case-sensitive), any other value is compared, and a list matches any of its
members. A rule without conditions matches everything; a rule without a route leaves the message as it is.

Both are the same for the broker's router at produce and for a pipeline over a topic.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from driftq.wire.fields import NAME_LENGTH_MAX
from driftq.wire.message import Envelope

META_ENTRIES_MAX = 32

_Label = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
_MetaKey = Annotated[str, Meta(min_length=1, max_length=128)]
_MetaValue = Annotated[str, Meta(max_length=1_024)]
_UNREAD = object()


class RouteDecision(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a message goes. Empty fields leave it to the envelope and the hash of the key."""

    label: _Label = ""
    target_topic: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    partition_override: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    meta: Annotated[dict[_MetaKey, _MetaValue], Meta(max_length=META_ENTRIES_MAX)] | None = None


class BadRouteDecision(Exception):
    """What a router returned is not a decision."""


class RouteInput:
    """A message that is being produced: the requested topic, key, value and envelope. It is read-only."""

    __slots__ = ("_json", "envelope", "key", "task", "topic", "value")

    def __init__(
        self, topic: str, value: bytes, key: str = "", envelope: Envelope | None = None, task: str = ""
    ) -> None:
        self.topic = topic
        self.value = value
        self.key = key
        self.envelope = envelope or Envelope()
        self.task = task
        self._json: Any = _UNREAD

    def json(self) -> Any:
        """The value parsed as JSON; None if it is not JSON."""
        if self._json is _UNREAD:
            try:
                self._json = msgspec.json.decode(self.value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._json = None
        return self._json


def checked(answer: object) -> RouteDecision | None:
    """A router's answer as a decision. A mapping works like a `RouteDecision`. Raises `BadRouteDecision`."""
    if answer is None:
        return None
    plain = msgspec.to_builtins(answer) if isinstance(answer, RouteDecision) else answer
    try:
        return msgspec.convert(plain, RouteDecision)
    except msgspec.ValidationError as error:
        raise BadRouteDecision(str(error)) from None


class RouteReply(Struct, frozen=True, omit_defaults=True):
    """What would happen to a message. `result` is what came of calling the router: routed, unrouted, timeout, error,
    invalid, none (there is no router), or not_asked (the idempotency key is known, so the message would go where the
    first one went). `refused` is the error that a produce would get."""

    topic: str
    router: str
    result: str
    routed_topic: str
    explanation: list[str]
    partition: int | None = None
    label: str = ""
    meta: dict[str, str] | None = None
    decision: RouteDecision | None = None
    duplicate: bool = False
    refused: dict[str, Any] | None = None


# --- rules ----------------------------------------------------------------------------------------------------------

_Text = str | Annotated[list[str], Meta(min_length=1)]
_Scalar = str | int | float | bool
_Value = _Scalar | Annotated[list[_Scalar], Meta(min_length=1)]
RuleTest = Callable[[RouteInput], bool]

_ABSENT = object()


class Match(Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions of a rule. `value` maps dotted paths into the JSON value to the expected value."""

    topic: _Text | None = None
    key: _Text | None = None
    tenant: _Text | None = None
    run_id: _Text | None = None
    task: _Text | None = None
    labels: dict[str, _Text] = {}
    value: dict[str, _Value] = {}


class RuleRoute(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rule sends a message."""

    label: str = ""
    target_topic: str = ""
    partition: Annotated[int, Meta(ge=0)] | None = None
    meta: dict[str, str] = {}


class RuleText(Struct, frozen=True, forbid_unknown_fields=True):
    name: str = ""
    match: Match = Match()
    route: RuleRoute = RuleRoute()


class _RulesFile(Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[RuleText]


class Rule(NamedTuple):
    """A compiled rule. The `meta` of its decision contains its name, so that a consumer can see which rule decided."""

    name: str
    tests: tuple[RuleTest, ...]
    decision: RouteDecision | None


class BadRules(ValueError):
    """A file of rules is invalid; the message names the file, the rule and the mistake."""


class Rules:
    """The rules of a file. The first one whose conditions all hold decides."""

    def __init__(self, rules: list[Rule]) -> None:
        self.rules = rules

    def find(self, message: RouteInput) -> Rule | None:
        for rule in self.rules:
            for test in rule.tests:
                if not test(message):
                    break
            else:
                return rule
        return None

    def decide(self, message: RouteInput) -> RouteDecision | None:
        rule = self.find(message)
        return rule.decision if rule is not None else None


def load_rules(path: str) -> Rules:
    """Read a file of rules; raises `BadRules`."""
    try:
        return parse_rules(Path(path).read_text(encoding="utf-8"), path)
    except OSError as error:
        raise BadRules(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadRules(f"{path}: {error}") from None


def parse_rules(text: str, path: str = "rules") -> Rules:
    try:
        texts = msgspec.convert(tomllib.loads(text), _RulesFile).rule
    except tomllib.TOMLDecodeError as error:
        raise BadRules(f"{path}: {error}") from None
    except msgspec.ValidationError as error:
        raise BadRules(f"{path}: {_explained(str(error))}") from None
    rules: list[Rule] = []
    for number, written in enumerate(texts, 1):
        rule = _rule(written, number, path)
        if any(known.name == rule.name for known in rules):
            raise BadRules(f"{path}: two rules are called {rule.name!r}")
        if rules and not rules[-1].tests:
            raise BadRules(f"{path}: rule {rule.name!r} is never reached: {rules[-1].name!r} matches everything")
        rules.append(rule)
    return Rules(rules)


def _explained(message: str) -> str:
    """msgspec counts rules from 0 (`$.rule[2]`), people count from 1."""
    return re.sub(r"\$\.rule\[(\d+)\]", lambda match: f"rule {int(match[1]) + 1}: ", message).replace(": .", ": ")


def _rule(written: RuleText, number: int, path: str) -> Rule:
    name = written.name or f"rule {number}"
    route = written.route
    decision = None
    if route != RuleRoute():
        try:
            decision = checked(
                RouteDecision(route.label, route.target_topic, route.partition, {"rule": name, **route.meta})
            )
        except BadRouteDecision as error:
            raise BadRules(f"{path}: rule {name!r}: route: {error}") from None
    try:
        return Rule(name, tuple(_tests(written.match)), decision)
    except ValueError as error:
        raise BadRules(f"{path}: rule {name!r}: match: {error}") from None


def _tests(match: Match) -> Iterator[RuleTest]:
    """Cheap conditions first: the value is parsed as JSON only if all others hold."""
    if match.topic is not None:
        yield _on(match.topic, lambda message: message.topic)
    if match.key is not None:
        yield _on(match.key, lambda message: message.key)
    if match.tenant is not None:
        yield _on(match.tenant, lambda message: message.envelope.tenant_id)
    if match.run_id is not None:
        yield _on(match.run_id, lambda message: message.envelope.run_id)
    if match.task is not None:
        yield _on(match.task, lambda message: message.task)
    for label, expected_label in match.labels.items():
        yield _on(expected_label, _label(label))
    for path, expected_value in match.value.items():
        yield _on(expected_value, _field(path))


def _on(expected: _Text | _Value, take: Callable[[RouteInput], Any]) -> RuleTest:
    """The test whether what `take` reads from a message is one of the expected values."""
    members = expected if isinstance(expected, list) else [expected]
    accepts = [_accepts(member) for member in members]
    if len(accepts) == 1:
        only = accepts[0]
        return lambda message: only(take(message))

    def any_accepts(message: RouteInput) -> bool:
        actual = take(message)
        return any(accept(actual) for accept in accepts)

    return any_accepts


def _accepts(expected: _Scalar) -> Callable[[Any], bool]:
    if isinstance(expected, str):
        if not expected:
            return lambda actual: actual == ""
        if not re.search(r"[*?\[]", expected):
            return lambda actual: bool(actual == expected)
        pattern = re.compile(fnmatch.translate(expected)).match
        return lambda actual: isinstance(actual, str) and pattern(actual) is not None
    if isinstance(expected, bool):
        return lambda actual: actual is expected
    return lambda actual: isinstance(actual, int | float) and not isinstance(actual, bool) and actual == expected


def _label(name: str) -> Callable[[RouteInput], Any]:
    return lambda message: (message.envelope.labels or {}).get(name, _ABSENT)


def _field(path: str) -> Callable[[RouteInput], Any]:
    """`a.b.0.c`: members of objects by name, of arrays by number."""
    steps = path.split(".")
    if not all(steps):
        raise ValueError(f"{path!r} is not a path: names and numbers, with a dot between them")

    def take(message: RouteInput) -> Any:
        value = message.json()
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step, _ABSENT)
            elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
                value = value[int(step)]
            else:
                return _ABSENT
        return value

    return take

"""Policies to compare, as a file of settings.

    hourly_price = 0.40                 # of one worker, for the cost

    [[policy]]
    name = "patient"
    retry = { max_attempts = 8, backoff_ms = 2000, max_backoff_ms = 60000, jitter = "full" }

    [[policy]]
    name = "fair, with a lane for orders above 1000"
    fair = "tenant"
    rules = "rules.toml"                # as for the broker's router; a rule sets a label or a partition
    workers = { "" = 3, large = 1 }     # by the label that they claim; "": any

What a policy does not name is as in a new topic of a new broker. Knows neither the broker nor the record.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from driftq.wire.message import RetryPolicy
from driftq.wire.router import BadRules, Rules, load_rules

Count = Annotated[int, Meta(ge=1)]


class BadPolicies(ValueError):
    """A file of policies is wrong; the message says where."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a broker is given: settings of the topic, two of the broker, the router's rules, and the workers."""

    name: Annotated[str, Meta(min_length=1, max_length=60)]
    retry: RetryPolicy | None = None
    fair: Literal["", "tenant"] = ""
    lease_ms: Annotated[int, Meta(ge=0)] = 0
    in_flight_max: Annotated[int, Meta(ge=0)] = 0
    retry_ratio: Annotated[float, Meta(ge=0, le=1)] | None = None
    ageing_ms: Annotated[int, Meta(ge=0)] | None = None
    rules: str = ""
    workers: Annotated[dict[str, Count], Meta(min_length=1)] | Count | None = None  # None: as many as were seen

    def router(self) -> Rules | None:
        """The rules of its router. Raises `BadPolicies`; a rule cannot send a message to another topic here."""
        if not self.rules:
            return None
        try:
            rules = load_rules(self.rules)
        except BadRules as error:
            raise BadPolicies(f"policy {self.name!r}: {error}") from None
        for rule in rules.rules:
            if rule.decision is not None and rule.decision.target_topic:
                raise BadPolicies(
                    f"policy {self.name!r}: rule {rule.name!r} sends messages to another topic; a backtest has one "
                    "topic: use labels, and workers for them"
                )
        return rules


class Policies(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    policy: Annotated[list[Policy], Meta(min_length=1, max_length=20)]
    hourly_price: Annotated[float, Meta(ge=0)] = 0.0


def load_policies(path: str) -> Policies:
    """Raises `BadPolicies`. Paths of rules are relative to the file."""
    try:
        policies = msgspec.convert(tomllib.loads(Path(path).read_text(encoding="utf-8")), Policies)
    except OSError as error:
        raise BadPolicies(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise BadPolicies(f"{path}: {error}") from None
    names = [policy.name for policy in policies.policy]
    if len(set(names)) < len(names):
        raise BadPolicies(f"{path}: two policies have the same name")
    folder = Path(path).parent
    resolved = [
        msgspec.structs.replace(policy, rules=str(folder / policy.rules)) if policy.rules else policy
        for policy in policies.policy
    ]
    return Policies(resolved, policies.hourly_price)

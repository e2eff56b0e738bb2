"""Every command and every reply has its names turned, and none has a text of which it is not said what it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from msgspec import Struct
from msgspec.structs import fields

from driftq.core.broker import RULES
from driftq.core.model import commands as c
from driftq.core.model.access import CreateAccessToken, NoteAccessTokens, NoteAudit, OpenAudit
from driftq.core.model.facts import RecordSchedule
from driftq.core.model.queries import ListStreams
from driftq.core.model.replies import Produced, Rejected, Reply, StreamEntry, StreamsListed
from driftq.core.model.schedules import FireSchedules, PlanSchedules
from driftq.core.model.subscriptions import AckWake
from driftq.core.model.tenants import ChangeTenant, CreateTenant, DeleteTenant
from driftq.server.access.identity import AccessRefused
from driftq.server.tenants.names import TenantNames
from driftq.wire.audit import AuditRecord
from driftq.wire.errors import Code
from driftq.wire.namespaces import Namespace, beside, own_name, tenant_of

OF_OPERATORS = {
    OpenAudit, NoteAudit, c.SetClock, c.Sweep, NoteAccessTokens, CreateTenant, ChangeTenant, DeleteTenant,
    FireSchedules, PlanSchedules,
}  # fmt: skip
NAMES = TenantNames(Namespace("acme"))


def parts_of(kind: type, seen: frozenset[type] = frozenset()) -> Iterator[type]:
    """A type and all types in its fields. One that contains itself ends there."""
    if kind in seen:
        return
    yield kind
    for field in fields(kind):
        yield from structs_in(field.type, seen | {kind})


def structs_in(annotation: Any, seen: frozenset[type]) -> Iterator[type]:
    if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation is not AuditRecord:
        yield from parts_of(annotation, seen)
    for part in get_args(annotation):
        yield from structs_in(part, seen)


def replies(kind: type = Reply) -> Iterator[type]:
    for reply in kind.__subclasses__():
        yield reply
        yield from replies(reply)


@pytest.mark.parametrize("command", sorted(set(RULES) - OF_OPERATORS, key=lambda kind: kind.__name__))
def test_every_text_of_a_command_is_known(command: type):
    for kind in parts_of(command):
        NAMES._plan(kind, NAMES.inward, NAMES._in)


@pytest.mark.parametrize("reply", [kind for kind in replies() if kind is not Rejected])
def test_every_text_of_a_reply_is_known(reply: type):
    for kind in parts_of(reply):
        NAMES._plan(kind, NAMES.outward, NAMES._out)


def test_names_are_turned_in_all_parts_of_a_command():
    produce = c.Produce("orders", b"", 1, 1, once=c.ProduceKey("", "orders", "k"), job=c.ProduceKey("acme", "o", "j"))
    ack = c.Ack("dlq.orders", "g", "w", ())
    append = c.AppendStream("runs/1")
    outcome = NAMES.inward(c.CommitOutcome((ack,), (produce,), (append,), key="k"))
    assert outcome.acks[0].topic == "dlq.acme~orders"
    assert (outcome.produces[0].topic, outcome.appends[0].path, outcome.key) == (
        "acme~orders",
        "acme~runs/1",
        "acme~k",
    )
    assert outcome.produces[0].once == c.ProduceKey("acme", "acme~orders", "k")
    assert NAMES.inward(ListStreams()).prefix == "acme~"
    assert NAMES.inward(ListStreams("a", "b")) == ListStreams("acme~a", "acme~b")
    assert NAMES.inward(c.CommitOffsets("g", (("t", 0, 5),))).offsets == (("acme~t", 0, 5),)
    assert NAMES.inward(AckWake("s", 1, "w", (("p", 3),))).acks == (("acme~p", 3),)
    assert NAMES.inward(CreateAccessToken("id", "name", ("observe",), b"")).tenant == "acme"
    assert NAMES.inward(c.Stage("w", "h", b"", 1, 1, path="p")) == c.Stage("acme~w", "acme~h", b"", 1, 1, path="acme~p")


def test_the_id_of_another_tenant_is_refused_wherever_it_is():
    for command in (
        c.Produce("t", b"", 1, 1, once=c.ProduceKey("other", "t", "k")),
        c.Produce("t", b"", 1, 1, marks=(RecordSchedule(0, tenant="other"),)),
        c.FailEffect(c.EffectKey("other", "t", "g", "k"), 1),
        CreateAccessToken("id", "name", ("observe",), b"", "other"),
    ):
        with pytest.raises(AccessRefused):
            NAMES.inward(command)


def test_replies_and_refusals_have_own_names():
    assert NAMES.outward(Produced("acme~orders", 0, 1, 1)).topic == "orders"
    listed = StreamsListed((StreamEntry("acme~runs/1", "", 0, False, 0),), False)
    assert NAMES.outward(listed).streams[0].path == "runs/1"
    refused = Rejected(Code.NOT_FOUND, "no topic acme~orders", {"topic": "acme~orders", "commands": ["x acme~orders"]})
    assert NAMES.outward(refused) == Rejected(
        Code.NOT_FOUND, "no topic orders", {"topic": "orders", "commands": ["x orders"]}
    )


@pytest.mark.parametrize(
    ("name", "tenant", "own"),
    [
        ("acme~orders", "acme", "orders"),
        ("dlq.acme~orders", "acme", "dlq.orders"),
        ("orders", "", "orders"),
        ("~orders", "", "~orders"),
        ("Acme~orders", "", "Acme~orders"),
        ("a/b~c", "", "a/b~c"),
        ("acme~a~b", "acme", "a~b"),
    ],
)
def test_a_name_has_a_tenant_or_none(name: str, tenant: str, own: str):
    assert (tenant_of(name), own_name(name)) == (tenant, own)
    assert Namespace(tenant).topic(own) == name
    assert beside(name, own) == name

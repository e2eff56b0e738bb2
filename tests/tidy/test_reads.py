"""Answers come from durable state: no handler looks past the read path.

`Engine.queries` is the read path: what it answers with is durable when it leaves. `Engine.latest_state` may be ahead of
the disk; it serves to prepare a command, whose reply waits. Each function that uses it is listed here with its reason,
so that a new one is a decision. Nothing else in the server reaches the broker.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import SRC, Module, modules

# What comes of it is submitted as a command in the same turn, or held by `Context.hold`.
PREPARES = {
    "access/authenticator.py:Authenticator._note_uses",
    "handlers/context.py:Context.any_partition",
    "handlers/stages.py:StagesHandlers._check_targets",
    "handlers/produce_batch.py:ProduceBatchHandlers._partition",
    "handlers/dead_letters.py:DeadLettersHandlers.redrive",
    "redrive_run.py:RedriveRun._frame_letters",
    "redrive_run.py:RedriveRun._target",
    "handlers/effects.py:OutcomeHandlers._append",
    "handlers/jobs.py:JobsHandlers.cancel",
    "handlers/job_batches.py:JobBatchHandlers._usable",
    "handlers/schedules.py:SchedulesHandlers.create",
    "handlers/schedules.py:SchedulesHandlers._require",
    "handlers/claims.py:ClaimsHandlers._in_flight_max",
    "handlers/claims.py:ClaimsHandlers._lease_ms",
    "handlers/stages.py:StagesHandlers._check_json",
    "handlers/records.py:StreamRecordsHandlers.fetch",
    "handlers/streams.py:StreamHandlers._append",
    "handlers/streams.py:StreamHandlers._partition",
    "handlers/streams.py:StreamHandlers._read",
    "handlers/subscriptions.py:SubscriptionHandlers._ack",
    "handlers/topics.py:TopicsHandlers.change",
    "topic_end.py:end_most_members",
    "handlers/groups.py:GroupsHandlers.seek",
    "router/caller.py:RouterCaller._as_first",
    "router/caller.py:RouterCaller._problem",
    "router/caller.py:RouterCaller.known",
    "streams/reorder_buffer.py:ReorderBuffer._is_early",
}
OTHERS = {
    "access/authenticator.py:Authenticator._of_token": "a revocation counts as soon as it is decided",
    "access/trail.py:AuditTrail.refused": "whose token was refused, for the audit",
    "access/authenticator.py:Authenticator._parent": "a revocation counts as soon as it is decided",
    "handlers/stages.py:StagesHandlers._published": "the name of a log, which never changes",
    "handlers/records.py:StreamRecordsHandlers._read": "ranges that a repair gave up, before the start",
    "streams/stream_body.py:_end_of_withdrawn": "ranges that a repair gave up, before the start",
    "streams/signing_key.py:SigningKey.__init__": "the start, when everything is durable",
    "streams/signing_key.py:SigningKey._on_key": "the key that a durable reply is about",
    "handlers/context.py:Context.__init__": "quotas, which limit what is sent; nothing is shown",
    "tenants/apps.py:TenantApps.row": "counts for the metrics of a tenant, inside of a query",
    "tenants/engine.py:TenantEngine.__init__": "the same state under other names; who uses it is listed here",
    "tenants/quotas.py:TenantMeter.__init__": "quotas, which limit what is sent; nothing is shown",
    "tenants/usage.py:TenantUsage._measure_all": "which tenants to measure",
    "handlers/subscriptions.py:SubscriptionHandlers._info": "the number of a subscription in a durable reply",
    "consume_stream.py:ConsumeStream._take": "counts what of a durable claim is still held; nothing is shown",
    "metrics/registry.py:Metrics.__init__": "names for counters of durable facts",
    "access/authentication.py:authenticator_of": "the start, when everything is durable",
    "run.py:_greeting": "the start, when everything is durable",
    "streams/webhooks.py:Webhooks.__init__": "the start, when everything is durable",
    "streams/webhooks.py:Webhooks._serve": "what is sent goes through a query",
    "streams/webhooks.py:Webhooks._start": "whether to start a task",
}
PRIVATE = {"broker", "_broker", "_store", "_opened"}


def uses(module: Module, names: set[str]) -> Iterator[str]:
    """The functions of a module that take an attribute of one of these names."""
    folder = SRC / "server"
    path = module.path.relative_to(folder) if module.path.is_relative_to(folder) else module.path

    def walk(node: ast.AST, scope: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = (*scope, child.name) if len(scope) < 2 else scope
            if isinstance(child, ast.Attribute) and child.attr in names:
                yield f"{path}:{'.'.join(scope)}"
            yield from walk(child, inner)

    return walk(module.tree, ())


def test_only_listed_functions_use_state_that_may_be_ahead_of_the_disk():
    used = {use for module in modules(SRC / "server") for use in uses(module, {"latest_state"})}
    assert used == PREPARES | set(OTHERS)


def test_the_server_reaches_the_broker_through_the_engine_alone():
    assert not [use for module in modules(SRC / "server") for use in uses(module, PRIVATE)]


def test_a_handler_that_answers_from_the_latest_state_is_noticed():
    text = textwrap.dedent(
        """
        class TopicsFace:
            def describe(self, request):
                def look():
                    return self._engine.latest_state.topics
                return look()
        """
    )
    planted = Module(Path("planted.py"), text, ast.parse(text))
    assert list(uses(planted, {"latest_state"})) == ["planted.py:TopicsFace.describe"]

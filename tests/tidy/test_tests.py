"""The tests themselves: names that are sentences, no waiting by sleeping, no mocks where the real thing can run."""

from __future__ import annotations

import ast

from tests.tidy.sources import TESTS, functions, modules

SLEEPS = {("time", "sleep"), ("asyncio", "sleep")}


def test_every_test_has_a_name_that_is_a_sentence():
    short = [
        f"{module.at(node)} {node.name}"
        for module in modules(TESTS)
        for node in functions(module)
        if node.name.startswith("test_") and len(node.name.split("_")) < 4
    ]
    assert not short, short


def test_no_test_waits_by_sleeping():
    # Only tests/support may sleep: between two looks at a condition that has a deadline.
    sleeping = [
        module.at(node)
        for module in modules(TESTS)
        if not module.path.is_relative_to(TESTS / "support")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and is_sleep(node)
    ]
    assert not sleeping, sleeping


def is_sleep(call: ast.Call) -> bool:
    func = call.func
    if not (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)):
        return False
    is_yield = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
    return (func.value.id, func.attr) in SLEEPS and not is_yield


def test_a_planted_sleep_is_found():
    calls = [node for node in ast.walk(ast.parse("time.sleep(1); asyncio.sleep(0)")) if isinstance(node, ast.Call)]
    assert [is_sleep(call) for call in calls] == [True, False]


def test_no_test_imports_mocks():
    mocking = [
        module.at(node)
        for module in modules(TESTS)
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unittest"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("unittest") for alias in node.names))
    ]
    assert not mocking, mocking

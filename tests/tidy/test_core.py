"""The core gives the same answer to the same commands, on every machine and in every run.

The linter forbids the modules; this file forbids the built-in ways to be different from run to run: identities, hashes
of strings, and the order of a set. The last is a heuristic over names that are written down as sets.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.sources import SRC, Module, modules

BANNED_CALLS = {"hash", "id", "open", "print", "input", "eval", "exec", "__import__"}
ORDER_MATTERS_NOT = {"sorted", "min", "max", "sum", "any", "all", "len", "set", "frozenset"}
ORDER_MATTERS = {"list", "tuple", "iter", "next", "enumerate", "zip", "dict"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}


def name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def is_set_type(annotation: ast.AST | None) -> bool:
    if isinstance(annotation, ast.BinOp):
        return is_set_type(annotation.left) or is_set_type(annotation.right)
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return base is not None and name_of(base) in {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}


def declared_sets(tree: ast.AST) -> set[str]:
    """Names and attributes that are annotated as sets, or assigned from a set expression, anywhere in the module."""
    names: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            names.add(name_of(node.target))
        elif isinstance(node, ast.arg) and is_set_type(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, set()):
            names |= {name_of(target) for target in node.targets}
    return {name for name in names if name is not None}


def is_set(node: ast.AST, declared: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        called = name_of(node.func)
        return called in {"set", "frozenset"} or (isinstance(node.func, ast.Attribute) and called in SET_METHODS)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return is_set(node.left, declared) or is_set(node.right, declared)
    return name_of(node) in declared


def findings(module: Module) -> Iterator[str]:
    declared = declared_sets(module.tree)
    # A comprehension that ends in sorted(), a sum or another set may take its input in any order.
    forgiven = {
        id(argument)
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and name_of(call.func) in ORDER_MATTERS_NOT
        for argument in call.args
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield f"{module.at(node)} calls {node.func.id}()"
        if isinstance(node, ast.For) and is_set(node.iter, declared):
            yield f"{module.at(node)} loops over a set"
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and id(node) not in forgiven:
            if any(is_set(generator.iter, declared) for generator in node.generators):
                yield f"{module.at(node)} builds something ordered from a set"
        if isinstance(node, ast.Call) and name_of(node.func) in ORDER_MATTERS and id(node) not in forgiven:
            if any(is_set(argument, declared) for argument in node.args):
                yield f"{module.at(node)} takes a set in its order"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
            if not node.args and is_set(node.func.value, declared):
                yield f"{module.at(node)} pops whatever a set gives"


def test_the_core_depends_on_no_identity_hash_or_set_order():
    problems = [finding for module in modules(SRC / "core") for finding in findings(module)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "code",
    [
        "hash('a')",
        "id(object())",
        "for x in {1, 2}: ...",
        "names: set[str] = set()\nfor name in names: ...",
        "class A:\n    def __init__(self): self.held: set[int] = set()\n    def f(self): return [x for x in self.held]",
        "def f(a: frozenset[int] | None): return list(a)",
        "def f(a: set[int], b: set[int]):\n    for x in a - b: ...",
        "def f(a: set[int]): return a.pop()",
        "seen = set()\nfirst = next(iter(seen))",
    ],
)
def test_a_planted_dependence_is_found(code):
    assert list(findings(planted(code)))


@pytest.mark.parametrize(
    "code",
    [
        "def f(a: set[int]): return sorted(a)",
        "def f(a: set[int]): return 3 in a and len(a) > 1",
        "def f(a: set[int]):\n    for x in sorted(a): ...",
        "def f(a: set[int]): return sum(x for x in a)",
        "def f(a: set[int]): return {x + 1 for x in a}",
        "def f(a: dict[int, int]):\n    for x in a: ...",
        "def f(a: list[int]): return a.pop()",
    ],
)
def test_a_harmless_use_is_let_through(code):
    assert not list(findings(planted(code)))


def planted(code: str) -> Module:
    text = textwrap.dedent(code)
    return Module(SRC / "core" / "planted.py", text, ast.parse(text, filename=str(Path("planted.py"))))

"""The tree: module names are nouns, a class name means one thing, imports are shallow, and there are no cycles."""

from __future__ import annotations

import ast
import collections
import functools
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, SRC, Module, modules

DEPTH_MAX = 12
SMALL_LINES = 60
SMALL_MAX = 40

GERUNDS_ALLOWED = {
    "routing": "the old path of driftq.server.router, for programs that import from it",
    "testing": "the public name of the package that people import in their own tests",
}

# A name that two public classes share, and why each of them is right.
SHARED_NAMES = {
    "StreamClosed": "the fact that a stream was closed, and the client's error for a call that needs it open",
}


def name_of(module: Module) -> str:
    parts = list(module.path.relative_to(ROOT / "src").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def by_name() -> dict[str, Module]:
    return {name_of(module): module for module in modules(SRC)}


def imported(tree: ast.AST, *, inside_functions: bool) -> Iterator[str]:
    """The modules of ours that a tree imports when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not inside_functions:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in by_name() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from imported(node, inside_functions=inside_functions)


def graph(*, inside_functions: bool) -> dict[str, list[str]]:
    return {
        name: sorted(
            other
            for other in set(imported(module.tree, inside_functions=inside_functions))
            if other in by_name() and other != name
        )
        for name, module in by_name().items()
    }


def cycles(edges: dict[str, list[str]]) -> list[list[str]]:
    """The first cycle found from each module, by depth-first search."""
    cycles_seen: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycles_seen.append([*path[path.index(name) :], name])
            return
        if name in done:
            return
        for other in edges[name]:
            visit(other, [*path, name])
        done.add(name)

    for name in edges:
        visit(name, [])
    return cycles_seen


def deepest(edges: dict[str, list[str]]) -> list[str]:
    """The longest chain of imports. The graph has no cycles."""

    @functools.cache
    def chain(name: str) -> tuple[str, ...]:
        return (name, *max((chain(other) for other in edges[name]), key=len, default=()))

    return list(max((chain(name) for name in edges), key=len))


def test_module_names_are_nouns():
    gerunds = [
        name for name in by_name() if (last := name.rpartition(".")[2]).endswith("ing") and last not in GERUNDS_ALLOWED
    ]
    assert not gerunds, f"a module is a thing; name it with the word of the field: {gerunds}"


def test_a_public_class_name_means_one_thing():
    places: dict[str, list[str]] = collections.defaultdict(list)
    for name, module in by_name().items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert not shared.keys() - SHARED_NAMES.keys(), {name: shared[name] for name in shared.keys() - SHARED_NAMES.keys()}
    assert not SHARED_NAMES.keys() - shared.keys(), "these reasons are not needed any more"


def test_there_is_no_cycle_not_even_one_hidden_in_a_function():
    assert not cycles(graph(inside_functions=True))


def test_the_longest_chain_of_imports_is_short():
    chain = deepest(graph(inside_functions=False))
    assert len(chain) <= DEPTH_MAX, f"{len(chain)}: {' > '.join(chain)}"


def test_rules_do_not_import_rules():
    rules = "driftq.core.rules."
    wrong = [
        f"{name} > {other}"
        for name, others in graph(inside_functions=True).items()
        for other in others
        if name.startswith(rules) and other.startswith(rules)
    ]
    assert not wrong, f"what two rules share is a transition (core.transitions): {wrong}"


def lazy_names(tree: ast.AST) -> list[str]:
    """Names that a module takes from `driftq` itself. It imports them when they are used, so the graph misses them."""
    names = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "driftq"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "driftq":
            names += [alias.name for alias in node.names if f"driftq.{alias.name}" not in by_name()]
    return [name for name in names if name != "__version__"]


def test_no_import_is_hidden_by_a_lazy_name():
    hidden = {name: lazy for name, module in by_name().items() if (lazy := lazy_names(module.tree))}
    assert not hidden, f"import the module that defines it: {hidden}"


def test_a_lazy_name_is_seen():
    assert lazy_names(ast.parse("import driftq\ndriftq.connect(driftq.__version__)")) == ["connect"]
    assert lazy_names(ast.parse("from driftq import Message, client, __version__")) == ["Message"]


def test_few_modules_are_small():
    small = [
        name
        for name, module in by_name().items()
        if module.path.name != "__init__.py" and len(module.text.splitlines()) < SMALL_LINES
    ]
    assert len(small) <= SMALL_MAX, f"merge what shares a noun: {small}"


@pytest.mark.parametrize(
    ("edges", "expected"),
    [({"a": ["b"], "b": ["c"], "c": []}, []), ({"a": ["b"], "b": ["a"]}, [["a", "b", "a"]])],
)
def test_a_cycle_is_seen(edges, expected):
    assert cycles(edges) == expected


def test_the_longest_chain_is_seen():
    assert deepest({"a": ["b", "c"], "b": ["c"], "c": [], "d": ["c"]}) == ["a", "b", "c"]

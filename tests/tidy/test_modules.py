"""Modules: sizes, docstrings and names."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.sources import ROOT, SRC, TESTS, Module, files, functions, modules

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
TEST_LINES_MAX = 600
# Names of variables that fit everything and so describe nothing.
VAGUE_NAMES = {"found", "each", "told", "made", "most", "said"}
# A setting that users write: `transform.each`.
SETTING = ("src/driftq/spark/pipelines/settings.py", "each")
BANNED_WORDS = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}


def words_of(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_a_name_falls_apart_into_its_words():
    assert words_of("LeaseManager") == {"lease", "manager"}
    assert words_of("http_utils") == {"http", "utils"}
    assert words_of("HTTPHelper") == {"http", "helper"}
    assert not words_of("commonly") & BANNED_WORDS


def test_no_module_has_more_than_400_lines():
    long = [
        f"{module.at(module.tree)}: {count}"
        for module in modules(SRC)
        if (count := lines_of(module.text)) > MODULE_LINES_MAX
    ]
    assert not long, f"more than {MODULE_LINES_MAX} lines is two jobs: {long}"


def lines_of(text: str) -> int:
    return len(text.splitlines())


def test_no_function_has_more_than_60_lines():
    long = [
        f"{module.at(node)} {node.name}: {count}"
        for module in modules(SRC)
        for node in functions(module)
        if (count := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long, long


def test_every_module_opens_with_a_docstring():
    silent = [module.at(module.tree) for module in modules(SRC) if not ast.get_docstring(module.tree)]
    assert not silent, f"say what the module owns and what it does not know: {silent}"


def test_no_file_has_a_name_that_says_nothing():
    ours = [path for path in files() if path.suffix == ".py" or path.is_relative_to(ROOT / "docs")]
    bad = [
        str(path.relative_to(ROOT))
        for path in ours
        if any(words_of(part.split(".")[0]) & BANNED_WORDS for part in path.relative_to(ROOT).parts)
    ]
    assert not bad, bad


def test_no_class_or_function_has_a_name_that_says_nothing():
    definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bad = [
        f"{module.at(node)} {node.name}"
        for module in [*modules(SRC), *modules(TESTS / "support")]
        for node in ast.walk(module.tree)
        if isinstance(node, definition) and words_of(node.name) & BANNED_WORDS
    ]
    assert not bad, bad


def vague_names(module: Module) -> list[str]:
    """The variables, parameters and attributes that a module names without saying what they hold."""
    names = []
    for node in ast.walk(module.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                is_setting = (str(module.path.relative_to(ROOT)), name) == SETTING
                if name in VAGUE_NAMES and not is_setting:
                    names.append(f"{module.at(node)} {name}")
    return names


def test_variables_say_what_they_hold():
    folders = (SRC, TESTS, ROOT / "bench", ROOT / "examples")
    vague = [name for folder in folders for module in modules(folder) for name in vague_names(module)]
    assert not vague, "name what it holds:\n" + "\n".join(vague)


@pytest.mark.parametrize(
    "source",
    [
        "found = read()",
        "[each for each in messages]",
        "def claim(most): ...",
        "self.told = 1",
        "with opened() as made: ...",
    ],
)
def test_a_vague_name_is_noticed(source):
    assert vague_names(Module(SRC / "planted.py", source, ast.parse(source)))


def test_no_test_module_has_more_than_600_lines():
    long = [
        f"{module.at(module.tree)}: {count}"
        for module in modules(TESTS)
        if (count := len(module.text.splitlines())) > TEST_LINES_MAX
    ]
    assert not long, f"split it by subject: {long}"

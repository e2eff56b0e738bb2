"""Every error text of the command line and of a server's start, read from the sources: a table of the documents.

A text is the message of a call that ends a command: `fail(Exit.USAGE, f"…")`, `raise click.UsageError(…)`,
`raise SettingsError(…)` and so on. What is put in at run time is shown as `…`. Texts that consist of nothing else come
from somewhere below, where they are found by themselves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import ModuleType

from driftq.cli.exit_codes import Exit
from tests.tidy.sources import SRC, modules

MARK = "…"
FOLDERS = ("cli", "settings", "storage", "server", "client/transport", "client/worker", "repair", "engine")
# Exceptions whose message a user reads, and how a command ends because of them.
ENDS = {
    "UsageError": Exit.USAGE,
    "BadParameter": Exit.USAGE,
    "BadContexts": Exit.USAGE,
    "SettingsError": Exit.USAGE,
    "TlsUnusable": Exit.USAGE,
    "InvalidCall": Exit.USAGE,
    "NoDataFolder": Exit.NOTHING_THERE,
    "MissingExtra": Exit.NOTHING_THERE,
    "NotConnected": Exit.UNREACHABLE,
    "OutcomeUnknown": Exit.UNREACHABLE,
    "BadFormatFile": Exit.DAMAGED,
    "BackupFailed": Exit.IN_USE,
}
# Exceptions that make their message themselves, from what they are given.
MAKE_THEIR_OWN = {
    "CannotListen": Exit.UNREACHABLE,
    "ForeignFolder": Exit.CANNOT_CREATE,
    "FolderUnusable": Exit.CANNOT_CREATE,
    "FolderInUse": Exit.IN_USE,
    "FormatTooNew": Exit.TOO_NEW,
    "FilesMoved": Exit.FILES_MOVED,
    "CorruptJournal": Exit.DAMAGED,
    "UnknownFact": Exit.TOO_NEW,
}


def text_of(node: ast.expr) -> str:
    """A message as it is written, with `…` for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case _:
            return MARK


def cleaned(text: str) -> str:
    flat = " ".join(text.split())
    return re.sub(rf"{MARK}(\s*{MARK})+", MARK, flat)


def texts(tree: ast.AST) -> Iterator[ast.expr]:
    """Every text of a module that is not a part of a longer one."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)} - {
        id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr | ast.BinOp) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            if id(node) not in inner:
                yield node


def messages(tree: ast.AST) -> Iterator[tuple[str, Exit]]:
    """The texts of one module, with the exit code of each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in MAKE_THEIR_OWN:
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__" and call.args:
                    yield cleaned(text_of(call.args[0])), MAKE_THEIR_OWN[node.name]
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in ENDS:
            yield cleaned(text_of(node.args[0])), ENDS[name]
        elif (
            name == "fail" and len(node.args) > 1 and (code := re.fullmatch(r"Exit\.(\w+)", ast.unparse(node.args[0])))
        ):
            yield cleaned(text_of(node.args[1])), Exit[code[1]]


def rows(_: ModuleType) -> list[tuple[str, str]]:
    """The rows of the table: text and exit code, in alphabetical order."""
    places = [SRC / folder for folder in FOLDERS]
    found_texts = {
        (text, code)
        for module in modules(SRC)
        if any(module.path.is_relative_to(place) for place in places) or module.path.parent == SRC
        for text, code in messages(module.tree)
        if re.search(r"\w{3}", text.replace(MARK, ""))
    }
    ordered = sorted(found_texts, key=lambda row: (re.sub(r"\W", "", row[0]).lower(), row))
    return [(text.replace("`", "'").replace("<", "‹").replace(">", "›"), str(int(code))) for text, code in ordered]

"""Nothing in the project names the machine it was written on or the place its packages came from. The client imports
nothing that only Unix has or only the broker needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.tidy.sources import ROOT, SRC, modules, texts

# The names are put together here so that this file does not contain them.
REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry" + ".npmjs",
    "npmjs" + ".org",
    "deb" + ".debian.org",
]
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|Users|root|work|opt)/[\w.-]+")
FILE_ADDRESS = re.compile(r"\bfile" + r"://")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def findings(text: str) -> list[str]:
    matches = [match.group() for match in MACHINE_PATH.finditer(text)]
    matches += [match.group() for match in FILE_ADDRESS.finditer(text)]
    return matches + [name for name in REGISTRIES if name in text]


def test_no_file_names_a_machine_or_a_registry():
    problems = [f"{path.relative_to(ROOT)}: {finding}" for path, text in texts() for finding in findings(text)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    "text", ["cd /ho" + "me/ann/driftq", "'/ro" + "ot/x'", "https://py" + "pi.org/simple", "file:" + "///srv/x"]
)
def test_a_planted_place_is_found(text):
    assert findings(text)


@pytest.mark.parametrize("text", ["GET /v1/work/items", "https://example.org/home/ann", "./data", "/var/lib/driftq"])
def test_an_ordinary_path_is_let_through(text):
    assert not findings(text)


@pytest.mark.parametrize("name", ["client.txt", "runtime.txt", "spark.txt", "dev.txt", "peers.txt"])
def test_the_lock_is_exact_hashed_and_without_addresses(name):
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(entries) >= 4
    assert all(re.match(r"[a-z0-9-]+==\S+( ; .+?)? \\$", line) for line in entries), entries
    assert all(HASH.search(block) for block in re.split(r"\n(?=\S)", text.strip()))
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    assert " @ " not in text


def test_the_test_environment_runs_what_a_user_runs():
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(encoding="utf-8"), re.MULTILINE))

    assert pins("client.txt") <= pins("runtime.txt") <= pins("spark.txt") <= pins("dev.txt")


# --- the client elsewhere ---

CLIENT = ("client", "wire", "settings")
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"}
# Used where it is installed; the client works without.
OPTIONAL = {
    ("client/event_loop.py", "uvloop"),
    ("settings/trace_export.py", "opentelemetry"),
    ("telemetry.py", "opentelemetry"),
}
DISTRIBUTIONS = {"google_crc32c": "google-crc32c"}  # a module whose package has another name


def imported_packages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def foreign_imports(tree: ast.AST, allowed: set[str]) -> set[str]:
    """What a module of the client imports and a client elsewhere does not have."""
    return {
        name
        for name in imported_packages(tree)
        if name in UNIX_ONLY or (name not in sys.stdlib_module_names and DISTRIBUTIONS.get(name, name) not in allowed)
    }


def base_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[^\w-]", line)[0] for line in project["dependencies"]} | {"driftq"}


def test_the_client_imports_what_every_system_has_and_its_own_few_packages():
    client = [SRC / name for name in CLIENT]
    problems = [
        f"{path}: {name}"
        for module in modules(SRC)
        if any(module.path.is_relative_to(folder) for folder in client) or module.path.parent == SRC
        for path in (str(module.path.relative_to(SRC)),)
        for name in foreign_imports(module.tree, base_dependencies())
        if (path, name) not in OPTIONAL
    ]
    assert not problems


def test_a_planted_foreign_import_is_found():
    tree = ast.parse("import os, fcntl\ndef late():\n    from httptools import x\n    import msgspec")
    assert foreign_imports(tree, base_dependencies()) == {"fcntl", "httptools"}

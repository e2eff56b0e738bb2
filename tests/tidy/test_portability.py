"""Nothing in the project names the machine it was written on or the place its packages came from."""

from __future__ import annotations

import re

import pytest

from tests.tidy.sources import ROOT, texts

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


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt", "peers.txt"])
def test_the_lock_is_exact_hashed_and_without_addresses(name):
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(entries) >= 5
    assert all(re.match(r"[a-z0-9-]+==\S+( ; .+?)? \\$", line) for line in entries), entries
    assert all(HASH.search(block) for block in re.split(r"\n(?=\S)", text.strip()))
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text
    assert " @ " not in text


def test_the_test_environment_runs_what_a_user_runs():
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^\S+==\S+", (ROOT / "requirements" / name).read_text(encoding="utf-8"), re.MULTILINE))

    assert pins("runtime.txt") <= pins("dev.txt")

"""The documents: links that lead somewhere, words that are explained, decisions that have a cost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, files

DOCUMENTS = [path for path in files() if path.suffix == ".md"]
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)

WORDS = [
    "log",
    "record",
    "offset",
    "token",
    "message",
    "batch",
    "command",
    "fact",
    "reply",
    "frame",
    "block",
    "lsn",
    "position",
    "group",
    "cursor",
    "pending",
    "claim",
    "lease",
    "settle",
    "producer",
    "epoch",
    "seq",
    "segment",
    "snapshot",
    "lane",
    "checkpoint",
]


def anchors(text: str) -> set[str]:
    """The anchors that headings get when the document is shown."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")
        count = 1
        unique = slug
        while unique in names:
            unique, count = f"{slug}-{count}", count + 1
        names.add(unique)
    return names


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links of a document that lead to no file, or to no heading of it."""
    broken = []
    for target in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = path if not name else (path.parent / name).resolve()
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8"))
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path):
    assert not broken_links(path, path.read_text(encoding="utf-8"))


def test_a_planted_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    other = tmp_path / "other.md"
    other.write_text("# A heading, with `code`\n")
    text = "[a](other.md#a-heading-with-code) [b](missing.md) [c](other.md#nowhere) [d](scheme:x) `[e](code.md)`"
    assert broken_links(page, text) == ["missing.md", "other.md#nowhere"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_small_stands_alone_and_is_used(path):
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert len(text) < 8_000
    assert "://" not in text, "no font, image or script from elsewhere"
    assert "<title>" in text
    assert "prefers-color-scheme: dark" in text
    assert any(path.name in document.read_text(encoding="utf-8") for document in DOCUMENTS)


def linked_pages(path: Path) -> set[Path]:
    targets = LINK.findall(CODE.sub("", FENCE.sub("", path.read_text(encoding="utf-8"))))
    pages = (
        path.parent / target.partition("#")[0] for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)
    )
    return {page.resolve() for page in pages if page.suffix == ".md" and page.exists()}


def reachable(start: Path) -> set[Path]:
    """Every page that links lead to, from a page on."""
    reached, left = {start}, [start]
    while left:
        for page in linked_pages(left.pop()) - reached:
            reached.add(page)
            left.append(page)
    return reached


def test_every_page_is_reachable_from_the_index_and_guides_and_references_directly():
    index = ROOT / "docs" / "README.md"
    pages = {path for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")}
    assert not pages - reachable(index)
    direct = {path for path in pages if path.parent.name in ("guides", "reference")}
    assert not direct - linked_pages(index), "add them to docs/README.md"
    assert index in linked_pages(ROOT / "README.md")


def test_a_page_that_no_link_leads_to_is_found(tmp_path):
    for name, text in {
        "a": "[b](b.md#x) `[d](d.md)`",
        "b": "[a](a.md) [c](https://x.example/c.md)",
        "c": "",
        "d": "",
    }.items():
        (tmp_path / f"{name}.md").write_text(text)
    assert {path.stem for path in reachable(tmp_path / "a.md")} == {"a", "b"}


def test_every_page_on_internals_is_in_their_index():
    folder = ROOT / "docs" / "internals"
    index = (folder / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in folder.glob("*.md") if path.name != "README.md" and f"({path.name})" not in index]
    assert not missing


def test_the_changelog_has_a_place_for_what_is_not_released():
    assert re.search(r"^## \[?Unreleased\]?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_word_of_ours_is_in_the_glossary():
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    missing = [word for word in WORDS if not re.search(rf"^\| \*\*{word}\*\*", glossary, re.MULTILINE)]
    assert not missing, missing


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def test_decisions_are_numbered_without_a_gap_and_name_their_cost():
    paths = decisions()
    assert [int(path.name[:4]) for path in paths] == list(range(1, len(paths) + 1))
    for path in paths:
        headings = HEADING.findall(path.read_text(encoding="utf-8"))
        assert headings[1:4] == ["Context", "Choice", "Cost"], path.name


def test_every_decision_is_in_the_index_with_its_status():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    status = dict(re.findall(r"^\| \[[^]]+\]\(([^)]+)\) \| (.+) \|$", index, re.MULTILINE))
    assert sorted(status) == [path.name for path in decisions()]
    replaced = {}
    for path in decisions():
        for name in re.findall(
            r"^Replaces \[decision \d+\]\(([^)]+)\)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            replaced[name] = path.name
    for name, text in status.items():
        expected = rf"replaced by \[decision \d+\]\({replaced[name]}\)" if name in replaced else "accepted"
        assert re.match(expected, text), f"{name}: {text}"


def test_every_make_target_says_what_it_does():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = set(phony.group(1).split())
    helped = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert targets == helped


def test_the_readme_names_the_commands_it_promises():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    agents = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for command in ("make setup", "make run", "make quick", "make test"):
        assert command in readme
    assert "make quick" in agents

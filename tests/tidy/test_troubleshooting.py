"""Troubleshooting has every error that a user meets, by a text that the sources really print; upgrade has the versions
that the code has."""

from __future__ import annotations

import inspect
import re

import pytest

from driftq.cli.exit_codes import Exit
from driftq.client import errors
from driftq.storage import data_folder, journal_files, snapshots
from driftq.wire.errors import CODES, HTTP_ERRORS
from tests.tidy import error_texts
from tests.tidy.sources import ROOT, SRC, modules

GUIDES = ROOT / "docs" / "guides"
PAGE = (GUIDES / "troubleshooting.md").read_text(encoding="utf-8")
BY_HAND = PAGE.partition("## Every text")[0]
STATUSES = {(spec.error, spec.status) for spec in CODES.values()} | {(word, n) for n, word in HTTP_ERRORS.items()}


def section(title: str) -> str:
    return BY_HAND.partition(f"\n{title}\n")[2].partition("\n#")[0]


@pytest.mark.parametrize(("word", "status"), sorted(STATUSES))
def test_every_code_has_a_section_with_its_status(word: str, status: int) -> None:
    text = section(f"### `{word}`")
    assert text.strip(), f"{word} has no section"
    if status not in (417, 505):  # as INVALID_ARGUMENT, for requests that no client of ours makes
        assert str(status) in text.split(".")[0], f"{word}: {status}"


def test_no_section_describes_a_code_that_does_not_exist() -> None:
    assert set(re.findall(r"^### `([A-Z_]+)`$", BY_HAND, re.MULTILINE)) == {word for word, _ in STATUSES}


def test_every_exception_of_the_client_is_on_the_page() -> None:
    names = [
        name for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, errors.DriftQError)
    ]
    missing = [name for name in names if f"`{name}`" not in BY_HAND]
    assert not missing


def printed() -> str:
    """Every text of the sources, with the parts of a literal joined."""
    return "\n".join(
        error_texts.cleaned(error_texts.text_of(node))
        for module in modules(SRC)
        for node in error_texts.texts(module.tree)
    )


def quoted() -> list[str]:
    """The texts in the first or second column of the tables about what is printed."""
    titles = ("## The broker does not start", "## The broker cannot be reached", "## Spark")
    rows = [row.split(" | ") for title in titles for row in section(title).splitlines() if row.startswith("| ")]
    cells = [row[1] if row[0].strip("| ").isdigit() else row[0] for row in rows]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]


def test_every_quoted_text_is_printed_by_the_sources() -> None:
    texts = printed()
    parts = [part.strip() for text in quoted() for part in text.split(error_texts.MARK) if part.strip()]
    assert len(parts) > 20
    missing = [part for part in parts if part not in texts]
    assert not missing


def test_the_exit_codes_on_the_page_are_those_of_the_program() -> None:
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", BY_HAND, re.MULTILINE)}
    assert codes <= {int(code) for code in Exit}
    assert {Exit.USAGE, Exit.UNREACHABLE, Exit.FILES_MOVED, Exit.DAMAGED, Exit.TOO_NEW} <= codes


def test_the_formats_on_the_page_about_upgrades_are_those_of_the_code() -> None:
    page = (GUIDES / "upgrade.md").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^\| ([a-z ]+?)(?: \(`FORMAT`\))? \| (\d+) \|", page, re.MULTILINE))
    assert versions["data folder"] == str(data_folder.FORMAT_VERSION)
    assert versions["journal segments"] == str(journal_files.FORMAT_VERSION)
    assert versions["snapshots"] == str(snapshots.FORMAT_VERSION)


def test_a_text_is_read_with_a_mark_for_what_is_put_in() -> None:
    tree = error_texts.ast.parse('fail(Exit.DAMAGED, f"the file {path} " "is " + reason)\nraise SettingsError("no")')
    assert list(error_texts.messages(tree)) == [("the file … is …", Exit.DAMAGED), ("no", Exit.USAGE)]

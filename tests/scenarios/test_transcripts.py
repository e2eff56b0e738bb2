"""Every transcript matches the broker: in one run, and with a restart before each command.

`--rewrite` writes the replies again. Read the diff before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.language import BUILDERS
from tests.scenarios.transcript import TranscriptPlayer
from tests.support.broker_fixture import BrokerFixture

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*/*.txt"))


def played(text: str, **more: object) -> str:
    return "\n".join(TranscriptPlayer(**more).play(text)) + "\n"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_broker_replies_as_the_transcript_says(path, rewrite):
    text = path.read_text(encoding="utf-8")
    answer = played(text)
    if rewrite:
        path.write_text(answer, encoding="utf-8")
    assert answer == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_restart_before_every_command_changes_no_answer(path):
    def restart(fixture: BrokerFixture) -> None:
        fixture.broker = fixture.restarted()

    text = path.read_text(encoding="utf-8")
    assert played(text, between=restart) == text


def test_a_changed_reply_is_noticed():
    text = "> topic t\n  TopicReady topic='t' partitions=2 created=yes\n"
    assert played(text) != text


def test_every_command_is_used_in_some_transcript():
    verbs = {line[2:].split(" ", 1)[0] for path in FILES for line in path.read_text().splitlines() if line[:2] == "> "}
    assert set(BUILDERS) <= verbs, set(BUILDERS) - verbs

"""Which server is meant, and the file that remembers servers."""

from __future__ import annotations

import pytest

from driftq.cli import context_file
from driftq.cli.context_file import BadContexts, ContextFile, ServerContext


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("DRIFTQ_URL", "DRIFTQ_CONTEXT", "DRIFTQ_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def test_the_command_line_wins_over_the_environment_and_the_file(monkeypatch):
    assert context_file.resolve(None, None).url == context_file.DEFAULT_URL
    known = {
        "used": ServerContext("http://used"),
        "env": ServerContext("http://env"),
        "said": ServerContext("http://said"),
    }
    context_file.save(ContextFile("used", known))
    assert context_file.resolve(None, None).url == "http://used"
    monkeypatch.setenv("DRIFTQ_CONTEXT", "env")
    assert context_file.resolve(None, None).url == "http://env"
    monkeypatch.setenv("DRIFTQ_URL", "http://url")
    assert context_file.resolve(None, None).url == "http://url"
    assert context_file.resolve(None, "said").url == "http://said"
    assert context_file.resolve("http://here", None).url == "http://here"
    with pytest.raises(BadContexts, match="not both"):
        context_file.resolve("http://here", "said")


def test_a_token_goes_to_its_own_server_only(monkeypatch):
    context_file.save(ContextFile("a", {"a": ServerContext("http://a", "secret")}))
    assert context_file.resolve(None, None).token == "secret"
    assert context_file.resolve("http://elsewhere", None).token == ""
    monkeypatch.setenv("DRIFTQ_TOKEN", "mine")
    assert context_file.resolve(None, None).token == "mine"


def test_an_unknown_context_is_reported_with_the_known_ones():
    context_file.save(ContextFile("", {"prod": ServerContext("http://a")}))
    with pytest.raises(BadContexts, match="the contexts are prod"):
        context_file.resolve(None, "prd")


def test_everything_that_is_saved_is_read_back(home):
    known = {"a-b_C9": ServerContext('http://x/"quoted"\\', "tök€n", "a word"), "plain": ServerContext("https://y")}
    context_file.save(ContextFile("plain", known))
    assert context_file.load() == ContextFile("plain", known)
    file = home / "driftq" / "contexts.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["contexts.toml"]


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("a b", ServerContext("http://x")),
        ("", ServerContext("http://x")),
        ("a", ServerContext("ftp://x")),
        ("a", ServerContext("http://x", "two\nlines")),
        ("a", ServerContext("http://x", "", "bell\x07")),
    ],
)
def test_what_could_not_be_read_back_is_refused(name, context):
    with pytest.raises(BadContexts):
        context_file.check(name, context)


@pytest.mark.parametrize("text", ["current = ", "[contexts.a]\nurl = 'x'\ncolour = 'red'", "contexts = 3"])
def test_a_file_that_cannot_be_read_says_so(home, text):
    (home / "driftq").mkdir()
    (home / "driftq" / "contexts.toml").write_text(text)
    with pytest.raises(BadContexts, match=r"contexts\.toml"):
        context_file.load()


def test_a_home_that_is_no_whole_path_does_not_count(home, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(home))
    assert context_file.path() == home / ".config" / "driftq" / "contexts.toml"

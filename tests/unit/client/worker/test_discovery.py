"""Workers by name: all of a module, single ones, those of some topics; and sentences for what cannot be loaded."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from driftq.client.errors import InvalidCall
from driftq.client.worker.discovery import LoadError, load_workers, with_options
from driftq.client.worker.file_watch import FileWatch, loaded_files

APP = """
    import driftq
    @driftq.task("email.send.v1", topic="emails")
    def send_email(to: str): ...
    @driftq.worker("orders", group="billing", concurrency=3)
    async def charge(message): ...
    number = 7
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path, whose modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("driftq"):
            del sys.modules[name]


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


def names(targets: list[str], queues: list[str] | None = None) -> list[str]:
    return [loaded.name for loaded in load_workers(targets, queues or [])]


def test_a_module_has_all_its_workers_and_a_name_has_one(folder):
    write(folder, wapp=APP, wmore="from wapp import charge\nimport driftq\n@driftq.task('x')\ndef other(): ...")
    assert names(["wapp"]) == ["wapp.send_email", "wapp.charge"]
    assert names(["wapp:charge"]) == ["wapp.charge"]
    assert names(["wapp:charge,send_email"]) == ["wapp.charge", "wapp.send_email"]
    assert names(["wapp:email.send.v1"]) == ["wapp.send_email"], "a task has a name of its own"
    assert names(["wapp", "wmore"]) == ["wapp.send_email", "wapp.charge", "wmore.other"], "an imported one runs once"
    assert names(["wapp", "wmore"], ["orders", "tasks"]) == ["wapp.charge", "wmore.other"]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nothere", "there is no module 'nothere'"),
        ("nothere.inside", "there is no module 'nothere'"),
        ("wapp.inside", "there is no module 'wapp.inside'"),
        ("wapp.py", "wapp.py is a file; name the module: wapp"),
        ("./sub/wapp.py", "name the module: sub.wapp"),
        ("wempty", "wempty has no workers: decorate a function"),
        ("wapp:chrge", "wapp has no worker or task 'chrge': did you mean charge?"),
        ("wapp:zzzzz", "it has send_email, charge, email.send.v1"),
        ("wapp:number", "wapp has no worker or task 'number'"),
        ("wempty:charge", "it has none"),
        ("wbroken", "wbroken cannot be imported: ZeroDivisionError: division by zero"),
        ("wsyntax", "wsyntax cannot be imported: SyntaxError"),
        ("wexits", "wexits cannot be imported: SystemExit: 3"),
        ("windirect", "windirect cannot be imported: ModuleNotFoundError: No module named 'missing_library'"),
        ("wtwice", "wtwice.a and wtwice.b both take the task 'x' of topic 'tasks' in group 'workers'"),
    ],
)
def test_what_cannot_be_loaded_is_explained(folder, target, sentence):
    twice = "import driftq\n@driftq.task('x')\ndef a(): ...\n@driftq.task('x')\ndef b(): ..."
    write(
        folder, wapp=APP, wempty="", wbroken="def f():\n    1 / 0\nf()", wsyntax="def (", wexits="raise SystemExit(3)"
    )
    write(folder, windirect="import missing_library", wtwice=twice)
    with pytest.raises(LoadError) as failure:
        load_workers([target])
    assert sentence in str(failure.value)
    if "cannot be imported" in sentence and target != "wsyntax":
        assert f"{target}.py" in failure.value.detail
        assert "importlib" not in failure.value.detail, "only the user's own frames"
        assert [Path(path).name for path in failure.value.files][:1] == [f"{target}.py"]


def test_an_unknown_topic_is_explained(folder):
    write(folder, wapp=APP)
    with pytest.raises(LoadError, match="no worker takes topic 'email': did you mean emails"):
        load_workers(["wapp"], ["email"])


def test_options_of_the_command_line_win_over_those_of_the_worker(folder):
    write(folder, wapp=APP)
    workers = load_workers(["wapp"])
    assert [loaded.worker.options.concurrency for loaded in with_options(workers, concurrency=None)] == [1, 3]
    changed = with_options(workers, concurrency=16, drain_ms=5)
    assert [loaded.worker.options.concurrency for loaded in changed] == [16, 16]
    assert {loaded.worker.options.drain_ms for loaded in changed} == {5}
    assert changed[0].worker.name == "email.send.v1"
    assert changed[0].worker("ann") is None, "it is still a function"
    with pytest.raises(InvalidCall):
        with_options(workers, concurrency=0)


def test_files_of_loaded_modules_are_watched_and_installed_ones_are_not(folder):
    write(folder, wwatched="")
    __import__("wwatched")
    paths = loaded_files()
    path = str((folder / "wwatched.py").resolve())
    assert path in paths
    assert not [path for path in paths if "site-packages" in path]
    watch = FileWatch()
    watch.add([path, str(folder / "later.py")])
    assert watch.changed() == []
    (folder / "wwatched.py").unlink()
    assert watch.changed() == [path]
    assert watch.changed() == []
    (folder / "later.py").write_text("")
    assert watch.changed() == [str(folder / "later.py")]

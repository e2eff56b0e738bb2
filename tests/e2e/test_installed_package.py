"""The package as users install it: the wheel in a clean virtualenv runs a broker; the client alone needs few packages,
runs without what other systems do not have, and says what to install for the rest."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from driftq.cli.exit_codes import Exit
from driftq.extras import MODULES
from tests.support import installed_package as package
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.xdist_group("installed-package")

# What Windows does not have, or only some systems do, is missing before our first import, as it would be there. The
# event loop of the standard library is this system's, and keeps what it uses.
ELSEWHERE = """
import asyncio, os, select, signal, socket, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {gone!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
for module, names in {{
    os: ("fork", "getuid", "geteuid", "register_at_fork", "sched_getaffinity", "fdatasync", "posix_fallocate", "pread"),
    select: ("poll", "epoll"),
    signal: ("SIGKILL", "SIGHUP", "SIGUSR1", "pthread_kill", "SIGALRM"),
    socket: ("SO_REUSEPORT", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
}}.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""
GONE = (
    "fcntl",
    "resource",
    "pwd",
    "grp",
    "termios",
    "tty",
    "pty",
    "uvloop",
    "httptools",
    "rich",
    "cryptography",
    "jwt",
)
PROGRAM = """
asyncio.SelectorEventLoop.add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
import driftq
broker = driftq.connect({url!r})
broker.topics.create("elsewhere", partitions=2)
broker.send("elsewhere", "one", key="a")
with broker.producer("elsewhere") as producer:
    for number in range(10):
        producer.send(f"many {{number}}")
seen = []
@driftq.worker("elsewhere", group="w")
def work(message):
    seen.append(message.value)
driftq.run(work, broker={url!r}, drain=True)
assert len(seen) == 11, seen
stream = broker.stream("elsewhere", content_type="text/plain")
stream.create()
stream.append("a line")
assert stream.read().data == b"a line"
async def awaited():
    async with driftq.connect_async({url!r}) as client:
        await client.send("elsewhere", "last")
        (message,) = await client.claim("elsewhere", "w")
        await message.ack()
asyncio.run(awaited())
print("done")
"""


# What an index shows of the package, and what an installer decides by.
METADATA = (
    "License-Expression: Apache-2.0",
    "License-File: LICENSE",
    "Requires-Python: >=3.11",
    "Description-Content-Type: text/markdown",
    "Classifier: Operating System :: POSIX :: Linux",
    "Classifier: Operating System :: MacOS",
    "Classifier: Operating System :: Microsoft :: Windows",
    "Classifier: Typing :: Typed",
)


class Installed(NamedTuple):
    wheel: Path
    server: Path  # the programs of a virtualenv with the broker
    client: Path  # the programs of a virtualenv with the client alone


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("package")
    wheel = package.build(folder)
    server = package.virtualenv(folder / "server", wheel, "runtime.txt")
    return Installed(wheel, server, package.virtualenv(folder / "client", wheel, "client.txt"))


@pytest.fixture(scope="module")
def url(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that runs from the wheel."""
    data = tmp_path_factory.mktemp("data")
    process = subprocess.Popen(
        [installed.server / "driftq", "serve", "--listen", "127.0.0.1:0", "--data", data / "broker"],
        stderr=subprocess.PIPE, text=True, env=package.clean_environment(), cwd=data,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        greeting = process.stderr.readline()
        match = re.search(r"on (http://\S+);", greeting)
        assert match, greeting
        yield match[1]
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stderr.close()


def test_the_wheel_runs_a_broker_and_the_command_line_from_a_clean_virtualenv(installed: Installed, url: str) -> None:
    driftq = installed.server / "driftq"
    package.run(driftq, "topics", "create", "greetings", "--partitions", "2", DRIFTQ_URL=url)
    package.run(driftq, "produce", "greetings", "hello", "--key", "a", DRIFTQ_URL=url)
    consumed = package.run(driftq, "consume", "greetings", "readers", "--drain", DRIFTQ_URL=url)
    assert "hello" in consumed.stdout
    assert package.run(driftq, "--version").stdout.startswith("driftq, version ")


def test_the_wheel_has_the_licence_the_types_and_every_module_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        licence = next(name for name in names if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert set(METADATA) <= set(metadata.partition("\n\n")[0].splitlines())
    assert metadata.partition("\n\n")[2] == (ROOT / "README.md").read_text(encoding="utf-8")
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == sources
    assert {"driftq/py.typed", "driftq/spark/worker-python"} <= set(names)
    data = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "driftq").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {name for name in data if name.startswith("driftq/server/console/static/")}
    assert data <= set(names), "the files of the console, and what else is no module"
    assert not [name for name in names if name.startswith(("tests", "bench", "examples"))]
    (sdist,) = installed.wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "requirements/runtime.txt"} <= packed


def test_the_client_alone_needs_few_packages_and_produces_and_consumes(installed: Installed, url: str) -> None:
    listed = package.run(package.UV, "pip", "list", "--format", "json", "--python", installed.client / "python")
    assert len(json.loads(listed.stdout)) <= 5, listed.stdout
    driftq = installed.client / "driftq"
    package.run(driftq, "topics", "create", "orders", DRIFTQ_URL=url)
    package.run(driftq, "produce", "orders", "hello", DRIFTQ_URL=url)
    assert "hello" in package.run(driftq, "consume", "orders", "g", "--drain", DRIFTQ_URL=url).stdout
    assert "orders" in package.run(driftq, "status", DRIFTQ_URL=url).stdout


def test_the_client_works_without_what_only_unix_has(installed: Installed, url: str) -> None:
    program = ELSEWHERE.format(gone=GONE) + PROGRAM.format(url=url)
    assert package.run(installed.client / "python", "-c", program).stdout == "done\n"


@pytest.mark.parametrize(
    ("arguments", "part", "module", "extra"),
    [
        (("serve",), "the broker", "uvloop", "server"),
        (("inspect", "verify", "."), "the broker", "uvloop", "server"),
        (("pipeline", "run", "archive", "--topic", "a", "--table", "t"), "a pipeline", "pyspark", "spark"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    installed: Installed, tmp_path: Path, arguments: tuple[str, ...], part: str, module: str, extra: str
) -> None:
    message = f"{part} needs the package {module}, which is not installed. Run: pip install 'driftq[{extra}]'"
    text = package.run_any(installed.client / "driftq", *arguments, cwd=tmp_path)
    assert (text.returncode, text.stderr) == (Exit.NOTHING_THERE, f"driftq: {message}\n")
    as_json = package.run_any(installed.client / "driftq", "--json", *arguments, cwd=tmp_path)
    assert (as_json.returncode, json.loads(as_json.stderr)["message"]) == (Exit.NOTHING_THERE, message)


def test_a_program_gets_an_import_error_that_names_the_extra(installed: Installed) -> None:
    program = "from driftq.testing import memory_broker\nwith memory_broker(): pass"
    ended = package.run_any(installed.client / "python", "-c", program)
    assert ended.stderr.endswith("which is not installed. Run: pip install 'driftq[server]'\n"), ended.stderr
    spark = package.run_any(installed.client / "python", "-c", "import driftq.spark as s; s.driftq_session()")
    assert spark.stderr.endswith("which is not installed. Run: pip install 'driftq[spark]'\n"), spark.stderr


def test_every_extra_is_recognised_by_modules_that_it_brings() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(re.findall(r"^(\w+) = ", section, re.MULTILINE)) == {*MODULES, "all"}

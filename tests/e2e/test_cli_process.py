"""The command line as a process: on a terminal, in a pipe, interrupted, and completed by a shell."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

import driftq
from driftq.cli.exit_codes import Exit
from driftq.client.calls.queue import item

END_S = 60.0
PROGRAM = [sys.executable, "-m", "driftq.cli.main"]
CURSOR = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def broker(server):
    with driftq.connect(f"http://127.0.0.1:{server.port}") as broker:
        broker.topics.create("orders", partitions=2)
        broker.send_many("orders", [item(f"message {number}", key=str(number)) for number in range(2_000)])
        yield broker


@pytest.fixture
def environ(server, broker, tmp_path):
    return {
        **os.environ,
        "DRIFTQ_URL": f"http://127.0.0.1:{server.port}",
        "XDG_CONFIG_HOME": str(tmp_path),
        "TERM": "xterm-256color",
    }


def on_terminal(environ: dict[str, str], columns: int, *argv: str) -> tuple[bytes, int]:
    """What a command writes to a terminal of some width, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen([*PROGRAM, *argv], stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    written = b""
    deadline_s = time.monotonic() + END_S
    try:
        while time.monotonic() < deadline_s:
            if not select.select([ours], [], [], deadline_s - time.monotonic())[0]:
                break
            try:
                data = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            written += data
        return written, process.wait(END_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)


@pytest.mark.parametrize("columns", [40, 120])
def test_a_table_fits_the_terminal(environ, columns):
    written, code = on_terminal(environ, columns, "status")
    lines = CURSOR.sub(b"", written).decode().splitlines()
    assert code == 0
    assert any("orders" in line for line in lines)
    assert max(len(line.rstrip()) for line in lines) <= columns


def test_a_terminal_gets_colour_and_control_characters_are_escaped(environ, broker):
    broker.topics.create("strange")
    broker.send("strange", "\x1b[2Jgone\x07")
    written, code = on_terminal(environ, 80, "topics", "peek", "strange")
    assert code == 0
    assert b"\x1b[2m" in written
    assert b"\x1b[2J" not in written
    assert rb"\x1b[2Jgone\x07" in written


def test_long_work_shows_progress_and_leaves_only_its_result(environ, broker, tmp_path):
    broker.topics.create("bulk")
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(20_000)))
    for way in ((), ("--packed",)):
        argv = ("produce", "bulk", *way, "--lines", str(tmp_path / "lines"))
        written, code = on_terminal(environ, 80, *argv)
        assert code == 0
        assert b"producing to bulk" in written
        assert CURSOR.sub(b"", written).split(b"\r")[-2].strip().endswith(b"bulk: 20000 produced")
    broker.reject(broker.claim("bulk", "g", max=500))
    written, code = on_terminal(environ, 80, "dlq", "redrive", "bulk")
    assert code == 0
    assert b"redriving to bulk" in written
    assert b"500 of 500 redriven" in written


def test_a_terminal_is_asked_before_something_is_deleted(environ, broker):
    broker.topics.create("precious")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "topics", "delete", "precious"], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    os.write(ours, b"n\n")
    assert process.wait(END_S) == Exit.REFUSED
    os.close(ours)
    assert "precious" in broker.topics.list()


def test_nothing_is_coloured_in_a_pipe(environ):
    done = subprocess.run([*PROGRAM, "status"], env=environ, capture_output=True, check=True, timeout=END_S)
    assert b"orders" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr


def started(environ, argv):
    """A command that has printed its first line, with what it writes to."""
    process = subprocess.Popen([*PROGRAM, *argv], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    return process, process.stdout, process.stderr


def ends_quietly(process, stderr, code):
    output = stderr.read()
    assert process.wait(END_S) == code
    stderr.close()
    assert output == b""


@pytest.mark.parametrize(
    "argv",
    [("tail", "orders", "-n", "2000"), ("consume", "orders", "head"), ("topics", "peek", "orders", "-n", "1000")],
)
def test_a_closed_pipe_ends_the_command_quietly(environ, argv):
    process, stdout, stderr = started(environ, argv)
    stdout.close()
    ends_quietly(process, stderr, Exit.OK)


@pytest.mark.parametrize("argv", [("tail", "orders"), ("consume", "orders", "leaves"), ("streams", "follow", "quiet")])
def test_a_closed_pipe_ends_a_command_that_waits(environ, broker, argv):
    broker.stream("quiet", "application/json").create(data=[1])
    process, stdout, stderr = started(environ, argv)
    threading.Timer(1.0, stdout.close).start()  # by then everything is printed, and it waits for more
    ends_quietly(process, stderr, Exit.OK)


@pytest.mark.parametrize("argv", [("tail", "orders"), ("consume", "orders", "watch"), ("streams", "follow", "live")])
def test_an_interrupt_ends_a_command_quietly_and_releases_what_it_holds(environ, broker, argv):
    broker.stream("live", "application/json").create(data=[1])
    process, stdout, stderr = started(environ, argv)
    process.send_signal(signal.SIGINT)
    stdout.read()
    stdout.close()
    ends_quietly(process, stderr, Exit.INTERRUPTED)
    if argv[0] == "consume":
        assert broker.groups.describe("orders", "watch").in_flight == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(environ, shell):
    done = subprocess.run([*PROGRAM, "completion", shell], env=environ, capture_output=True, check=True, timeout=END_S)
    assert b"_DRIFTQ_COMPLETE" in done.stdout


def completed(environ: dict[str, str], line: str) -> list[str]:
    """What a shell would offer for the last word of a line."""
    words = line.split(" ")
    asked = {
        **environ, "_DRIFTQ_COMPLETE": "fish_complete", "COMP_WORDS": line, "COMP_CWORD": words[-1],
    }  # fmt: skip
    code = "from driftq.cli.main import main; main(prog_name='driftq')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=False, timeout=END_S
    )
    return re.findall(r"^plain,?\n?([^\t\n]*)", done.stdout, re.MULTILINE)


def test_names_are_completed_from_the_server_and_from_the_contexts(environ, broker):
    broker.claim("orders", "billing")
    subprocess.run([*PROGRAM, "context", "add", "prod", environ["DRIFTQ_URL"]], env=environ, check=True, timeout=END_S)
    assert "topics" in completed(environ, "driftq to")
    assert completed(environ, "driftq topics show ord") == ["orders"]
    assert completed(environ, "driftq groups show orders bil") == ["billing"]
    assert completed(environ, "driftq context use pr") == ["prod"]
    assert completed({**environ, "DRIFTQ_URL": "http://127.0.0.1:1"}, "driftq topics show ord") == []


def test_a_failure_is_json_on_stderr_when_json_was_asked_for(environ):
    argv = [*PROGRAM, "--json", "topics", "show", "order"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=END_S)
    assert (done.returncode, done.stdout) == (Exit.NOTHING_THERE, "")
    assert "orders" in json.loads(done.stderr)["hint"]

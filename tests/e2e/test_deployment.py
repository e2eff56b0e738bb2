"""What is in deploy/: checked with the tools that read it, and replayed without the engines that run it.

There is no Docker engine and no cluster here. So the steps of the Dockerfile run in a clean folder, the commands of
compose.yaml run as processes of this machine, and everything else is checked by hadolint, systemd-analyze, promtool and
the schemas of Kubernetes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import driftq
from driftq.cli.exit_codes import Exit
from driftq.server.settings import load
from tests.support import dockerfile
from tests.support.installed_package import clean_environment
from tests.support.wait import until_now
from tests.tidy.sources import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
DEBIAN = BIN.parent / "debian"
IMAGE = dockerfile.stages(DEPLOY / "Dockerfile")
DATA = "/var/lib/driftq"
_PR_SET_MDWE, _REFUSE_EXEC_GAIN = 65, 1

pytestmark = pytest.mark.xdist_group("deployment")


def tool(name: str) -> str:
    """A program of the machine, or one that `make tools` unpacked."""
    path = shutil.which(name) or shutil.which(name, path=f"{DEBIAN}/usr/bin:{DEBIAN}/bin")
    if path is None:
        pytest.skip(f"there is no {name}: `make tools` gets it from Debian's packages")
    return path


def checked(*command: object, cwd: Path | None = None) -> str:
    libraries = ":".join(map(str, DEBIAN.glob("usr/lib/*/systemd")))
    environ = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
    line = list(map(str, command))
    ended = subprocess.run(line, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@contextmanager
def started(
    command: list[str], environ: dict[str, str], cwd: Path, preexec: Callable[[], None] | None = None
) -> Iterator[str]:
    """A broker that a command runs; yields its URL, and stops it."""
    process = subprocess.Popen(
        command,
        env=environ,
        cwd=cwd,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=preexec,  # noqa: PLW1509
    )
    assert process.stderr is not None
    lines = []
    try:
        url = None
        while url is None:
            line = process.stderr.readline()
            lines.append(line)
            assert line, "".join(lines)
            match = re.search(r"on (http://[0-9.:]+)", line)
            url = match[1] if match else None
        yield url
    finally:
        process.terminate()
        code = process.wait(60)
        process.stderr.close()
    assert code == 0


# --- the image ---


def words(stage: list[dockerfile.Instruction], word: str) -> list[dockerfile.Instruction]:
    return [instruction for instruction in stage if instruction.word == word]


def test_the_dockerfile_has_no_lint() -> None:
    checked(BIN / "hadolint", DEPLOY / "Dockerfile")


def test_the_image_is_small_not_root_with_a_volume_and_a_healthcheck() -> None:
    last = IMAGE[-1]
    assert all(re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", words(stage, "FROM")[0].text) for stage in IMAGE)
    assert words(last, "USER")[-1].text == "10001:10001"
    assert words(last, "VOLUME")[0].text == DATA
    assert words(last, "HEALTHCHECK")[0].array() == ["driftq", "health"]
    assert words(last, "ENTRYPOINT")[0].array() == ["driftq"]
    assert [copy.text for copy in words(last, "COPY")] == ["--from=build /venv /venv"], "nothing but the virtualenv"


def test_what_is_copied_into_the_image_is_there_and_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for copy in words(IMAGE[0], "COPY"):
        for name in copy.text.split()[:-1]:
            assert (ROOT / name).exists(), name
            assert any(entry == name or entry.startswith(f"{name}/") for entry in allowed), name
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.timeout(300)  # it installs packages
def test_the_steps_of_the_image_give_a_broker_that_runs(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environ = clean_environment()
    environ |= {"PATH": f"{programs}:{environ['PATH']}", "VENV": str(tmp_path / "venv"), "LOCK": "runtime.txt"}
    source = tmp_path / "source"
    source.mkdir()
    dockerfile.replay(IMAGE[0], ROOT, source, environ)
    program = str(tmp_path / "venv" / "bin" / "driftq")
    data = tmp_path / "data"
    checked(program, "auth", "init", "--data", data / "data", "--to", tmp_path / "token")
    command = words(IMAGE[-1], "CMD")[-1].array()
    assert command[command.index("--listen") + 1] == "0.0.0.0:8080"
    command = [part.replace("0.0.0.0:8080", "127.0.0.1:0").replace(DATA, str(data)) for part in command]
    with started([program, *command], clean_environment(), tmp_path) as url:
        health = subprocess.run(
            [program, *words(IMAGE[-1], "HEALTHCHECK")[0].array()[1:]],
            env=clean_environment() | {"DRIFTQ_URL": url}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "ready" in health.stdout
        with driftq.connect(url, token=(tmp_path / "token").read_text().strip()) as broker:
            broker.topics.create("t")
        with driftq.connect(url) as stranger, pytest.raises(driftq.errors.NotAllowed):
            stranger.topics.list()


# --- compose ---


COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))


def test_every_service_is_confined_and_its_files_exist() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            known = source in COMPOSE["volumes"] or (DEPLOY / "compose" / source).exists()
            assert known, f"{name}: {volume}"
        for needed in service.get("depends_on", {}):
            assert needed in COMPOSE["services"]
    assert COMPOSE["services"]["broker"]["ports"] == ["127.0.0.1:8080:8080"], "without TLS, this machine only"


class Composition:
    """The services of compose.yaml as processes, with the places of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        for name in ("tokens", "data", "app"):
            (folder / name).mkdir()
        shutil.copy(DEPLOY / "compose" / "app.py", folder / "app")

    def here(self, text: str) -> str:
        for there, path in {
            DATA: f"{self.folder}/data", "/tokens": f"{self.folder}/tokens", "/app": f"{self.folder}/app",
            "/tables": f"{self.folder}/tables", "/setup.sh": f"{DEPLOY}/compose/setup.sh",
            "http://broker:8080": self.url, "0.0.0.0:8080": "127.0.0.1:0", "$$": "$",
        }.items():  # fmt: skip
            text = text.replace(there, path)
        return text

    def command(self, name: str, *arguments: str) -> list[str]:
        service = COMPOSE["services"][name]
        entry = service.get("entrypoint", ["driftq"])
        return [self.here(part) for part in (*entry, *(arguments or service.get("command", ())))]

    def environ(self, name: str) -> dict[str, str]:
        given = {key: self.here(value) for key, value in COMPOSE["services"][name].get("environment", {}).items()}
        return clean_environment() | {"PATH": f"{BIN}:{os.environ['PATH']}"} | given

    def run(self, name: str, *arguments: str) -> str:
        ended = subprocess.run(
            self.command(name, *arguments), env=self.environ(name), cwd=self.folder,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert ended.returncode == 0, f"{name}: {ended.stdout}{ended.stderr}"
        return ended.stdout


def test_the_commands_of_the_composition_work_together(tmp_path: Path) -> None:
    compose = Composition(tmp_path)
    compose.run("first-token")
    compose.run("first-token")  # a second start of the composition changes nothing
    with started(compose.command("broker"), compose.environ("broker"), tmp_path) as url:
        compose.url = url
        compose.run("setup")
        compose.run("setup")
        compose.run("shell", "produce", "orders", "hello")
        with (tmp_path / "worker.log").open("w") as log:
            worker = subprocess.Popen(
                compose.command("worker"), env=compose.environ("worker"), cwd=tmp_path, stdout=log, stderr=log
            )
            try:
                until_now(lambda: "billing order hello" in (tmp_path / "worker.log").read_text(), 60, pause_s=0.1)
            finally:
                worker.terminate()
                assert worker.wait(60) == 0, (tmp_path / "worker.log").read_text()
        assert "orders" in compose.run("shell", "status")
        archive = [part.replace("pipeline run", "pipeline show") for part in compose.command("archive")]
        shown = subprocess.run(archive, env=compose.environ("archive"), capture_output=True, text=True, check=True)
        assert 'topics = ["orders"]' in shown.stdout


# --- systemd ---


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on this machine."""
    text = (DEPLOY / "systemd" / "driftq.service").read_text(encoding="utf-8")
    assert "/usr/local/lib/driftq/bin/driftq" in text
    path = tmp_path / "driftq.service"
    path.write_text(text.replace("/usr/local/lib/driftq/bin/driftq", str(BIN / "driftq")))
    return path


def test_systemd_accepts_the_unit_and_finds_it_hardly_exposed(unit: Path) -> None:
    analyze = tool("systemd-analyze")
    if not Path(analyze).is_relative_to(DEBIAN):  # it needs the targets of a machine that has systemd
        assert not checked(analyze, "verify", unit).strip()
    verdict = checked(analyze, "security", "--offline=true", "--no-pager", "--threshold=15", unit)
    exposure = re.search(r"exposure level for driftq\.service: ([0-9.]+)", verdict)
    assert exposure is not None
    assert float(exposure[1]) <= 1.5


def test_systemd_makes_the_user_of_the_unit(tmp_path: Path) -> None:
    sysusers = tool("systemd-sysusers")
    (tmp_path / "etc").mkdir()
    checked(sysusers, f"--root={tmp_path}", DEPLOY / "systemd" / "driftq.sysusers")
    accounts = (tmp_path / "etc" / "passwd").read_text()
    unit = (DEPLOY / "systemd" / "driftq.service").read_text(encoding="utf-8")
    name, _, user, *_, home, shell = accounts.splitlines()[-1].split(":")
    assert f"\nUser={name}\n" in unit
    assert (int(user) < 1_000, home, shell) == (True, "/var/lib/driftq", "/usr/sbin/nologin")


def test_the_unit_does_not_restart_what_a_restart_does_not_help() -> None:
    text = (DEPLOY / "systemd" / "driftq.service").read_text(encoding="utf-8")
    codes = set(map(int, re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)[0].split()))
    helpless = {Exit.USAGE, Exit.FILES_MOVED, Exit.CANNOT_CREATE, Exit.DAMAGED, Exit.TOO_NEW}
    assert codes == {int(code) for code in helpless}


def test_a_broker_works_without_memory_that_is_both_written_and_executed(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute= of the unit, as far as the kernel can be asked for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    probe = "import ctypes, sys; sys.exit(bool(ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)))"
    if subprocess.run([sys.executable, "-c", probe], check=False).returncode:
        pytest.skip("this kernel cannot deny it")

    def deny() -> None:
        libc.prctl(_PR_SET_MDWE, _REFUSE_EXEC_GAIN, 0, 0, 0)

    command = [str(BIN / "driftq"), "serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with (
        started([*command, "--set", "storage.segment_bytes=65536"], clean_environment(), tmp_path, deny) as url,
        driftq.connect(url) as broker,
    ):
        broker.topics.create("t")
        broker.send_many("t", ["x" * 1_000] * 100)
        assert sum(1 for _ in broker.backup())


def test_the_settings_of_the_service_are_accepted() -> None:
    settings = load(str(DEPLOY / "systemd" / "driftq.toml"), {}, ()).settings
    assert (settings.listen.host, settings.auth.mode) == ("0.0.0.0", "tokens")


# --- Kubernetes ---


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "driftq.yaml").read_text(encoding="utf-8"))
    return {(document["kind"], document["metadata"]["name"]): document for document in documents}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_every_manifest_fits_the_schema_of_kubernetes(version: str) -> None:
    for name, document in manifests().items():
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            pytest.fail(f"{name}: {error.message}")


def test_the_manifests_agree_with_the_image_the_routes_and_the_settings(tmp_path: Path) -> None:
    documents = manifests()
    pod = documents["StatefulSet", "driftq"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = words(IMAGE[-1], "USER")[-1].text.partition(":")[0]
    assert str(pod["securityContext"]["runAsUser"]) == user
    assert pod["securityContext"]["runAsNonRoot"] is True
    for part in (container, *pod["initContainers"]):
        assert part["image"] == f"driftq:{driftq.__version__}"
        assert part["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["readinessProbe"]["httpGet"]["path"] == "/v1/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v1/healthz", "a full disk is not cured by a restart"
    settings_file = tmp_path / "driftq.toml"
    settings_file.write_text(documents["ConfigMap", "driftq"]["data"]["driftq.toml"])
    settings = load(str(settings_file), {}, ()).settings
    assert settings.listen.port == container["ports"][0]["containerPort"]
    assert settings.auth.mode == "tokens"
    budget = documents["PodDisruptionBudget", "driftq"]["spec"]
    assert budget["selector"] == documents["StatefulSet", "driftq"]["spec"]["selector"]


# --- Prometheus ---


def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    promtool = tool("promtool")
    for name in ("prometheus.yml", "alerts.yaml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    (tmp_path / "observe.token").write_text("dq_x")
    checked(promtool, "check", "config", "prometheus.yml", cwd=tmp_path)
    checked(promtool, "check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml", cwd=tmp_path)


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = tool("promtool")
    cases = (Path(__file__).with_name("alerts_test.yaml")).read_text(encoding="utf-8")
    (tmp_path / "cases.yaml").write_text(cases.replace("RULES", str(DEPLOY / "prometheus" / "alerts.yaml")))
    checked(promtool, "test", "rules", tmp_path / "cases.yaml")

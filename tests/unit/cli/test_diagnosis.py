"""Where `driftq doctor` draws its lines, and that each thing it complains about comes with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftq.cli import diagnosis as d
from driftq.cli.broker_diagnosis import judge_expiry
from driftq.server.settings import ListenSettings, Settings

GIB = 1 << 30
DAY_S = 86_400


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (d.judge_space("/d", 500 * GIB, 1_000 * GIB), "ok"),
        (d.judge_space("/d", 50 * GIB, 1_000 * GIB), "warning"),
        (d.judge_space("/d", GIB // 2, 4 * GIB), "problem"),
        (d.judge_sync([0.4] * 99 + [30.0]), "ok"),
        (d.judge_sync([12.0] * 5), "warning"),
        (d.judge_sync([250.0]), "problem"),
        (d.judge_sync([0.004] * 10), "warning"),
        (d.judge_filesystem("/d", "ext4"), "ok"),
        (d.judge_filesystem("/d", ""), "ok"),
        (d.judge_filesystem("/d", "overlay"), "warning"),
        (d.judge_filesystem("/d", "nfs4"), "warning"),
        (d.judge_filesystem("/d", "tmpfs"), "problem"),
        (d.judge_descriptors(Settings(), 65_536), "ok"),
        (d.judge_descriptors(Settings(), 4_096), "warning"),
        (d.judge_descriptors(Settings(listen=ListenSettings(connections_max=100)), 1_024), "ok"),
        (d.judge_descriptors(Settings(), 100), "problem"),
        (judge_expiry("TLS", "x", 40.0 * DAY_S, 0.0), "ok"),
        (judge_expiry("TLS", "x", 13.0 * DAY_S, 0.0), "warning"),
        (judge_expiry("TLS", "x", 1.0, 2.0), "problem"),
    ],
)
def test_a_result_has_the_right_level_and_a_remedy_if_it_is_not_ok(result: d.CheckResult, level: str) -> None:
    assert result.level == level, result
    assert bool(result.remedy) == (level != "ok"), result


def levels(folder: Path) -> dict[str, d.CheckResult]:
    return {result.check: result for result in d.folder_checks(str(folder))}


def test_a_folder_that_others_can_open_or_that_holds_something_else_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert levels(folder)["permissions"] == ("permissions", "warning", f"other users can open {folder} (mode 755)",
                                             f"chmod 700 {folder}")  # fmt: skip
    (folder / "letter").write_text("mine")
    assert levels(folder)["data folder"].level == "problem"
    assert levels(folder / "letter")["data folder"].remedy == "name a folder with --data"
    assert levels(tmp_path / "new")["data folder"].level == "ok"
    assert not list(tmp_path.rglob(".driftq-doctor-*")), "nothing is left behind"


def test_a_folder_of_a_later_format_or_with_a_damaged_format_file_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "FORMAT").write_text("something else\n")
    assert levels(folder)["data folder"].level == "problem"
    assert "backup" in levels(folder)["data folder"].remedy


def test_the_machine_is_described_by_its_versions_limits_and_clock() -> None:
    results = {result.check: result for result in d.machine_checks(Settings())}
    assert "driftq " in results["versions"].message
    assert set(results) >= {"versions", "file descriptors"}
    assert {result.check for result in d.machine_checks(None)} <= {"versions", "clock"}

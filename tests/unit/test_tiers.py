"""The table of what each kind of test took."""

from __future__ import annotations

from tests.support.tiers import TierRun, total


def test_runs_are_added_up_by_tier(tmp_path, monkeypatch):
    path = tmp_path / "tiers.jsonl"
    monkeypatch.setenv("DRIFTQ_TIERS", str(path))
    first, second = TierRun(), TierRun()
    first.add("unit", "passed", 1.5)
    first.add("unit", "failed", 0.5)
    second.add("unit", "passed", 2.0)
    second.add("e2e", "passed", 10.0)
    first.append_to_file()
    second.append_to_file()

    table = total(path.read_text(encoding="utf-8").splitlines()).table(["e2e", "unit"])

    assert table == [
        "tier          tests   seconds   outcomes",
        "e2e               1      10.0   1 passed",
        "unit              3       4.0   2 passed, 1 failed",
    ]


def test_nothing_is_written_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("DRIFTQ_TIERS", raising=False)
    monkeypatch.chdir(tmp_path)
    run = TierRun()
    run.add("unit", "passed", 1.0)
    run.append_to_file()
    assert not list(tmp_path.iterdir())

"""`driftq top`, `jobs list` and `runs`, and the calls of the client that they use, against a real broker."""

from __future__ import annotations

from driftq.cli.main import main
from driftq.client.api import DriftQ
from driftq.wire.pipelines import PipelineReport
from tests.support.server import running


def test_jobs_runs_and_an_overview_are_shown(server, broker: DriftQ, capsys):
    broker.topics.create("mail")
    for number in range(3):
        broker.send("mail", "v", task="send", id=f"job-{number}", run_id="r7", step_id=str(number))

    def shown(*arguments: str) -> str:
        assert run(server.url, *arguments) == 0
        return capsys.readouterr().out

    assert shown("jobs", "list", "mail", "--state", "ready").count("job-") == 3
    assert "r7" in shown("runs", "list")
    assert shown("runs", "show", "r7").count("mail 0:") == 3
    assert "topics" in shown("top")
    assert [row.name for row in broker.topics.figures(sort="messages")] == ["mail"]
    assert broker.groups.sorted() == []
    assert broker.jobs.count("mail").states == {"ready": 3}
    assert broker.jobs.cancel_many("mail", ids=["job-0"]).cancelled == 1
    assert [message.offset for message in broker.topics.search("mail", text="job-1")] == [1]
    assert broker.runs.cancel("r7").cancelled == 2
    assert broker.dead_letters.counts() == []
    assert broker.streams.subscriptions() == []
    assert broker.streams.producers() == []
    assert "produced" in broker.series(names="produced").series
    broker.pipelines.report("p", PipelineReport("archive", ("mail",), rows=3))
    assert [(row.name, row.total_rows) for row in broker.pipelines.list().pipelines] == [("p", 3)]


def run(url: str, *arguments: str) -> int:
    try:
        main(["--url", url, *arguments], standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_settings_show_where_they_come_from_and_no_credentials():
    with running(None, "outbound.timeout_ms=1234", "log.level=warning") as server:
        settings = {row["name"]: row for row in server.call("GET", "/v1/config").json()["settings"]}
        assert settings["outbound.timeout_ms"]["value"] == 1234
        assert settings["outbound.timeout_ms"]["origin"] != "default"
        assert settings["queue.lease_ms"]["origin"] == "default"

"""The options and columns of the sink: what is wrong is said before a row is written."""

from __future__ import annotations

import pytest

from driftq.spark.sink.options import COLUMNS, SINK_OPTIONS, check_columns, write_options
from driftq.spark.source.options import BadOption


def test_a_topic_is_all_that_must_be_said() -> None:
    parsed = write_options({"topic": "orders"}, streaming=True, environment={})

    assert (parsed.topic, parsed.staged, parsed.writer) == ("orders", True, "")
    assert parsed.connection.url == "http://127.0.0.1:8080"


def test_names_are_read_in_any_case_and_spark_s_own_are_passed_over() -> None:
    raw = {"ChunkRows": "7", "TOPIC": "a", "checkpointlocation": "x", "queryName": "q", "chunkbytes": "2m"}

    parsed = write_options(raw, streaming=True)

    assert (parsed.chunk_rows, parsed.chunk_bytes) == (7, 2 << 20)


def test_the_path_of_save_is_the_topic() -> None:
    assert write_options({"path": "orders"}, streaming=False).topic == "orders"


def test_a_batch_write_has_a_name_of_its_own_each_time() -> None:
    one, other = (write_options({"topic": "a"}, streaming=False) for _ in range(2))

    assert one.writer != other.writer
    assert one.batch_id == 0


def test_a_batch_write_with_writer_and_number_keeps_them() -> None:
    parsed = write_options({"topic": "a", "writer": "nightly", "batchId": "12"}, streaming=False)

    assert (parsed.writer, parsed.batch_id) == ("nightly", 12)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"topik": "a"}, "did you mean topic"),
        ({"subscribe": "a"}, "did you mean topic"),
        ({"topic": "a", "stream": "b"}, "not both"),
        ({"topic": "a", "mode": "fast"}, "mode is staged or direct"),
        ({"topic": "a", "chunkRows": "0"}, "chunkRows is a number from 1"),
        ({"topic": "a", "chunkRows": "-5"}, "chunkRows"),
        ({"topic": "a", "chunkBytes": "1g"}, "chunkBytes .* at most"),
        ({"topic": "a", "chunkBytes": "lots"}, "chunkBytes"),
        ({"topic": "a", "compress": "yes"}, "compress is true or false"),
        ({"topic": "a", "stageTtl": "soon"}, "stageTtl"),
        ({"topic": "a", "replayCheck": "all"}, "replayCheck is content or rows or none"),
        ({"topic": "a", "batchId": "1"}, "batch"),
        ({"topic": "a", "writer": "w" * 181}, "at most 180"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_do(raw: dict[str, str], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        write_options(raw, streaming=True)


def test_a_batch_write_with_a_writer_and_no_number_is_refused() -> None:
    with pytest.raises(BadOption, match="writer and batchId belong together"):
        write_options({"topic": "a", "writer": "w"}, streaming=False)


TO_TOPIC = write_options({"topic": "orders"}, streaming=True)
TO_STREAM = write_options({"stream": "logs/app"}, streaming=True)
ANYWHERE = write_options({}, streaming=True)


def test_the_rows_of_the_source_can_be_written_back() -> None:
    kinds = [(name, allowed[0]) for name, allowed in COLUMNS.items() if name != "head"]

    check_columns([*kinds, ("offset", "bigint"), ("timestamp", "timestamp"), ("queue_state", "string")], TO_TOPIC)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("key", "string")], "no column value"),
        ([("value", "int")], "column value is int; it must be string or binary"),
        ([("value", "string"), ("partition", "string")], "column partition is string"),
        ([("value", "string"), ("keys", "string")], "did you mean key"),
        ([("value", "string"), ("amount", "double")], "no column amount; the columns are"),
        ([("value", "string"), ("head", "string"), ("run_id", "string")], "head or the columns of the envelope"),
        ([("value", "string"), ("labels", "array<string>")], "column labels is array<string>; it must be map"),
    ],
)
def test_wrong_columns_are_named(columns: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        check_columns(columns, TO_TOPIC)


def test_rows_must_go_somewhere() -> None:
    with pytest.raises(BadOption, match="there is no target"):
        check_columns([("value", "string")], ANYWHERE)
    check_columns([("value", "string"), ("topic", "string")], ANYWHERE)


def test_a_stream_takes_values_only() -> None:
    check_columns([("value", "string"), ("offset", "bigint"), ("partition", "int")], TO_STREAM)
    with pytest.raises(BadOption, match="drop the column key"):
        check_columns([("value", "string"), ("key", "string")], TO_STREAM)


def test_every_option_is_known_by_its_name() -> None:
    for option in SINK_OPTIONS:
        assert option.name
        assert option.meaning

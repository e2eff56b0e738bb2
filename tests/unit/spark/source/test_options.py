"""Options of the source: what is read from them, and what is said about a wrong one."""

from __future__ import annotations

import pytest

from driftq.client.transport.credential import ClientToken
from driftq.spark.source.options import EARLIEST, LATEST, OPTIONS, BadOption, ReadOptions, read_options


def options(**more_options: str) -> ReadOptions:
    return read_options({"subscribe": "orders", **more_options}, {})


def refusal(raw: dict[str, str]) -> str:
    with pytest.raises(BadOption) as caught:
        read_options(raw, {})
    return str(caught.value)


def test_one_topic_is_enough():
    parsed = read_options({"subscribe": "orders"}, {})
    assert parsed.topics == ("orders",)
    assert parsed.starting is None
    assert parsed.ending == LATEST
    assert parsed.fail_on_loss
    assert parsed.connection.url == "http://127.0.0.1:8080"


def test_names_are_known_in_any_case():
    raw = {"SUBSCRIBE": "a, b,a", "startingoffsets": "Earliest", "failOnDataLoss": "FALSE"}
    parsed = read_options(raw, {})
    assert parsed.topics == ("a", "b")
    assert parsed.starting == EARLIEST
    assert not parsed.fail_on_loss


def test_the_surroundings_say_where_the_broker_is_unless_the_query_does():
    environment = {"DRIFTQ_URL": "http://there:1", "DRIFTQ_TOKEN": "secret"}
    assert read_options({"subscribe": "a"}, environment).connection[:2] == ("http://there:1", ClientToken("secret"))
    raw = {"subscribe": "a", "url": "http://here:2", "token": "other"}
    assert read_options(raw, environment).connection[:2] == ("http://here:2", ClientToken("other"))


def test_the_path_of_a_load_is_a_topic():
    assert read_options({"path": "orders"}, {}).topics == ("orders",)
    assert read_options({"path": "x", "subscribe": "orders"}, {}).topics == ("orders",)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("includeHeaders", "includeEnvelope"),
        ("kafka.bootstrap.servers", "url"),
        ("topic", "subscribe"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant(name, meant):
    assert f"did you mean {meant}?" in refusal({"subscribe": "a", name: "1"})


def test_an_option_like_no_other_is_refused_with_all_there_are():
    message = refusal({"subscribe": "a", "zzz": "1"})
    assert all(option.name in message for option in OPTIONS)


@pytest.mark.parametrize("raw", [{}, {"subscribe": "a", "subscribePattern": "b"}, {"subscribe": "a", "stream": "s"}])
def test_the_subscription_is_exactly_one_option(raw):
    assert "exactly one of the options subscribe, subscribePattern, assign, stream" in refusal(raw)


def test_offsets_are_a_word_or_a_number_for_each_partition():
    assert options(startingOffsets='{"orders":{"0":5,"1":-2}}').starting == {("orders", 0): 5, ("orders", 1): -2}
    assert options(endingOffsets='{"orders":{"0":-1}}').ending == {("orders", 0): -1}


@pytest.mark.parametrize("text", ["soon", "5", "[]", '{"orders":5}', '{"orders":{"a":1}}', '{"orders":{"0":-3}}'])
def test_offsets_that_mean_nothing_are_refused(text):
    assert "startingOffsets" in refusal({"subscribe": "orders", "startingOffsets": text})


@pytest.mark.parametrize("text", ["earliest", '{"orders":{"0":-2}}'])
def test_a_batch_cannot_end_where_it_begins(text):
    assert "endingOffsets cannot be earliest" in refusal({"subscribe": "orders", "endingOffsets": text})


def test_times_are_written_for_people_or_for_machines():
    assert options(startingTimestamp="1970-01-01T00:00:01Z").starting_ms == 1_000
    assert options(endingTimestamp="2000").ending_ms == 2_000
    assert "startingTimestamp is a time like" in refusal({"subscribe": "a", "startingTimestamp": "yesterday"})


def test_a_time_and_an_offset_do_not_go_together():
    raw = {"subscribe": "a", "startingTimestamp": "1", "startingOffsets": "latest"}
    assert "not both" in refusal(raw)


def test_sizes_and_durations_have_units():
    parsed = options(maxBytesPerTrigger="2m", fetchBytes="4096", maxTriggerDelay="5m", retryMs="10s")
    assert (parsed.bytes_max, parsed.fetch_bytes, parsed.delay_max_ms) == (2 << 20, 4096, 300_000)
    assert parsed.connection.retry_ms == 10_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-5"),
        ("minPartitions", "many"),
        ("fetchBytes", "4 parsecs"),
        ("fetchBytes", "0"),
        ("maxTriggerDelay", "5 moons"),
        ("failOnDataLoss", "yes"),
        ("includeEnvelope", "1"),
        ("subscribePattern", "("),
        ("assign", '{"orders":[-1]}'),
        ("assign", "orders"),
        ("subscribe", " , "),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(name, text):
    raw = {name: text} if name in ("subscribePattern", "assign", "subscribe") else {"subscribe": "a", name: text}
    assert name in refusal(raw)


def test_partitions_are_assigned_one_by_one():
    assert read_options({"assign": '{"b":[1,0,1],"a":[2]}'}, {}).assigned == (("b", 1), ("b", 0), ("a", 2))


def test_streams_are_paths_without_outer_slashes():
    assert read_options({"stream": "/runs/1, runs/2/*"}, {}).streams == ("runs/1", "runs/2/*")


@pytest.mark.parametrize("path", ["runs/*/x", "runs*", "*/*"])
def test_a_star_is_only_allowed_at_the_end(path):
    assert "a star is only allowed at the end" in refusal({"stream": path})


@pytest.mark.parametrize("name", ["startingTimestamp", "maxBytesPerTrigger", "queueState"])
def test_what_only_topics_know_is_refused_for_streams(name):
    assert f"{name} is for topics" in refusal({"stream": "runs/1", name: "5"})


def test_a_table_in_the_catalog_is_refused_with_what_to_use():
    raw = {"provider": "driftq", "owner": "root", "subscribe": "orders", "option.subscribe": "orders"}
    assert "CREATE TEMPORARY VIEW orders USING driftq" in refusal(raw)


def test_an_archive_is_named_by_its_address_and_the_options_of_its_store():
    assert options().archive is None
    parsed = options(archive="s3://bucket/prefix/", archiveOptions='{"AWS_REGION":"eu-central-1"}')
    assert parsed.archive == ("s3://bucket/prefix", (("AWS_REGION", "eu-central-1"),))
    assert read_options({"subscribe": "a"}, {"DRIFTQ_ARCHIVE": "/mnt/archive"}).archive == ("/mnt/archive", ())


@pytest.mark.parametrize(
    ("more_options", "reason"),
    [
        ({"archive": "bucket/prefix"}, "from /"),
        ({"archive": "http://bucket/prefix"}, "s3://bucket/prefix"),
        ({"archive": "/mnt", "archiveOptions": "AWS_REGION=x"}, "is written like"),
        ({"archiveOptions": '{"AWS_REGION":"x"}'}, "give its address"),
    ],
)
def test_an_archive_that_cannot_be_is_refused(more_options, reason):
    assert reason in refusal({"subscribe": "orders", **more_options})

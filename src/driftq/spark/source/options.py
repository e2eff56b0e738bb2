"""The options of the source: names, defaults, meanings, and how they are checked. Pure: text in, values out.

Spark passes options as text, with names in any case. An unknown name is refused with the nearest known one, because a
misspelt limit that is ignored is noticed at the worst time. Knows no broker and no Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from driftq.client.transport.credential import ClientToken, token_from
from driftq.client.transport.tls import ClientTls, tls_from
from driftq.settings.quantities import SPARK_DURATION_MS, SPARK_SIZE_BYTES, Units, parse_quantity
from driftq.settings.suggestions import closest
from driftq.spark.source.archived_ranges import ArchiveAddress
from driftq.wire.fields import from_rfc3339

DEFAULT_URL = "http://127.0.0.1:8080"
EARLIEST = -2  # the numbers that Kafka's source uses in JSON
LATEST = -1

Offsets = dict[tuple[str, int], int]


class BadOption(ValueError):
    """An option cannot be used; the message says what is accepted."""


class Option(NamedTuple):
    """One line of the table in docs/reference/spark.md."""

    name: str
    default: str
    meaning: str


# Of the source and the sink. The files must be there on every machine that runs a task.
TLS_OPTIONS: tuple[Option, ...] = (
    Option("ca", "`DRIFTQ_CA`, else the system's authorities", "a PEM file: whom to trust for an `https` URL"),
    Option("certificate", "`DRIFTQ_CERTIFICATE` or none", "a PEM file with the client's certificate, for mutual TLS"),
    Option("key", "`DRIFTQ_KEY`, or in the same file", "the PEM file of its key"),
)
TOKEN_OPTIONS: tuple[Option, ...] = (
    Option("token", "`DRIFTQ_TOKEN` or none", "sent as a bearer token"),
    Option("tokenFile", "`DRIFTQ_TOKEN_FILE` or none", "instead: a file with the token, read again when it changes"),
)
OPTIONS: tuple[Option, ...] = (
    Option("url", f"`DRIFTQ_URL` or `{DEFAULT_URL}`", "the URL of the broker"),
    *TOKEN_OPTIONS,
    *TLS_OPTIONS,
    Option("subscribe", "", 'topics, separated by commas; `load("orders")` does the same'),
    Option("subscribePattern", "", "a regular expression for whole topic names; new topics join a running query"),
    Option("assign", "", 'only these partitions: `{"orders":[0,2]}`'),
    Option("stream", "", "a stream's path, or `prefix/*` for all below it; paths separated by commas"),
    Option("group", "", "a consumer group that follows the query's progress: lag and back-pressure (stream)"),
    Option(
        "startingOffsets",
        "`latest` (stream), `earliest` (batch)",
        'where a new query starts: `earliest`, `latest`, or `{"orders":{"0":5,"1":-2}}` with -2 for '
        "earliest and -1 for latest",
    ),
    Option("endingOffsets", "`latest`", "where a batch read ends (exclusive); written like startingOffsets"),
    Option("startingTimestamp", "", "start at the first record at or after this time: RFC 3339, or milliseconds"),
    Option("endingTimestamp", "", "end before the first record at or after this time (batch)"),
    Option("maxOffsetsPerTrigger", "no limit", "the maximum number of records in a micro-batch"),
    Option("maxBytesPerTrigger", "no limit", "about how many bytes a micro-batch may have, by average record size"),
    Option("minOffsetsPerTrigger", "1", "wait until there are this many records …"),
    Option("maxTriggerDelay", "`15m`", "… but no longer than this: milliseconds, or `10s`, `5m`, `1h`"),
    Option("minPartitions", "one for each log", "split ranges until there are at least this many tasks"),
    Option("maxPartitionBytes", "`64m`", "split ranges that are larger than about this many bytes"),
    Option("failOnDataLoss", "`true`", "fail if records that should be read are gone; `false` skips them"),
    Option("includeEnvelope", "`false`", "add the columns of the envelope, routing and job"),
    Option("includeHead", "`false`", "add the column `head`: the record's head (JSON) as text"),
    Option("queueState", "", "a group's name: add columns with the state of each message in that group"),
    Option("fetchBytes", "`8m`", "the size of one fetch; a task's memory is a small multiple of it"),
    Option(
        "archive",
        "`DRIFTQ_ARCHIVE` or none",
        "the broker's archive (`s3://bucket/prefix`, a folder): the tasks read old records there",
    ),
    Option(
        "archiveOptions", "the tasks' environment", 'options of its object store, as JSON: `{"AWS_ENDPOINT_URL":"…"}`'
    ),
    Option("retryMs", "`60s`", "how long a task retries while the broker does not answer"),
    Option("pushFilters", "`false`", "use filters on topic, partition, offset and timestamp to read less (batch)"),
)
NAMES = {option.name.lower(): option.name for option in OPTIONS}


def table() -> list[tuple[str, str, str]]:
    """The rows of the table in docs/reference/spark.md."""
    return [(f"`{option.name}`", option.default, option.meaning) for option in OPTIONS]


# Names that users of other sources try first.
_ALIASES = {
    "kafka.bootstrap.servers": "url",
    "topic": "subscribe",
    "topics": "subscribe",
    "includeheaders": "includeEnvelope",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "maxrecordsperpartition": "maxPartitionBytes",
    "kafka.group.id": "group",
    "groupidprefix": "group",
}


# What Spark adds to the options when a table is created.
_TABLE_PROPERTIES = frozenset({"owner", "provider"})


class BrokerOptions(NamedTuple):
    """How to reach the broker."""

    url: str
    token: ClientToken = ClientToken()
    retry_ms: int = 60_000
    tls_files: ClientTls = ClientTls()


class ReadOptions(NamedTuple):
    """The checked options of a read. `starting` and `ending` are EARLIEST, LATEST or offsets."""

    connection: BrokerOptions
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[tuple[str, int], ...] = ()
    streams: tuple[str, ...] = ()
    starting: int | Offsets | None = None
    ending: int | Offsets = LATEST
    starting_ms: int | None = None
    ending_ms: int | None = None
    offsets_max: int | None = None
    bytes_max: int | None = None
    offsets_min: int = 1
    delay_max_ms: int = 900_000
    partitions_min: int = 0
    partition_bytes: int = 64 << 20
    fail_on_loss: bool = True
    envelope: bool = False
    head: bool = False
    state_group: str = ""
    fetch_bytes: int = 8 << 20
    push_filters: bool = False
    group: str = ""  # follows the progress of a streaming query
    archive: ArchiveAddress | None = None  # where records are read that are only in the archive


def connection_of(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> BrokerOptions:
    """The options that reads and writes share. Names in `given` are in lower case."""
    url = given.get("url") or environment.get("DRIFTQ_URL") or DEFAULT_URL
    token = ClientToken(given.get("token", ""), given.get("tokenfile", ""))
    if all(token):
        raise BadOption("use either token or tokenFile, not both")
    token = token.or_else(token_from(environment))
    retry_ms = duration_ms("retryMs", given["retryms"]) if "retryms" in given else 60_000
    files = ClientTls(given.get("ca", ""), given.get("certificate", ""), given.get("key", ""))
    return BrokerOptions(url, token, retry_ms, files.or_else(tls_from(environment)))


def read_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> ReadOptions:
    """Check all options of a batch or streaming read. Raises `BadOption`."""
    given = {name.lower(): str(text) for name, text in options.items()}
    _refuse_unknown(options)
    if "path" in given and not {"subscribe", "subscribepattern", "assign", "stream"} & given.keys():
        given["subscribe"] = given["path"]
    topics, pattern, assigned, streams = _subscription(given)
    for a, b in (("startingOffsets", "startingTimestamp"), ("endingOffsets", "endingTimestamp")):
        if a.lower() in given and b.lower() in given:
            raise BadOption(f"give {a} or {b}, not both")
    if assigned and "group" in given:
        raise BadOption("group reads whole topics: use subscribe or subscribePattern with it, not assign")
    if streams:
        for name in ("group", "startingTimestamp", "endingTimestamp", "maxBytesPerTrigger", "queueState"):
            if name.lower() in given:
                raise BadOption(f"{name} is for topics; streams have no groups, and no index of times and sizes")
    starting = _offsets("startingOffsets", given["startingoffsets"]) if "startingoffsets" in given else None
    ending = _offsets("endingOffsets", given.get("endingoffsets", "latest"))
    if ending == EARLIEST:
        raise BadOption("endingOffsets cannot be earliest: nothing would be read")
    return ReadOptions(
        connection=connection_of(given, environment),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        streams=streams,
        starting=starting,
        ending=ending,
        starting_ms=_time_ms("startingTimestamp", given),
        ending_ms=_time_ms("endingTimestamp", given),
        offsets_max=_count("maxOffsetsPerTrigger", given),
        bytes_max=_bytes("maxBytesPerTrigger", given, None),
        offsets_min=_count("minOffsetsPerTrigger", given) or 1,
        delay_max_ms=duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", "15m")),
        partitions_min=_count("minPartitions", given) or 0,
        partition_bytes=_bytes("maxPartitionBytes", given, 64 << 20) or 1,
        fail_on_loss=flag("failOnDataLoss", given.get("failondataloss", "true")),
        envelope=flag("includeEnvelope", given.get("includeenvelope", "false")),
        head=flag("includeHead", given.get("includehead", "false")),
        state_group=given.get("queuestate", ""),
        fetch_bytes=_bytes("fetchBytes", given, 8 << 20) or 1,
        group=given.get("group", ""),
        push_filters=flag("pushFilters", given.get("pushfilters", "false")),
        archive=_archive(given, environment),
    )


def _archive(given: Mapping[str, str], environment: Mapping[str, str]) -> ArchiveAddress | None:
    url = given.get("archive", environment.get("DRIFTQ_ARCHIVE", "")).rstrip("/")
    text = given.get("archiveoptions", "{}")
    try:
        options = {str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        raise BadOption('archiveOptions is written like {"AWS_ENDPOINT_URL":"http://127.0.0.1:8333"}') from None
    if options and not url:
        raise BadOption("archiveOptions is for an archive; give its address with archive")
    if not url:
        return None
    if not url.startswith(("s3://", "gs://", "az://", "/")):
        raise BadOption(f"archive is s3://bucket/prefix, gs://…, az://…, or the path of a folder from /, not {url!r}")
    return ArchiveAddress(url, tuple(sorted(options.items())))


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        lower = name.lower()
        if lower in _TABLE_PROPERTIES:
            raise BadOption(
                "CREATE TABLE … USING driftq: Spark does not keep the options of a Python data source in its catalog, "
                "so such a table could not be read. Use CREATE TEMPORARY VIEW orders USING driftq OPTIONS "
                "(subscribe 'orders')"
            )
        if lower in NAMES or lower == "path":
            continue
        raise BadOption(f"the driftq source has no option {name}; {suggested_option(lower, NAMES, _ALIASES)}")


def suggested_option(lower: str, names: Mapping[str, str], aliases: Mapping[str, str]) -> str:
    """The option that was probably meant. `names` are by their lower case; `aliases` has names of other systems."""
    if lower in aliases:
        return f"did you mean {aliases[lower]}?"
    close = closest(lower, names, 1)
    return f"did you mean {names[close[0]]}?" if close else f"the options are {', '.join(names.values())}"


def _subscription(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], str, tuple[tuple[str, int], ...], tuple[str, ...]]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign", "stream") if name.lower() in given]
    if len(ways) != 1:
        given_ways = f"{' and '.join(ways)} are given" if ways else "none is given"
        raise BadOption(
            f"use exactly one of the options subscribe, subscribePattern, assign, stream ({given_ways}); "
            'for one topic: .option("subscribe", "orders")'
        )
    way, text = ways[0], given[ways[0].lower()]
    if way == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption(f"subscribePattern {text!r} is not a regular expression: {error}") from None
        return (), text, (), ()
    if way == "assign":
        return (), "", _assigned(text), ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise BadOption(f"{way} is empty")
    if way == "subscribe":
        return names, "", (), ()
    paths = tuple(name.strip("/") for name in names)
    for path in paths:
        if "*" in path and (path.count("*") > 1 or not f"/{path}".endswith("/*")):
            raise BadOption(f"stream {path!r}: a star is only allowed at the end, as in runs/*")
    return (), "", (), paths


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        logs = [(topic, int(partition)) for topic, partitions in json.loads(text).items() for partition in partitions]
    except (ValueError, TypeError, AttributeError):
        raise BadOption(f'assign is written like {{"orders":[0,1]}}, not {text!r}') from None
    if not logs or any(partition < 0 for _, partition in logs):
        raise BadOption(f'assign names no partition: {text!r}; it is written like {{"orders":[0,1]}}')
    return tuple(dict.fromkeys(logs))


def _offsets(name: str, text: str) -> int | Offsets:
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        offsets = {(t, int(p)): int(o) for t, partitions in json.loads(text).items() for p, o in partitions.items()}
    except (ValueError, TypeError, AttributeError):
        example = '{"orders":{"0":5,"1":-2}}'
        raise BadOption(f"{name} is earliest, latest or JSON like {example}, not {text!r}") from None
    if any(offset < EARLIEST or partition < 0 for (_, partition), offset in offsets.items()):
        raise BadOption(f"{name} has an impossible number: {text!r}; -2 is earliest, -1 is latest")
    if name == "endingOffsets" and EARLIEST in offsets.values():
        raise BadOption("endingOffsets cannot be earliest (-2): nothing would be read")
    return offsets


def _time_ms(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text)
    try:
        return from_rfc3339(text.strip())
    except ValueError:
        example = "2030-01-31T12:00:00Z"
        raise BadOption(f"{name} is a time like {example} or milliseconds since 1970, not {text!r}") from None


def _count(name: str, given: Mapping[str, str]) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadOption(f"{name} is a number from 1 up, not {text!r}")
    return int(text)


def _quantity(name: str, text: str, units: Units, example: str) -> int:
    quantity = parse_quantity(text.strip().lower(), units)
    if not quantity:
        raise BadOption(f"{name} is written like {example}, not {text!r}")
    return quantity


def _bytes(name: str, given: Mapping[str, str], default: int | None) -> int | None:
    text = given.get(name.lower())
    return default if text is None else quantity_bytes(name, text)


def quantity_bytes(name: str, text: str, bytes_max: int | None = None) -> int:
    """Bytes, or a number with k, m or g; at most `bytes_max`."""
    size_bytes = _quantity(name, text, SPARK_SIZE_BYTES, "1048576, 64m or 1g")
    if bytes_max is not None and size_bytes > bytes_max:
        raise BadOption(f"{name} is at most {bytes_max} bytes, not {text!r}")
    return size_bytes


def duration_ms(name: str, text: str) -> int:
    """Milliseconds, or a number with ms, s, m, h or d."""
    return _quantity(name, text, SPARK_DURATION_MS, "30000, 30s or 5m")


def flag(name: str, text: str) -> bool:
    """`true` or `false` in any case."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise BadOption(f"{name} is true or false, not {text!r}")
    return word == "true"

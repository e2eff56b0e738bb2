"""The documentation of the server itself, of topics, groups and stored records."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from driftq.server.openapi.operation import (
    DONE,
    JSON,
    NUMBERED_PAGE,
    PAGE,
    PLAIN,
    READ_ERRORS,
    TAR,
    TOPIC,
    WRITE_ERRORS,
    Operation,
    Operations,
    Query,
    ReplyDoc,
    as_json,
    sorted_by,
)
from driftq.wire import groups, server_info, topics
from driftq.wire.fields import Natural
from driftq.wire.produce import PACKED_RANGE_TYPE

SERVER_OPERATIONS: Operations = {
    ("GET", "/v1/healthz"): Operation(
        "Liveness",
        "Answers as long as the process runs.",
        "server",
        {200: ReplyDoc("The process is alive.", server_info.HealthReply)},
    ),
    ("GET", "/v1/readyz"): Operation(
        "Readiness",
        "Fails with 503 while the server recovers or stops, and while the disk is full or does not keep up.",
        "server",
        {200: ReplyDoc("The server accepts work.", server_info.ReadinessReply)},
    ),
    ("GET", "/v1/version"): Operation(
        "Version and durability",
        "The version and commit of the server, and whether it writes to disk.",
        "server",
        {200: ReplyDoc("The server's version and durability.", server_info.VersionReply)},
    ),
    ("GET", "/v1/clock"): Operation(
        "The broker's clock",
        "The broker's time never runs backwards. If the machine's clock jumps, the two differ.",
        "server",
        {200: ReplyDoc("The broker's time, the machine's time, and their difference.", server_info.ClockInfo)},
    ),
    ("POST", "/v1/clock/accept"): Operation(
        "Accept the machine's clock",
        "Sets the broker's time to the machine's. Running leases keep the time they had left.",
        "server",
        {200: ReplyDoc("The broker's time is the machine's time.", server_info.ClockInfo)},
    ),
    ("GET", "/v1/backup"): Operation(
        "Backup",
        "A copy of the broker's data, made while it runs. Everything that was acknowledged before the request is in "
        "it. The archive unpacks to a data folder. Its last member is `FORMAT`; without it, it was cut short. One "
        "backup at a time.",
        "server",
        {200: ReplyDoc("The data folder as a tar archive.", bytes, TAR, ("Driftq-Lsn",))},
        errors=(409,),
    ),
    ("GET", "/v1/metrics"): Operation(
        "Metrics",
        "All metrics of the server in the text format of Prometheus.",
        "server",
        {200: ReplyDoc("The metrics.", str, PLAIN)},
    ),
    ("GET", "/v1/openapi.json"): Operation(
        "This document",
        "The OpenAPI document of the server.",
        "server",
        {200: ReplyDoc("An OpenAPI 3.1 document.", dict[str, Any])},
    ),
    ("GET", "/v1/docs"): Operation(
        "This document as a web page",
        "The API reference for people, made from the OpenAPI document.",
        "server",
        {200: ReplyDoc("An HTML page.", str, "text/html")},
    ),
    ("GET", "/v1/explain"): Operation(
        "Explain why a message is not delivered",
        "Lists every reason that keeps a message from being delivered now, and when each one ends.",
        "server",
        {200: ReplyDoc("The state in each group, with the gates that hold the message back.", server_info.Explanation)},
        query=(
            TOPIC,
            Query("partition", Natural, "The partition.", True),
            Query("offset", Natural, "The offset of the message.", True),
            Query("group", str, "Only this group. All groups if absent."),
            Query("task", str, "The task that a claim would ask for."),
            Query("label", str, "The label that a claim would ask for."),
        ),
        errors=READ_ERRORS,
    ),
}

TOPIC_OPERATIONS: Operations = {
    ("GET", "/v1/topics"): Operation(
        "List topics",
        "Without `limit` and `after` all names are returned at once. With `details=true` a page with figures, sorted "
        "by any of them; `after` is then the number of topics on the pages before.",
        "topics",
        {200: ReplyDoc("The names of topics, sorted.", topics.TopicsReply)},
        query=(*PAGE, *sorted_by(*topics.TOPIC_ORDERS)),
        errors=(400,),
    ),
    ("POST", "/v1/topics"): Operation(
        "Create a topic",
        "Creating a topic that exists with the same number of partitions changes nothing.",
        "topics",
        {
            201: ReplyDoc("The topic was created.", topics.TopicReply),
            200: ReplyDoc("The topic existed.", topics.TopicReply),
        },
        as_json(topics.TopicRequest),
        either=True,
        query=(
            Query("name", str, "The name of the topic."),
            Query("partitions", Annotated[int, Meta(ge=1, le=1_024)], "The number of partitions. 1 if absent."),
        ),
        errors=(400, 409, 429),
    ),
    ("GET", "/v1/topics/{topic}"): Operation(
        "Describe a topic",
        "Its partitions with their offsets and backlog, its groups, its settings and its dead letters.",
        "topics",
        {200: ReplyDoc("The topic's description.", topics.TopicInfo)},
        errors=(404,),
    ),
    ("PATCH", "/v1/topics/{topic}"): Operation(
        "Change a topic's settings",
        "Fields that are missing stay as they are.",
        "topics",
        {200: ReplyDoc("The topic's description after the change.", topics.TopicInfo)},
        as_json(topics.TopicChange),
        errors=WRITE_ERRORS,
    ),
    ("DELETE", "/v1/topics/{topic}"): Operation(
        "Delete a topic",
        "Its messages, groups and dead letters are deleted with it.",
        "topics",
        DONE,
        errors=(400, 404, 409),
    ),
    ("POST", "/v1/topics/{topic}/purge"): Operation(
        "Purge a topic",
        "Drops every message for every group, in one write: also those under a lease, in backoff or delayed. Offsets "
        "continue. Dead letters stay; they are a topic of their own, `dlq.<topic>`, that can be purged too. `dry_run` "
        "only counts.",
        "topics",
        {200: ReplyDoc("How many messages were dropped.", topics.PurgeReply)},
        as_json(topics.PurgeRequest),
        body_optional=True,
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/topics/{topic}/move"): Operation(
        "Move messages to another topic",
        "Each message is produced to the other topic and settled for every group of its own, in one write, so a move "
        "can be interrupted and repeated. A message under a lease stays. `dry_run` only counts.",
        "topics",
        {200: ReplyDoc("How many were moved, and which failed.", topics.MoveReply)},
        as_json(topics.MoveRequest),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/offsets"): Operation(
        "Offsets of a topic's partitions",
        "With `at`, also the first offset at or after a time. With `last`, also what identifies the last batch: a "
        "reader that keeps it notices that the broker was restored from an older copy.",
        "records",
        {200: ReplyDoc("The start and the end of each partition.", topics.OffsetsReply)},
        query=(Query("at", str, "An RFC 3339 time."), Query("last", bool, "Identify the last batches.")),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/offsets"): Operation(
        "Offsets of many topics",
        "The start, the end and the size of each partition of up to 1,000 topics, for readers of many topics. Changes "
        "nothing.",
        "records",
        {200: ReplyDoc("The topics that exist, in the order of the request.", topics.TopicOffsetsReply)},
        as_json(topics.OffsetsRequest),
        errors=(400,),
    ),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records"): Operation(
        "Read packed records of a partition",
        "For readers that keep their own offsets. Returns whole batches, so the first may begin before `offset`.",
        "records",
        {
            200: ReplyDoc(
                "Packed batches, one after the other.",
                bytes,
                PACKED_RANGE_TYPE,
                ("Driftq-Next-Offset", "Driftq-Start-Offset", "Driftq-End-Offset"),
                ((JSON, topics.ArchivedRange),),
            )
        },
        query=(
            Query("offset", Natural, "The first offset to read. 0 if absent."),
            Query("end", Natural, "The offset to stop before."),
            Query("max_bytes", Natural, "Approximate size of the reply. 4 MiB if absent, 16 MiB at most."),
            Query("wait_ms", Natural, "Wait this long for a new record at the end. 60,000 at most."),
            Query("locate", bool, "Where records are, as JSON, if they are only in the archive."),
        ),
        errors=(400, 404, 410),
    ),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/messages"): Operation(
        "Peek at messages of a partition",
        "Returns messages without claiming them.",
        "records",
        {200: ReplyDoc("The last messages, or those from `offset` on.", topics.MessagesReply)},
        query=(
            Query("offset", Natural, "The first offset to show. The last messages if absent."),
            Query("limit", Annotated[int, Meta(ge=1, le=1_000)], "Messages at most. 10 if absent."),
        ),
        errors=(400, 404, 410),
    ),
}

GROUP_OPERATIONS: Operations = {
    ("GET", "/v1/groups"): Operation(
        "List groups",
        "The groups of all topics, or of one topic, with their lag. With `details=true` also their rates, sorted by "
        "any figure; `after` is then the number of groups on the pages before.",
        "groups",
        {200: ReplyDoc("A page of groups.", groups.GroupsReply)},
        query=(Query("topic", str, "Only the groups of this topic."), *NUMBERED_PAGE, *sorted_by(*groups.GROUP_ORDERS)),
        errors=(400,),
    ),
    ("POST", "/v1/groups/offsets"): Operation(
        "Commit the offsets of a reader",
        "For readers that keep their own offsets, such as Spark queries: makes their progress a group with a lag, in "
        "many topics at once. Creates the group where it does not exist. Nothing can be claimed from such a group, and "
        "a group that workers claim from cannot commit (409). An offset past the end is refused (400).",
        "groups",
        DONE,
        as_json(groups.CommitOffsetsRequest),
        errors=WRITE_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/groups"): Operation(
        "List the groups of a topic",
        "The groups of one topic, with their lag.",
        "groups",
        {200: ReplyDoc("A page of groups.", groups.GroupsReply)},
        query=NUMBERED_PAGE,
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/groups/{group}"): Operation(
        "Describe a group",
        "Its lag in messages and in time, its messages in flight and waiting, for each partition.",
        "groups",
        {200: ReplyDoc("The group's description.", groups.GroupInfo)},
        errors=(404,),
    ),
    ("DELETE", "/v1/topics/{topic}/groups/{group}"): Operation(
        "Delete a group", "Its progress is deleted with it.", "groups", DONE, errors=READ_ERRORS
    ),
    ("GET", "/v1/topics/{topic}/groups/{group}/states"): Operation(
        "States of a group's messages",
        "The state of each message in a range of a partition, as columns.",
        "groups",
        {200: ReplyDoc("A page. The next one starts at `next_offset`, unless that is `end`.", groups.StatesInfo)},
        query=(
            Query("partition", Natural, "The partition. 0 if absent."),
            Query("offset", Natural, "The first offset. The group's floor if absent."),
            Query("end", Natural, "The offset to stop before. The end of the partition if absent."),
            Query(
                "limit",
                Annotated[int, Meta(ge=1, le=10_000)],
                "Settled ranges and pending messages at most. 1,000 if absent.",
            ),
        ),
        errors=READ_ERRORS,
    ),
    ("GET", "/v1/topics/{topic}/groups/{group}/lanes"): Operation(
        "Lag of a group by lane",
        "What is left to do of each priority, task, label and tenant, over all partitions.",
        "groups",
        {200: ReplyDoc("The lanes, the largest first.", groups.LanesReply)},
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/seek"): Operation(
        "Move a group to another offset",
        "The group continues at the start, at the end, at a time, or at an offset of one partition.",
        "groups",
        DONE,
        as_json(groups.SeekRequest),
        errors=READ_ERRORS,
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/pause"): Operation(
        "Pause a group", "No message is delivered to the group until it is resumed.", "groups", DONE, errors=READ_ERRORS
    ),
    ("POST", "/v1/topics/{topic}/groups/{group}/resume"): Operation(
        "Resume a group", "Messages are delivered to the group again.", "groups", DONE, errors=READ_ERRORS
    ),
}

OPERATIONS: Operations = {**SERVER_OPERATIONS, **TOPIC_OPERATIONS, **GROUP_OPERATIONS}

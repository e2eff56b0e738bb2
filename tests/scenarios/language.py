"""The language of the transcripts: one line is one command. The .txt files are its examples.

`verb name word word option=value`. A message is named `partition:offset` or `partition:first-end`. Values of produced
records are the words. This module only builds commands from lines; the broker decides.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from msgspec.structs import replace

from driftq.core.model import access as a
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.model import schedules as d
from driftq.core.model import tenants as t
from driftq.core.model.queries import ListStreams, ReadProducer, ReadStates, ReadStream
from driftq.core.model.schedule_facts import ScheduledMessage, SchedulePlan, ScheduleSpec, ScheduleTimes
from driftq.core.model.tenant_facts import TenantQuotas
from driftq.core.state.idempotency_keys import job_key
from driftq.testing.clock import START_MS
from driftq.wire.audit import AuditRecord
from driftq.wire.message import Envelope, Head, Job, RetryPolicy
from driftq.wire.tenants import QUOTAS
from tests.support.broker_fixture import packed

Options = dict[str, str]


class Line:
    """A parsed line: verb, words and options."""

    def __init__(self, text: str) -> None:
        words = shlex.split(text)
        self.text = text
        self.verb = words[0]
        self.words = [word for word in words[1:] if "=" not in word]
        self.options: Options = dict(word.split("=", 1) for word in words[1:] if "=" in word)

    def number(self, name: str, default: int | None = None) -> int | None:
        return int(self.options[name]) if name in self.options else default

    def count(self, name: str, default: int = 0) -> int:
        return int(self.options.get(name, default))

    def text_of(self, name: str, default: str = "") -> str:
        return self.options.get(name, default)

    def yes(self, name: str) -> bool:
        return self.options.get(name) == "yes"


def command_of(text: str, now_ms: int) -> c.Command:
    """`by=NAME` says who asks: the command is audited."""
    line = Line(text)
    command = BUILDERS[line.verb](line, now_ms)
    if "by" in line.options:
        command = replace(command, audit=AuditRecord(action=line.verb, name=line.words[0], who=line.text_of("by")))
    return command


# --- topics and groups ---


def _policy(text: str) -> RetryPolicy:
    """attempts/backoff/max backoff/jitter, as in 3/100/1000/none"""
    given = text.split("/")
    attempts, backoff, cap, jitter = [*given, *("0", "0", "0", "none")[len(given) :]]
    return RetryPolicy(int(attempts), int(backoff), int(cap), jitter)  # type: ignore[arg-type]


def _config(line: Line) -> f.TopicConfig:
    names = (
        "retention_ms",
        "retention_bytes",
        "lease_ms",
        "in_flight_max",
        "backlog_messages_max",
        "backlog_bytes_max",
    )
    retry = _policy(line.options["retry"]) if "retry" in line.options else None
    return f.TopicConfig(
        *(line.count(name) for name in names),
        retry,
        line.yes("history"),
        line.text_of("fair"),
        line.text_of("keep_unread"),
    )


def _start(text: str, now_ms: int) -> str | int:
    return now_ms + int(text[1:]) if text[:1] == "@" else text


def _create_topic(line: Line, now_ms: int) -> c.Command:
    return c.CreateTopic(line.words[0], line.count("partitions", 1), _config(line))


def _configure(line: Line, now_ms: int) -> c.Command:
    return c.ConfigureTopic(line.words[0], _config(line))


def _trim(line: Line, now_ms: int) -> c.Command:
    if "path" in line.options:
        return c.TrimStream(line.text_of("path"), line.count("to"))
    return c.TrimTopic(line.words[0], line.count("partition"), line.count("to"))


def _group(line: Line, now_ms: int) -> c.Command:
    return c.CreateGroup(*line.words[0].split("/"), _start(line.text_of("start", "earliest"), now_ms))


def _seek(line: Line, now_ms: int) -> c.Command:
    to = line.options["to"]
    target = int(to) if to.isdigit() else _start(to, now_ms)
    return c.SeekGroup(*line.words[0].split("/"), target, line.number("partition"))


def _commit_offsets(line: Line, now_ms: int) -> c.Command:
    """`commit-offsets GROUP t:0:5 u:1:7`."""
    offsets = [word.rsplit(":", 2) for word in line.words[1:]]
    return c.CommitOffsets(line.words[0], tuple((topic, int(log), int(offset)) for topic, log, offset in offsets))


# --- producing ---


def _head(line: Line) -> Head | None:
    envelope = Envelope(retry_policy=_policy(line.options["policy"])) if "policy" in line.options else None
    job = Job(line.text_of("id"), line.text_of("task")) if {"job", "id"} & set(line.options) else None
    return Head(envelope=envelope, job=job) if envelope or job else None


def _marks(line: Line, count: int, now_ms: int) -> tuple[f.RecordSchedule, ...]:
    names = {"priority", "task", "label", "delay_ms", "deadline_ms", "id", "tenant", "timeout_ms"}
    if not names & set(line.options):
        return ()
    delay, deadline = line.number("delay_ms"), line.number("deadline_ms")
    return tuple(
        f.RecordSchedule(
            index,
            line.count("priority"),
            line.text_of("task"),
            line.text_of("label"),
            now_ms + delay if delay is not None else 0,
            now_ms + deadline if deadline is not None else 0,
            line.text_of("tenant"),
            tracked="id" in line.options,
            timeout_ms=line.count("timeout_ms"),
        )
        for index in range(count)
    )


def _by(line: Line) -> f.ProducerSequence | None:
    """name/epoch/seq; the epoch `-` is left to the server. The digest is the text of the words, unless given."""
    if "producer" not in line.options:
        return None
    name, epoch, seq = line.options["producer"].split("/")
    digest = sum(map(ord, " ".join(line.words[1:])))
    return f.ProducerSequence(name, -1 if epoch == "-" else int(epoch), int(seq), digest)


def _once(line: Line, topic: str) -> c.ProduceKey | None:
    if "once" not in line.options:
        return None
    tenant, _, key = line.options["once"].rpartition("/")
    crc = sum(map(ord, " ".join(line.words[1:])))
    digest = line.number("digest", crc)
    return c.ProduceKey(tenant, topic, key, digest or 0, line.count("ttl_ms"), line.yes("strict"), crc)


def _job(line: Line, topic: str) -> c.ProduceKey | None:
    """The id of a job; `asked` is the topic that was asked for, if it was routed."""
    if "id" not in line.options:
        return None
    return c.ProduceKey("", line.text_of("asked", topic), job_key(line.options["id"]), 0, line.count("ttl_ms"))


def _produce(line: Line, now_ms: int) -> c.Produce:
    topic, *values = line.words
    key = line.text_of("key").encode()
    batch, count, payload_bytes = packed(*values, key=key, head=_head(line))
    marks = _marks(line, count, now_ms)
    return c.Produce(
        topic, batch, count, payload_bytes, key, line.number("partition"), _by(line), _once(line, topic), marks,
        _job(line, topic),
    )  # fmt: skip


# --- consuming ---


def _who(line: Line) -> tuple[str, str, str]:
    topic, group, owner = line.words[0].split("/")
    return topic, group, owner


def _held(line: Line) -> tuple[c.Held, ...]:
    runs = []
    for word in line.words[1:]:
        partition, _, run = word.partition(":")
        first, _, end = run.partition("-")
        runs.append(
            c.Held(
                int(partition),
                int(first),
                int(end) if end else int(first) + 1,
                line.text_of("token"),
                line.text_of("result").encode(),
                line.text_of("progress").encode(),
            )
        )
    return tuple(runs)


def _claim(line: Line, now_ms: int) -> c.Command:
    """claim t/g/w 0:1 0:4-6 token=t1: the messages are acked by the same command"""
    return c.Claim(
        *_who(line),
        line.count("max", 1),
        line.number("lease_ms"),
        _start(line.text_of("start", "earliest"), now_ms),
        line.options.get("task"),
        line.options.get("label"),
        _held(line),
    )


def _ack(line: Line, now_ms: int) -> c.Ack:
    return c.Ack(*_who(line), _held(line))


def _ack_through(line: Line, now_ms: int) -> c.Command:
    [run] = _held(line)
    return c.AckThrough(*_who(line), run.partition, run.first, run.token)


def _nack(line: Line, now_ms: int) -> c.Command:
    return c.Nack(*_who(line), _held(line), line.text_of("reason"), line.number("delay_ms"), line.text_of("traceback"))


def _release(line: Line, now_ms: int) -> c.Command:
    return c.ReleaseMessages(*_who(line), _held(line), not line.yes("unsent"), line.count("delay_ms"))


def _reject(line: Line, now_ms: int) -> c.Command:
    return c.RejectMessages(*_who(line), _held(line), line.text_of("reason"), line.text_of("traceback"))


def _extend(line: Line, now_ms: int) -> c.Command:
    return c.Extend(*_who(line), _held(line), line.number("lease_ms"))


def _keep(line: Line, now_ms: int) -> c.Command:
    topic, group, _ = _who(line)
    return c.Keep(topic, group, _held(line), now_ms + line.count("lease_ms", 1_000))


def _cancel(line: Line, now_ms: int) -> c.Command:
    partition, offset = line.words[1].split(":")
    return c.Cancel(line.words[0], int(partition), int(offset))


def _redrive(line: Line, now_ms: int) -> c.Command:
    """redrive dlq.t/group partition:offset,offset topic value value / next part only=group id=a: the messages go to
    partition 0 of the topic"""
    dead, group = line.words[0].split("/")
    parts = []
    for words in " ".join(line.words[1:]).split(" / "):
        place, topic, *values = words.split()
        partition, offsets = place.split(":")
        batch, count, payload_bytes = packed(*values)
        only = line.options.get("only", "")
        marks = tuple(f.RecordSchedule(index, group=only) for index in range(count)) if only else ()
        again = c.Produce(topic, batch, count, payload_bytes, partition=0, marks=marks, job=_job(line, topic))
        parts.append(v.RedrivePart(int(partition), tuple(map(int, offsets.split(","))), again))
    return v.Redrive(dead, group, tuple(parts))


def _retry(line: Line, now_ms: int) -> c.Command:
    """retry t 0:1,2,5"""
    partition, offsets = line.words[1].split(":")
    return v.RetryMessages(line.words[0], int(partition), tuple(map(int, offsets.split(","))))


def _move(line: Line, now_ms: int) -> c.Command:
    """move t 0:1,2 target value value / next part id=a: the messages go to partition 0 of the target"""
    topic = line.words[0]
    parts = []
    for words in " ".join(line.words[1:]).split(" / "):
        place, target, *values = words.split()
        partition, offsets = place.split(":")
        batch, count, payload_bytes = packed(*values)
        produce = c.Produce(target, batch, count, payload_bytes, partition=0, job=_job(line, target))
        parts.append(v.MovePart(int(partition), tuple(map(int, offsets.split(","))), produce))
    return v.MoveMessages(topic, tuple(parts))


def _delete_letters(line: Line, now_ms: int) -> c.Command:
    """delete-letters dlq.t/group 0:1 0:3-5"""
    topic, group = line.words[0].split("/")
    return v.DeleteDeadLetters(topic, group, _held(line))


def _states(line: Line, now_ms: int) -> c.Command:
    """states t/g 0:from-end limit=n"""
    topic, group = line.words[0].split("/")
    partition, _, run = line.words[1].partition(":")
    first, _, end = run.partition("-")
    offset, stop = (int(first) if first else None), (int(end) if end else None)
    return ReadStates(topic, group, int(partition), offset, stop, line.count("limit", 1_000))


# --- effects ---


def _key(line: Line) -> c.EffectKey:
    tenant, topic, group, key = line.words[0].split("/")
    return c.EffectKey(tenant, topic, group, key)


def _begin(line: Line, now_ms: int) -> c.Command:
    partition, _, offset = line.text_of("message").partition(":")
    of = (int(partition), int(offset)) if offset else (None, None)
    proof = (line.text_of("token"), line.number("fence"))
    return c.BeginEffect(_key(line), line.text_of("owner"), line.number("lease_ms"), *of, *proof)


def _commit(line: Line, now_ms: int) -> c.CommitEffect:
    return c.CommitEffect(_key(line), line.count("fence"), line.text_of("result").encode(), line.count("ttl_ms"))


def _fail(line: Line, now_ms: int) -> c.Command:
    return c.FailEffect(_key(line), line.count("fence"), line.text_of("error"))


def _outcome(line: Line, now_ms: int) -> c.Command:
    """Parts are separated by semicolons: `outcome: ack t/g/w 0:1; produce t x; append /s y; commit /t/g/k fence=1`. The
    last part may be `key k`. The digest is the text of what is not an ack."""
    texts = [part.strip() for part in line.text.partition(":")[2].split(";")]
    key = next((text.partition(" ")[2] for text in texts if text.startswith("key ")), "")
    parts = [command_of(text, now_ms) for text in texts if not text.startswith("key ")]
    asked = ";".join(text for text in texts if not text.startswith("ack "))
    return c.CommitOutcome(
        tuple(part for part in parts if isinstance(part, c.Ack)),
        tuple(part for part in parts if isinstance(part, c.Produce)),
        tuple(part for part in parts if isinstance(part, c.AppendStream)),
        tuple(part for part in parts if isinstance(part, c.CommitEffect)),
        key,
        asked.encode(),
    )


# --- streams ---


def _create_stream(line: Line, now_ms: int) -> c.Command:
    path, *values = line.words
    batch, count, payload_bytes = packed(*values) if values else (b"", 0, 0)
    expires = line.number("expires_ms")
    return c.CreateStream(
        path,
        line.text_of("type"),
        line.number("ttl_s"),
        now_ms + expires if expires is not None else None,
        line.text_of("expires_ms"),
        line.yes("closed"),
        line.options.get("source"),
        line.number("fork"),
        line.number("sub"),
        batch,
        count,
        payload_bytes,
    )


def _append(line: Line, now_ms: int) -> c.AppendStream:
    path, *values = line.words
    batch, count, payload_bytes = packed(*values) if values else (b"", 0, 0)
    content_type = line.text_of("type", "application/octet-stream" if values else "")
    return c.AppendStream(
        path, content_type, batch, count, payload_bytes, _by(line), line.text_of("stream_seq"), line.number("if_match"),
        line.yes("close"),
    )  # fmt: skip


def _delete(line: Line, now_ms: int) -> c.Command:
    name = line.words[0]
    if name.startswith("/"):
        return c.DeleteStream(name)
    if "/" in name:
        return c.DeleteGroup(*name.split("/"))
    return c.DeleteTopic(name)


# --- stages ---


def _stage(line: Line, now_ms: int) -> c.Command:
    writer, handle, target, *values = line.words
    batch, count, payload_bytes = packed(*values)
    where = {"path": target} if target.startswith("/") else {"topic": target, "partition": line.count("partition")}
    return c.Stage(writer, handle, batch, count, payload_bytes, ttl_ms=line.count("ttl_ms"), **where)  # type: ignore[arg-type]


def _publish(line: Line, now_ms: int) -> c.Command:
    writer, number, *handles = line.words
    return c.Publish(writer, int(number), tuple(handles), line.text_of("content"))


# --- access ---


def _token(line: Line, now_ms: int) -> c.Command:
    """token id secret grant grant expires_ms=500"""
    token_id, secret, *grants = line.words
    expires = line.number("expires_ms")
    return a.CreateAccessToken(
        token_id,
        line.text_of("name", token_id),
        tuple(grants),
        secret.encode(),
        tenant=line.text_of("tenant"),
        expires_ms=now_ms + expires if expires is not None else 0,
        first=line.yes("first"),
    )


def _narrow(line: Line, now_ms: int) -> c.Command:
    token_id, *grants = line.words
    expires = line.number("expires_ms")
    return a.NarrowAccessToken(token_id, tuple(grants) or None, now_ms + expires if expires is not None else None)


def _rotate(line: Line, now_ms: int) -> c.Command:
    token_id, secret = line.words
    return a.RotateAccessToken(token_id, secret.encode(), line.count("overlap_ms"))


def _quotas(line: Line) -> dict[str, int]:
    return {quota: amount for quota in QUOTAS if (amount := line.number(quota)) is not None}


# --- job batches ---


def _job_template(text: str) -> b.JobTemplate:
    """`topic:value`, or `topic:value:id`."""
    topic, value, *job_id = text.split(":")
    return b.JobTemplate(topic, topic, value.encode(), job_id=job_id[0] if job_id else "")


def _members(texts: list[str], group: str) -> tuple[b.JobTemplate | b.JobBatchTemplate, ...]:
    """Jobs, and nested groups as `name:(t:a,t:b)` or chains as `name:(t:a>t:b)`."""
    members: list[b.JobTemplate | b.JobBatchTemplate] = []
    for text in texts:
        name, _, inner = text.partition(":(")
        if not inner:
            members.append(_job_template(text))
            continue
        kind, mark = (b.CHAIN, ">") if ">" in inner else (b.GROUP, ",")
        jobs = tuple(_job_template(part) for part in inner.rstrip(")").split(mark))
        members.append(b.JobBatchTemplate(name, kind, group, jobs))
    return tuple(members)


def _job_batch(line: Line, now_ms: int) -> c.Command:
    """`batch ID t:a t:b kind=chain group=g on_complete=t:c open=yes`."""
    kind, group = b.CHAIN if line.text_of("kind") == "chain" else b.GROUP, line.text_of("group", "g")
    roles = ("on_complete", "on_success", "on_failure")
    messages = {role: _job_template(line.options[role]) for role in roles if role in line.options}
    members = _members(line.words[1:], group)
    template = b.JobBatchTemplate(line.words[0], kind, group, members, **messages, ttl_ms=line.count("ttl_ms"))
    return j.CreateJobBatch(template, not line.yes("open"), line.text_of("parent"), " ".join(line.words).encode())


def _add_jobs(line: Line, now_ms: int) -> c.Command:
    members = _members(line.words[1:], line.text_of("group", "g"))
    return j.AddToJobBatch(line.words[0], line.count("first"), members, line.yes("seal"))


# --- schedules ---


def _plan(line: Line) -> SchedulePlan:
    """`at=1000,2000`: since the scenario began."""
    given = line.text_of("at")
    times = tuple(START_MS + int(at) for at in given.split(",")) if given else ()
    return SchedulePlan(times, line.yes("final"), line.count("missed"))


def _schedule(line: Line, now_ms: int) -> c.Command:
    """`schedule NAME TOPIC VALUE at=…`. The core never looks at the expression."""
    name, topic, value = line.words
    message = ScheduledMessage(topic, value.encode(), b"", b"", f.RecordSchedule(0, tracked=True))
    times = ScheduleTimes(line.text_of("cron", "* * * * *"), timezone="UTC", jitter_ms=line.count("jitter"))
    window_ms = line.count("window", 366 * 86_400_000)
    spec = ScheduleSpec(message, times, line.text_of("catch_up", "last"), window_ms)  # type: ignore[arg-type]
    return d.CreateSchedule(name, spec, _plan(line), line.yes("replace"))


def _plan_schedule(line: Line, now_ms: int) -> c.Command:
    """`plan NUMBER at=…`."""
    return d.PlanSchedules((d.NextPlan(int(line.words[0]), line.count("revision"), _plan(line)),))


BUILDERS: dict[str, Callable[[Line, int], c.Command]] = {
    "topic": _create_topic,
    "configure": _configure,
    "trim": _trim,
    "group": _group,
    "seek": _seek,
    "commit-offsets": _commit_offsets,
    "pause": lambda line, now_ms: c.PauseGroup(*line.words[0].split("/"), True),
    "resume": lambda line, now_ms: c.PauseGroup(*line.words[0].split("/"), False),
    "produce": _produce,
    "claim": _claim,
    "ack": _ack,
    "ack-through": _ack_through,
    "nack": _nack,
    "release": _release,
    "reject": _reject,
    "extend": _extend,
    "keep": _keep,
    "cancel": _cancel,
    "redrive": _redrive,
    "retry": _retry,
    "purge": lambda line, now_ms: v.PurgeTopic(line.words[0]),
    "move": _move,
    "delete-letters": _delete_letters,
    "begin": _begin,
    "commit": _commit,
    "fail": _fail,
    "outcome:": _outcome,
    "stream": _create_stream,
    "append": _append,
    "read": lambda line, now_ms: ReadStream(line.words[0]),
    "list": lambda line, now_ms: ListStreams(line.words[0], line.text_of("after"), line.count("limit", 100)),
    "producer": lambda line, now_ms: ReadProducer(*line.words),
    "head": lambda line, now_ms: ReadStream(line.words[0], renews=False),
    "states": _states,
    "batch": _job_batch,
    "add": _add_jobs,
    "cancel-batch": lambda line, now_ms: j.CancelJobBatch(line.words[0]),
    "delete": _delete,
    "stage": _stage,
    "publish": _publish,
    "token": _token,
    "tenant": lambda line, now_ms: t.CreateTenant(line.words[0], TenantQuotas(**_quotas(line))),
    "set-tenant": lambda line, now_ms: t.ChangeTenant(line.words[0], _quotas(line)),
    "delete-tenant": lambda line, now_ms: t.DeleteTenant(line.words[0]),
    "open-audit": lambda line, now_ms: a.OpenAudit(_config(line)),
    "note": lambda line, now_ms: a.NoteAudit(
        (AuditRecord(action="access", address=line.words[0], result=line.words[1], count=line.count("count", 1)),)
    ),
    "narrow": _narrow,
    "rotate": _rotate,
    "revoke": lambda line, now_ms: a.RevokeAccessToken(line.words[0]),
    "used": lambda line, now_ms: a.NoteAccessTokens(tuple(line.words)),
    "schedule": _schedule,
    "plan": _plan_schedule,
    "pause-schedule": lambda line, now_ms: d.PauseSchedule(line.words[0]),
    "resume-schedule": lambda line, now_ms: d.PauseSchedule(line.words[0], paused=False),
    "run-schedule": lambda line, now_ms: d.RunSchedule(line.words[0], line.text_of("id", "r")),
    "delete-schedule": lambda line, now_ms: d.DeleteSchedule(line.words[0]),
    "forget": lambda line, now_ms: c.ForgetStages(line.words[0], tuple(line.words[1:])),
}

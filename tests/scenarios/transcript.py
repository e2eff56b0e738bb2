"""Plays a transcript: every `> ` line is a command; the lines after it are the exact reply and facts.

Times are shown as milliseconds since the scenario began (`@500`), batches as the values of their records. Besides
commands there are `limits`, `chance`, `wait` (time passes, with sweeps), `advance` (time passes, without sweeps),
`clock` (an operator sets it), `show`, `results` and `records`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import OutcomeRecorded
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected, Swept
from driftq.testing.clock import START_MS
from driftq.wire.message import RetryPolicy, decode_head
from driftq.wire.records import unpack
from tests.scenarios.language import Line, command_of
from tests.support.broker_fixture import BrokerFixture

TIMES = {
    "at_ms", "from_ms", "until_ms", "retry_at_ms", "expires_ms", "key_expires_ms", "next_ms", "not_before_ms",
    "deadline_ms", "expires_at_ms", "old_until_ms", "time_ms",
}  # fmt: skip
RANGES = {"ranges"}
HASHES = {"outcome", "digest"}


class TranscriptPlayer:
    """A broker fixture, and the text of its replies and facts."""

    def __init__(self, between: Callable[[BrokerFixture], None] | None = None) -> None:
        self.limits = BrokerLimits()
        self.fixture = BrokerFixture(self.limits)
        self.between = between

    def play(self, text: str) -> Iterator[str]:
        """The transcript as it should be: comments, blank lines and commands are kept, replies are written again."""
        for line in text.splitlines():
            if line.startswith("> "):
                yield line
                if self.between is not None:
                    self.between(self.fixture)
                yield from self._answer(line[2:])
            elif not line or line.startswith("#"):
                yield line

    def _answer(self, text: str) -> Iterator[str]:
        line = Line(text)
        match line.verb:
            case "limits":
                self._limit(line)
            case "chance":
                self.fixture.chance.fixed = float(line.words[0])
            case "wait":
                yield from self._wait(int(line.words[0]))
            case "retain":
                facts = self.fixture.regular_sweeps()
                yield f"  {shown(Swept((), len(facts)))}"
                yield from (f"  + {shown(fact)}" for fact in facts)
            case "advance":
                self.fixture.advance(int(line.words[0]), sweep=False)
            case "clock":
                yield from self._set_clock(START_MS + int(line.words[0]))
            case "show":
                yield from self._show(*line.words[0].split("/"))
            case "results":
                yield from self._results()
            case "records":
                yield from self._records(line)
            case _:
                decision = self.fixture.take(command_of(text, self.fixture.now_ms))
                yield f"  {shown(decision.reply)}"
                yield from (f"  + {shown(fact)}" for fact in decision.facts)

    def _set_clock(self, at_ms: int) -> Iterator[str]:
        decision = self.fixture.take(c.SetClock(at_ms))
        self.fixture.clock.set_to(at_ms)
        yield from (f"  + {shown(fact)}" for fact in decision.facts)

    def _limit(self, line: Line) -> None:
        """Limits are set before the first command."""
        assert not self.fixture.journal, "limits come first"
        values: dict[str, Any] = {name: float(text) for name, text in line.options.items() if name != "retry"}
        whole = {name: value if name == "retry_ratio" else int(value) for name, value in values.items()}
        if "retry" in line.options:
            attempts, backoff, cap, jitter = line.options["retry"].split("/")
            whole["retry"] = RetryPolicy(int(attempts), int(backoff), int(cap), jitter)  # type: ignore[arg-type]
        self.limits = msgspec.structs.replace(self.limits, **whole)
        self.fixture = BrokerFixture(self.limits)

    def _wait(self, milliseconds: int) -> Iterator[str]:
        """Time passes as in an engine: it stops at each deadline to sweep."""
        end_ms = self.fixture.now_ms + milliseconds
        while True:
            next_ms = self.fixture.broker.next_deadline_ms()
            if next_ms is None or next_ms > end_ms:
                break
            self.fixture.clock.set_to(max(next_ms, self.fixture.now_ms))
            command = self.fixture.broker.due(self.fixture.now_ms)
            if command is not None:
                facts = self.fixture.take(command).facts
                if facts:
                    yield f"  at @{self.fixture.now_ms - START_MS}"
                yield from (f"  + {shown(fact)}" for fact in facts)
        self.fixture.clock.set_to(end_ms)

    def _show(self, topic: str, group: str) -> Iterator[str]:
        """The state of every offset for a group."""
        state = self.fixture.broker.state
        for progress in state.topics[topic].groups[group].progress:
            end = state.logs[progress.log_id].end
            places = [f"{offset}:{progress.state_of(offset)[0].name.lower()}" for offset in range(progress.floor, end)]
            partition = state.logs[progress.log_id].partition
            yield f"  partition {partition}: floor {progress.floor} {' '.join(places)}".rstrip()

    def _results(self) -> Iterator[str]:
        """The results that are kept, and the progress of what runs."""
        state = self.fixture.broker.state
        for fact in (*state.results.snapshot(), *state.reports.snapshot()):
            yield f"  {shown(fact)}"

    def _records(self, line: Line) -> Iterator[str]:
        """What is in a partition, or in a stream with everything it inherited."""
        state = self.fixture.broker.state
        name = line.words[0]
        if name.startswith("/"):
            stream = state.streams.by_path[name]
            ranges = state.streams.resolve(stream, 0, state.logs[stream.log_id].end)
        else:
            log = state.logs[state.topics[name].log_ids[line.count("partition")]]
            ranges = [(log.log_id, log.start, log.end)]  # type: ignore[list-item]
        for log_id, first, end in ranges:
            for offset in range(first, end):
                record = self.fixture.reader.record(log_id, offset)
                letter = decode_head(record.head).dlq
                head = f" {decode_head(record.head)!r}" if record.head and letter is None else ""
                yield f"  {offset}: {record.value.decode()}{head}{' ' + shown(letter) if letter else ''}"


def shown(value: Any) -> str:
    """A struct as its name and the fields that differ from their defaults."""
    if isinstance(value, Rejected):
        details = "".join(f" {name}={detail}" for name, detail in value.details.items())
        return f"no: {value.code}{details} ({value.message})"
    fields = []
    for field in msgspec.structs.fields(value):
        content = getattr(value, field.name)
        if field.default is not msgspec.NODEFAULT and content == field.default:
            continue
        if isinstance(value, OutcomeRecorded) and field.name == "result":
            continue  # packed; a repeat of the outcome shows its content
        fields.append(f"{field.name}={_content(field.name, content)}")
    return " ".join((type(value).__name__, *fields))


def _content(name: str, content: Any) -> str:
    if name in TIMES and isinstance(content, int) and content:
        return f"@{content - START_MS}"
    if name == "times" and isinstance(content, tuple):
        return "[" + " ".join(f"@{at_ms - START_MS}" for at_ms in content) + "]"
    if name == "batch":
        return "[" + " ".join(record.value.decode() for record in unpack(content)) + "]"
    if name in ("ranges", "indexes"):
        return "[" + " ".join(str(a) if b == a + 1 else f"{a}-{b}" for a, b in content) + "]"
    if name == "how":
        return {f.ACKED: "acked", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}[content]
    if isinstance(content, msgspec.Struct):
        return f"({shown(content)})"
    if isinstance(content, tuple):
        return "[" + ", ".join(_content("", part) for part in content) + "]"
    if name in HASHES and isinstance(content, bytes):
        return content.hex()[:8]
    if isinstance(content, bytes):
        return repr(content.decode())
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, str):
        return repr(str(content).replace("\x1f", "|").replace("\x1e", ":"))
    return str(content)

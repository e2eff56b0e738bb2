"""What every command that talks to a server shares: which server, in what form to answer, what to say when it fails.

    @command.command()
    @click.argument("name")
    @asks
    def show(asked: Operation, name: str) -> None: ...

`asks` goes next to the function, so that its options come last. It knows no single command.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from driftq.cli import context_file
from driftq.cli.exit_codes import Exit, fail, flush_output
from driftq.cli.output import ReaderLeft
from driftq.settings.suggestions import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from driftq.client.api import DriftQ
    from driftq.client.errors import Refused

ANSWER_MS = 15_000
ONCE_MS = 5_000
MAKING = ("produce", "consume", "claim", "enqueue", "route", "set")  # commands that make sense with a new topic
COMPLETION_MS = 400  # a key press waits no longer for a server


class Invocation:
    """One call of one command."""

    def __init__(self, place: context_file.ServerAddress, as_json: bool) -> None:
        self.place = place
        self.as_json = as_json

    @cached_property
    def broker(self) -> DriftQ:
        return _connect(self.place, ANSWER_MS)

    def close(self) -> None:
        if "broker" in vars(self):
            self.broker.close()


def _connect(place: context_file.ServerAddress, answer_ms: int) -> DriftQ:
    """Nobody being there is said at once: a person can press a key again."""
    import driftq
    from driftq.client.transport.sansio import RetryOptions

    retry = RetryOptions(timeout_ms=answer_ms, deadline_ms=answer_ms, first_contact_ms=0)
    return driftq.connect(place.url, token=place.token, retry=retry)


def connect_once(place: context_file.ServerAddress) -> DriftQ:
    """For a question whose answer may be no: nothing is asked twice."""
    import driftq
    from driftq.client.transport.sansio import RetryOptions

    # A pause that is longer than the deadline is one that nobody waits for.
    pause_ms = 4 * ONCE_MS
    retry = RetryOptions(ONCE_MS, ONCE_MS, backoff_ms=pause_ms, backoff_max_ms=pause_ms, first_contact_ms=0)
    return driftq.connect(place.url, token=place.token, retry=retry)


def asks(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--url`, `--context`, `--json` and its first argument, an `Invocation`."""

    @click.option("--url", metavar="URL", help="The server (default: DRIFTQ_URL, the context, this machine).")
    @click.option("--context", "context_name", metavar="NAME", shell_complete=context_names, help="A server by name.")
    @as_json_option
    @functools.wraps(function)
    def run(*, url: str | None, context_name: str | None, as_json: bool, **words: Any) -> None:
        root = click.get_current_context().find_root().params
        if not (url or context_name):
            url, context_name = root.get("url"), root.get("context")
        with ended_well(as_json):
            asked = Invocation(context_file.resolve(url, context_name), as_json)
            try:
                with _answered(asked, words):
                    function(asked, **words)
            finally:
                asked.close()

    return run


def as_json_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--json`, here or before the name of the command."""
    return click.option(
        "--json", "as_json", is_flag=True, callback=lambda _, __, value: wants_json(value), help="JSON instead of text."
    )(function)


def wants_json(as_json: bool) -> bool:
    """Whether JSON was asked for, here or before the name of the command."""
    return as_json or bool(click.get_current_context().find_root().params.get("as_json"))


@contextmanager
def ended_well(as_json: bool = False) -> Iterator[None]:
    """Ends that any command may have: Ctrl-C, a reader that has seen enough, a context that is not there."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, ReaderLeft):
        flush_output()
        sys.exit(Exit.OK)
    except KeyboardInterrupt:
        flush_output()
        sys.exit(Exit.INTERRUPTED)
    except context_file.BadContexts as error:
        fail(Exit.USAGE, str(error), as_json=as_json)


@contextmanager
def _answered(asked: Invocation, words: dict[str, Any]) -> Iterator[None]:
    """Turn what the client raises into one sentence, what to do, and an exit code."""
    from driftq.client import errors

    try:
        yield
    except errors.NotConnected as error:
        hint = "Is the server running? Start one with `driftq serve`, or name another with --url or --context."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = "The server answers, but its certificate is not trusted. Name the one to trust: SSL_CERT_FILE=ca.pem"
        elif "[SSL" in str(error):
            hint = "Something answers, but not with TLS. A server without a certificate has an http:// URL."
        reason = str(error).partition(";")[0]
        fail(Exit.UNREACHABLE, f"{reason}, given by {asked.place.origin}", hint, error=error, as_json=asked.as_json)
    except errors.NotFound as error:
        fail(Exit.NOTHING_THERE, error.message, near(asked, words), error=error, as_json=asked.as_json)
    except errors.Refused as error:
        fail(_number(error), error.message, _remedy(error), error=error, as_json=asked.as_json)
    except errors.OutcomeUnknown as error:
        hint = "It may have happened, or not. Look before you repeat it, or give it an idempotency key."
        if asked.place.url.startswith("http://"):
            hint += "\n  If the server has a certificate, its URL begins with https://."
        fail(Exit.UNREACHABLE, str(error), hint, error=error, as_json=asked.as_json)
    except errors.DriftQError as error:
        fail(Exit.REFUSED, str(error), error=error, as_json=asked.as_json)


def _number(error: Refused) -> Exit:
    from driftq.client import errors

    if isinstance(error, errors.NotAllowed):
        return Exit.NOT_ALLOWED
    if isinstance(error, errors.ServerFailed):
        return Exit.FAILED
    if isinstance(error, errors.InvalidCall):
        return Exit.USAGE
    return Exit.IN_USE if error.retryable else Exit.REFUSED


def _remedy(error: Refused) -> str:
    from driftq.wire.errors import Code, Remedy

    if error.status in (401, 403):
        return "Give a token: DRIFTQ_TOKEN, or `driftq context add NAME URL --token …`."
    if error.details.get("commands"):
        return ""  # the message says what helps
    if error.code is Code.DEADLINE_EXCEEDED:
        return "The deadline of this message has passed already. Give a later --deadline, or none."
    known = {
        Remedy.RETRY_LATER: "Try again later.",
        Remedy.CLAIM_AGAIN: "The lease is over or somebody else's: claim the message again.",
        Remedy.READ_AGAIN: "Somebody was quicker: read the end and decide again.",
    }
    return known.get(error.remedy, "")


def near(asked: Invocation, words: dict[str, Any]) -> str:
    """What was probably meant, or how to make what is not there."""
    from driftq.client.errors import DriftQError

    topic, group = words.get("topic"), words.get("group")
    if words.get("path") and not topic:
        return f"Make it: driftq streams create {words['path']}. `driftq streams list` shows those there are."
    try:
        if topic:
            names = asked.broker.topics.list()
            if topic not in names:
                found = closest(topic, names)
                writes = click.get_current_context().info_name in MAKING
                cure = f"Make it: driftq topics create {topic}" if writes else "`driftq topics list` shows the topics."
                return f"Did you mean {' or '.join(found)}? {cure}" if found else cure
        if topic and group:
            names = [each.group for each in asked.broker.groups.list(topic)]
            found = closest(group, names) or names[:5]
            return f"Groups of {topic}: {', '.join(found)}" if found else f"Nobody has claimed from {topic} yet."
    except DriftQError:
        pass  # the refusal stands as it is; this was only to say more
    return ""


def confirmed(what: str, yes: bool) -> None:
    """What cannot be undone is asked for once more, if there is somebody to ask."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what}: this cannot be undone. Repeat with --yes.")
    click.confirm(f"{what}. This cannot be undone. Go on?", abort=True, err=True)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")

# --- completion -------------------------------------------------------------------------------------------------------


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return _items(sorted(context_file.load().known), incomplete)
    except context_file.BadContexts:
        return []


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offered(ctx, incomplete, lambda broker: broker.topics.list())


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    topic = ctx.params.get("topic") or ""
    return _offered(ctx, incomplete, lambda broker: [each.group for each in broker.groups.list(topic)])


def stream_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _offered(ctx, incomplete, lambda broker: [each.stream for each in broker.streams.list(incomplete).streams])


def _offered(ctx: click.Context, incomplete: str, names: Callable[[DriftQ], Sequence[str]]) -> list[CompletionItem]:
    from driftq.client.errors import DriftQError

    root = ctx.find_root().params
    try:
        place = context_file.resolve(
            ctx.params.get("url") or root.get("url"), ctx.params.get("context_name") or root.get("context")
        )
        with _connect(place, COMPLETION_MS) as broker:
            return _items(sorted(set(names(broker))), incomplete)
    except (DriftQError, context_file.BadContexts):
        return []


def _items(names: Sequence[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


topic_argument = click.argument("topic", shell_complete=topic_names)
group_argument = click.argument("group", shell_complete=group_names)

"""What all commands that talk to a server share: which server, text or JSON, and what to print if a call fails.

    @command.command()
    @click.argument("name")
    @broker_command
    def show(invocation: Invocation, name: str) -> None: ...

`broker_command` is the innermost decorator, so that its options come last in `--help`.
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

CALL_TIMEOUT_MS = 15_000
ONCE_TIMEOUT_MS = 5_000
TOPIC_WRITERS = (
    "produce",
    "consume",
    "claim",
    "enqueue",
    "route",
    "set",
)  # for these, suggest creating a topic that does not exist
COMPLETION_TIMEOUT_MS = 400  # a key press must not wait longer for a server


class Invocation:
    """One call of a command: the server, and whether to print JSON."""

    def __init__(self, address: context_file.ServerAddress, as_json: bool) -> None:
        self.address = address
        self.as_json = as_json

    @cached_property
    def broker(self) -> DriftQ:
        return _connect(self.address, CALL_TIMEOUT_MS)

    def close(self) -> None:
        if "broker" in vars(self):
            self.broker.close()


def _connect(address: context_file.ServerAddress, timeout_ms: int) -> DriftQ:
    """Does not retry a first connection: the user can run the command again."""
    from driftq.client.api import connect
    from driftq.client.transport.sansio import RetryOptions

    retry = RetryOptions(timeout_ms=timeout_ms, deadline_ms=timeout_ms, first_contact_ms=0)
    return connect(address.url, retry=retry, **address.options())


def connect_once(address: context_file.ServerAddress) -> DriftQ:
    """A client that never retries, for health checks."""
    from driftq.client.api import connect
    from driftq.client.transport.sansio import RetryOptions

    # A backoff longer than the deadline means that no retry is made.
    pause_ms = 4 * ONCE_TIMEOUT_MS
    retry = RetryOptions(
        ONCE_TIMEOUT_MS, ONCE_TIMEOUT_MS, backoff_ms=pause_ms, backoff_max_ms=pause_ms, first_contact_ms=0
    )
    return connect(address.url, retry=retry, **address.options())


def broker_command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: adds `--url`, `--context` and `--json`, and passes an `Invocation` as the first argument."""

    @click.option("--url", metavar="URL", help="URL of the server (default: DRIFTQ_URL, the context, this machine).")
    @click.option("--context", "context_name", metavar="NAME", shell_complete=context_names, help="Named server.")
    @click.option("--ca", metavar="FILE", help="Authorities to trust for https, in PEM (default: DRIFTQ_CA).")
    @click.option("--token-file", metavar="FILE", help="File with the token (default: DRIFTQ_TOKEN, the context).")
    @as_json_option
    @functools.wraps(function)
    def run(
        *,
        url: str | None,
        context_name: str | None,
        ca: str | None,
        token_file: str | None,
        as_json: bool,
        **options: Any,
    ) -> None:
        root = click.get_current_context().find_root().params
        if not (url or context_name):
            url, context_name = root.get("url"), root.get("context")
        with exit_cleanly(as_json):
            token_file = token_file or root.get("token_file")
            invocation = Invocation(context_file.resolve(url, context_name, ca or root.get("ca"), token_file), as_json)
            try:
                with _report_errors(invocation, options):
                    function(invocation, **options)
            finally:
                invocation.close()

    return run


def as_json_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--json`, after or before the name of the command."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=lambda _, __, value: json_requested(value),
        help="Print JSON instead of text.",
    )(function)


def json_requested(as_json: bool) -> bool:
    """Whether `--json` was given, after or before the name of the command."""
    return as_json or bool(click.get_current_context().find_root().params.get("as_json"))


@contextmanager
def exit_cleanly(as_json: bool = False) -> Iterator[None]:
    """Exit without a traceback on Ctrl-C, a closed pipe, or a missing context."""
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
def _report_errors(invocation: Invocation, options: dict[str, Any]) -> Iterator[None]:
    """Turn the client's errors into a message, a hint and an exit code."""
    from driftq.client import errors

    try:
        yield
    except errors.NotConnected as error:
        hint = "Is the server running? Start one with `driftq serve`, or choose another with --url or --context."
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            hint = (
                "The server answers, but its certificate is not trusted. To trust its authority: --ca ca.pem, or "
                "DRIFTQ_CA=ca.pem, or SSL_CERT_FILE=ca.pem"
            )
        elif "DRIFTQ_CERTIFICATE" in str(error):
            hint = (
                "The server wants a certificate of the client: set DRIFTQ_CERTIFICATE and DRIFTQ_KEY, or "
                "`driftq context add NAME URL --ca FILE --certificate FILE --key FILE`."
            )
        elif "[SSL" in str(error):
            hint = "The server answers, but not with TLS. Without a certificate its URL starts with http://."
        reason = str(error).partition(";")[0]
        fail(
            Exit.UNREACHABLE,
            f"{reason}, from {invocation.address.origin}",
            hint,
            error=error,
            as_json=invocation.as_json,
        )
    except errors.NotFound as error:
        fail(
            Exit.NOTHING_THERE,
            error.message,
            not_found_hint(invocation, options),
            error=error,
            as_json=invocation.as_json,
        )
    except errors.Refused as error:
        fail(_exit_code(error), error.message, _remedy(error), error=error, as_json=invocation.as_json)
    except errors.OutcomeUnknown as error:
        hint = "The call may or may not have succeeded. Check before you repeat it, or use an idempotency key."
        if invocation.address.url.startswith("http://"):
            hint += "\n  If the server uses TLS, its URL starts with https://."
        fail(Exit.UNREACHABLE, str(error), hint, error=error, as_json=invocation.as_json)
    except errors.DriftQError as error:
        fail(Exit.REFUSED, str(error), error=error, as_json=invocation.as_json)


def _exit_code(error: Refused) -> Exit:
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

    if error.status == 401:
        return (
            "Name the file of a valid token with --token-file or DRIFTQ_TOKEN_FILE, set DRIFTQ_TOKEN, or keep the "
            "token with its server: driftq context add NAME URL --token - < FILE"
        )
    if error.status == 403:
        return ""  # the message names the grant that is missing
    if error.details.get("commands"):
        return ""  # the message has the commands that help
    if error.code is Code.DEADLINE_EXCEEDED:
        return "The deadline of this message has already passed. Use a later --deadline, or none."
    hints = {
        Remedy.RETRY_LATER: "Try again later.",
        Remedy.CLAIM_AGAIN: "The lease has expired or belongs to another worker: claim the message again.",
        Remedy.READ_AGAIN: "Another client was faster: read the end of the stream and decide again.",
    }
    return hints.get(error.remedy, "")


def not_found_hint(invocation: Invocation, options: dict[str, Any]) -> str:
    """The name that was probably meant, or how to create what does not exist."""
    from driftq.client.errors import DriftQError

    topic, group = options.get("topic"), options.get("group")
    if options.get("path") and not topic:
        return f"Create it: driftq streams create {options['path']}. `driftq streams list` lists streams."
    try:
        if topic:
            names = invocation.broker.topics.list()
            if topic not in names:
                similar = closest(topic, names)
                writes = click.get_current_context().info_name in TOPIC_WRITERS
                remedy = f"Create it: driftq topics create {topic}" if writes else "`driftq topics list` lists topics."
                return f"Did you mean {' or '.join(similar)}? {remedy}" if similar else remedy
        if topic and group:
            names = [info.group for info in invocation.broker.groups.list(topic)]
            similar = closest(group, names) or names[:5]
            return f"Groups of {topic}: {', '.join(similar)}" if similar else f"{topic} has no groups yet."
    except DriftQError:
        pass  # the error is reported anyway; this was only a hint
    return ""


def confirm(action: str, yes: bool) -> None:
    """Ask before something that cannot be undone. Without a terminal, `--yes` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{action}: this cannot be undone. Add --yes to do it.")
    click.confirm(f"{action}. This cannot be undone. Continue?", abort=True, err=True)


yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")

# --- completion -------------------------------------------------------------------------------------------------------


def context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return _items(sorted(context_file.load().contexts), incomplete)
    except context_file.BadContexts:
        return []


def topic_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _completions(ctx, incomplete, lambda broker: broker.topics.list())


def group_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    topic = ctx.params.get("topic") or ""
    return _completions(ctx, incomplete, lambda broker: [info.group for info in broker.groups.list(topic)])


def stream_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _completions(
        ctx, incomplete, lambda broker: [info.stream for info in broker.streams.list(incomplete).streams]
    )


def _completions(ctx: click.Context, incomplete: str, names: Callable[[DriftQ], Sequence[str]]) -> list[CompletionItem]:
    from driftq.client.errors import DriftQError

    root = ctx.find_root().params
    try:
        address = context_file.resolve(
            ctx.params.get("url") or root.get("url"),
            ctx.params.get("context_name") or root.get("context"),
            token_file=ctx.params.get("token_file") or root.get("token_file"),
        )
        with _connect(address, COMPLETION_TIMEOUT_MS) as broker:
            return _items(sorted(set(names(broker))), incomplete)
    except (DriftQError, context_file.BadContexts):
        return []


def _items(names: Sequence[str], incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


topic_argument = click.argument("topic", shell_complete=topic_names)
group_argument = click.argument("group", shell_complete=group_names)

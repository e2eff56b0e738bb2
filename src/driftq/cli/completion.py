"""`driftq completion`: a shell completion script for commands, options, topics, groups and contexts."""

from __future__ import annotations

import click

NAME = "driftq"
VARIABLE = "_DRIFTQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that completes commands, options and names of topics, groups, streams and contexts.

    \b
    Examples:
      driftq completion bash > ~/.local/share/bash-completion/completions/driftq
      driftq completion zsh > "${fpath[1]}/_driftq"
      driftq completion fish > ~/.config/fish/completions/driftq.fish
    """
    from click.shell_completion import get_completion_class

    from driftq.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    completion = kind(main, {}, NAME, VARIABLE)
    click.echo(completion.source_template % completion.source_vars())

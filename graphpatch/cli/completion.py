"""`graphpatch completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from graphpatch.cli import options
from graphpatch.cli.say import say_lines

# Where each shell reads its completions, and what its user does once.
TURNED_ON = {
    "bash": "echo 'eval \"$(graphpatch completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(graphpatch completion zsh)\"' >> ~/.zshrc",
    "fish": "graphpatch completion fish > ~/.config/fish/completions/graphpatch.fish",
}
VARIABLE = "_GRAPHPATCH_COMPLETE"


@options.command("completion", "completion", "completion bash")
def command(
    shell: str | None = options.argument(type=click.Choice(list(TURNED_ON)), required=False),
) -> None:
    """Print the script with which a shell completes commands, options, files and gradients.

    Without SHELL: how to turn it on, once for each shell.
    """
    if shell is None:
        say_lines(f"{name:5} {how}" for name, how in TURNED_ON.items())
        return
    from graphpatch.cli import cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"this version of click completes nothing in {shell}")
    say_lines(made(cli, {}, "graphpatch", VARIABLE).source().splitlines())

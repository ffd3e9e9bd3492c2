"""The page on the command line: each command's help, as click has it."""

from __future__ import annotations

import inspect
import re

import click

from graphpatch.cli import COMMANDS, cli


def sections() -> str:
    """Return a section for each command."""
    return "\n\n".join(_section(name) for name in COMMANDS)


def _section(name: str) -> str:
    with click.Context(cli, info_name="graphpatch") as parent:
        command = cli.get_command(parent, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=parent) as context:
            usage = " ".join(command.collect_usage_pieces(context))
            flags = [one for one in command.params if isinstance(one, click.Option)]
            options = [found for one in flags if (found := one.get_help_record(context))]
    text = f"## {name}\n\n```text\n{context.command_path} {usage}\n```\n\n{_prose(command)}"
    if not options:
        return text
    rows = [f"| `{_cell(flags)}` | {_cell(does)} |" for flags, does in options]
    return "\n".join([f"{text}\n", "| option | does |", "|---|---|", *rows])


def _prose(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(_text(" ".join(part.split())) for part in paragraphs)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Text that Markdown would not read as HTML."""
    return re.sub(r"<(?=\w)", "&lt;", text)

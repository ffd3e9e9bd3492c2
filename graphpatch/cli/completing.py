"""What a shell completes: files, and names of the library. Imported as it is asked for."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

# Any path, `-` or URL is taken as it is typed; a shell completes files.
PATH = click.Path(readable=False)


def gradient_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """The gradients of the library that start so."""
    from graphpatch.gradients.library import LIBRARY

    return [
        CompletionItem(name, help=entry.purpose)
        for name, entry in LIBRARY.items()
        if name.startswith(typed)
    ]


def pattern_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """The ready patterns that start so, with `@` or without."""
    from graphpatch.match.ready import READY

    mark = "@" if typed.startswith("@") else ""
    return [
        CompletionItem(f"{mark}{name}", help=entry.purpose)
        for name, entry in READY.items()
        if f"{mark}{name}".startswith(typed)
    ]


def pattern_option(
    context: click.Context, parameter: click.Parameter, typed: str
) -> list[CompletionItem]:
    """The ready patterns, as a pattern spells them: with `@`."""
    return pattern_names(context, parameter, typed if typed.startswith("@") else f"@{typed}")

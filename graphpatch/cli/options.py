"""Options and arguments that several commands take, and what a shell completes for them."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from graphpatch.errors import RulesError
from graphpatch.formats.destination import JSON_MARK, Destination, marked, refuse_inputs
from graphpatch.formats.output import write_file

HEAD_BYTES = 4096

Declared = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A parameter of a command, as a decorator of it."""

# Any path, `-` or URL is taken as it is typed; a shell completes files.
PATH = click.Path(readable=False)


class Written(click.Path):
    """A path whose suffix says what is written, so that no other file is written over.

    `-`, where `is_piped` allows it, and what is there and neither a file nor a folder are taken.
    """

    def __init__(self, suffix: str, what: str, is_piped: bool = False) -> None:
        super().__init__(readable=False)
        self.suffix, self.what, self.is_piped = suffix, what, is_piped

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the path as it was typed. Raises BadParameter for another suffix."""
        text = str(value)
        path = Path(text)
        is_device = path.exists() and not (path.is_file() or path.is_dir())
        if path.suffix != self.suffix and not is_device and not (self.is_piped and text == "-"):
            self.fail(f"{text} gets {self.what}; name a {self.suffix} file", param, ctx)
        return text


RULES_FILE = Written(".json", "a rules file")
PAGE = Written(".html", "a page", is_piped=True)


def command(name: str, *examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Declare a command whose help ends with examples."""
    epilog = "\n".join(["\b", "Examples:", *(f"  graphpatch {example}" for example in examples)])
    return click.command(name, epilog=epilog)


def argument(name: str, metavar: str | None = None, **settings: Any) -> Declared:
    """Declare a path that a command takes, which a shell completes."""
    return click.argument(name, metavar=metavar, type=PATH, **settings)


def flag(name: str, says: str, **settings: Any) -> Declared:
    """Declare an option that is given or not: `--force`, or `--json as_json` for its parameter."""
    return click.option(*name.split(), is_flag=True, help=says, **settings)


def value(name: str, metavar: str, says: str, **settings: Any) -> Declared:
    """Declare an option with a value: `--feed`, or `--from sources` for its parameter."""
    return click.option(*name.split(), metavar=metavar, help=says, **settings)


MODEL = argument("model")
RULES = argument("rules")
MODELS = argument("models", "MODEL...", nargs=-1, required=True)
FROM = value("--from sources", "X", "The gradient with respect to this.", multiple=True)
TO = value("--to targets", "LOSS", "The gradient of this tensor.", multiple=True)
OUTPUT = value(
    "-o --output out", "PATH", "File or folder to write; `-` is standard output.", type=PATH
)
FORCE = flag("--force", "Replace what is there even if graphpatch did not write it.")
JSON = flag("--json as_json", "Print one JSON document.")
JSON_LINES = flag("--json as_json", "Print one JSON document; of many, a line each.")
RUN = flag("--run", "Run the gradients too; this needs TensorFlow.")
FEED = value("--feed", "FILE.npz", "Arrays by tensor name; others are seeded.", type=PATH)
UNSAFE = flag("--allow-unsafe-ops", "Run ops too that touch files or Python.")
PYTHON = flag("--allow-python", 'Accept {"python": ...} gradients; apply runs them.')
ALL = flag("--all every", "Print all, not the first of each kind.")
DRY_RUN = flag("--dry-run", "Do everything but write.")


def gradient_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the gradients of the library."""
    from graphpatch.gradients.library import LIBRARY

    return [
        CompletionItem(name, help=entry.purpose)
        for name, entry in LIBRARY.items()
        if name.startswith(typed)
    ]


def pattern_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the ready patterns, as a pattern spells them: with `@`."""
    from graphpatch.match.ready import READY

    return [
        CompletionItem(f"@{name}", help=entry.purpose)
        for name, entry in READY.items()
        if name.startswith(typed.removeprefix("@"))
    ]


def refuse_swapped(command: str, rules: str, models: tuple[str, ...]) -> None:
    """Raise RulesError where the first argument is a model, and the last one a rules file."""
    head = _head(rules)
    is_model = bool(head) and (any(byte < 9 for byte in head) or Path(rules).suffix == ".pbtxt")
    is_model = is_model or (Path(rules).is_dir() and any(Path(rules).glob("saved_model.pb*")))
    text = _head(models[-1]).removeprefix(codecs.BOM_UTF8).lstrip() if models else b""
    if is_model and text[:1] in (b"{", b"["):
        right = " ".join((models[-1], rules, *models[:-1]))
        raise RulesError(
            f"the arguments look swapped: {rules} is a model, and {models[-1]} a rules file; "
            f"write: graphpatch {command} {right}"
        )


def _head(path: str) -> bytes:
    """Return the first bytes of a file, or nothing for a pipe, which cannot be read twice."""
    try:
        if not Path(path).is_file():
            return b""
        with Path(path).open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:  # whoever reads the whole file says why that cannot be done
        return b""


def refuse_rules_file(path: str, force: bool, inputs: Mapping[str, str | None]) -> bool:
    """Return whether a rules file replaces one; OutputError where it may not, or is an input."""
    refuse_inputs(path, inputs)
    return Destination(path, force, is_marked=True).replaces()


def write_rules_file(path: str, document: Mapping[str, Any], tell: Callable[[], None]) -> None:
    """Write a rules file with graphpatch's mark, if `tell` can say that it is written."""
    text = json.dumps({**document, **JSON_MARK}, indent=2) + "\n"
    write_file(Path(path), [marked(text.encode())], confirm=tell)


def replaced(is_replaced: bool) -> str:
    """Return the words that stand behind the name of an output that replaces something."""
    return " (replaced)" if is_replaced else ""


def comma_separated(texts: tuple[str, ...]) -> list[str]:
    """Return the names in the values of an option, which may be repeated, or have commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]

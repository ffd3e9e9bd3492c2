"""Options and arguments that several commands take, and what a shell completes for them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from graphpatch.formats.destination import JSON_MARK, marked, refuse_inputs, replaces
from graphpatch.formats.output import writing_file

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
    """Declare a command whose parameters are its options, and whose help ends with examples."""
    epilog = "\n".join(["\b", "Examples:", *(f"  graphpatch {example}" for example in examples)])

    def declared(function: Callable[..., Any]) -> click.Command:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        for parameter in reversed(list(parameters)):
            function = parameter.default(parameter.name, parameter.annotation)(function)
        return click.command(name, epilog=epilog)(function)

    return declared


Texts = tuple[str, ...]


def argument(metavar: str | None = None, **settings: Any) -> Any:
    """Declare an argument, by default a path, which a shell completes; `Texts` are several."""
    settings.setdefault("type", PATH)
    return lambda name, of: click.argument(
        name, metavar=metavar, nargs=-1 if of == Texts else 1, **settings
    )


def option(spelled: str, says: str, **settings: Any) -> Any:
    """Declare an option as it is spelled: `-o --output PATH`. A bool is a flag, `Texts` several."""
    flags = [word for word in spelled.split() if word.startswith("-")]
    settings |= {"metavar": spelled.split()[-1]} if len(flags) < len(spelled.split()) else {}
    return lambda name, of: click.option(
        *flags, name, help=says, is_flag=of is bool or None, multiple=of == Texts, **settings
    )


MODEL = argument()
RULES = argument()
MODELS = argument("MODEL...", required=True)
NAMES = {"callback": lambda _context, _option, texts: tuple(comma_separated(texts)) or texts}
FROM = option("--from X", "The gradient with respect to this, or to several: a,b.", **NAMES)
TO = option("--to LOSS", "The gradient of this tensor, or of several: a,b.", **NAMES)
OUTPUT = option("-o --output PATH", "File or folder to write; `-` is standard output.", type=PATH)
FORCE = option("--force", "Replace what is there even if graphpatch did not write it.")
JSON = option("--json", "Print one JSON document.")
JSON_LINES = option("--json", "Print one JSON document; of many, a line each.")
RUN = option("--run", "Run the gradients too; this needs TensorFlow.")
FEED = option("--feed FILE.npz", "Arrays by tensor name; others are seeded.", type=PATH)
UNSAFE = option("--allow-unsafe-ops", "Run ops too that touch files or Python.")
NO_V2 = option("--no-control-flow-v2", "As after disable_control_flow_v2().")
PYTHON = option("--allow-python", 'Accept {"python": ...} gradients; apply runs them.')
ALL = option("--all", "Print all, not the first of each kind.")
DRY_RUN = option("--dry-run", "Do everything but write.")
JOBS = option("-j --jobs", "Processes; default: all cores.", type=click.IntRange(min=1))
SCHEDULER = option("--scheduler ADDRESS", "Use the workers of this Dask cluster.")
CHAINED = option(
    "--allow-chained-urls", "Open a file inside another one: zip://m.pb::s3://bucket/all.zip."
)


def refuse_both(jobs: int | None, scheduler: str | None) -> None:
    """Raise UsageError where both are to do the work."""
    if jobs is not None and scheduler is not None:
        raise click.UsageError("--jobs are processes of this machine; --scheduler has its own")


def gradient_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the gradients of the library."""
    from graphpatch.gradients.library import LIBRARY

    return _completed(LIBRARY.items(), typed)


def pattern_names(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the ready patterns, as a pattern spells them: with `@`."""
    from graphpatch.match.ready import READY

    return _completed(((f"@{name}", entry) for name, entry in READY.items()), typed)


def _completed(named: Iterable[tuple[str, Any]], typed: str) -> list[CompletionItem]:
    items = [CompletionItem(name, help=entry.purpose) for name, entry in named]
    typed = typed.removeprefix("@")
    return [item for item in items if item.value.removeprefix("@").startswith(typed)]


def checked_output(path: str, force: bool, inputs: Mapping[str, str | None]) -> str:
    """Return how a rules file or page is told of; OutputError where it may not be written there."""
    refuse_inputs(path, inputs)
    return named(path, replaces(path, force, is_marked=True))


def writing_rules(path: str | None, document: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Write a rules file with graphpatch's mark, which takes its name at the end; or nothing."""
    text = json.dumps({**document, **JSON_MARK}, indent=2) + "\n"
    return writing_file(Path(path), [marked(text.encode())]) if path else nullcontext()


def named(path: str, is_replaced: bool) -> str:
    """Return the name of an output, with a word where it replaces something."""
    return f"{path} (replaced)" if is_replaced else path


def beside(model: str, suffix: str) -> str:
    """Return the default output of a command: beside the model, with this end to its name."""
    path = Path(model) if Path(model).name not in {"", ".."} else Path(model).resolve()
    return str(path.with_name(f"{path.stem if path.is_file() else path.name}{suffix}"))


def comma_separated(texts: tuple[str, ...]) -> list[str]:
    """Return the names in the values of an option, which may be repeated, or have commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]

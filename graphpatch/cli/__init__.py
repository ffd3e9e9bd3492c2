"""The command line: one file a command, each imported when it is asked for."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import signal
import sys
from typing import Any, TypeGuard

import click

import graphpatch
from graphpatch import mapped
from graphpatch.cli.say import say_error, say_lines
from graphpatch.errors import CHANGED, GraphpatchError, did_you_mean
from graphpatch.later import imported

_KEPT: list[Any] = []  # the system calls it as long as the process lives


def report_cut_short() -> None:
    """Exit with a message, from now on, where a mapped file ends before its end.

    What lies behind the new end of a mapped file cannot be read: the system ends the process that
    tries (SIGBUS). Python cannot do anything about it afterwards, so this is done before.
    """
    if not hasattr(signal, "SIGBUS") or _KEPT:
        return
    import ctypes

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    call = ctypes.CDLL(None).signal
    call.argtypes, call.restype = [ctypes.c_int, kind], ctypes.c_void_p
    _KEPT.append(kind(_exit))
    call(signal.SIGBUS, _KEPT[0])


def _exit(_: int) -> None:
    # Nothing is imported here: what is being written has been imported already.
    unfinished = sys.modules.get("graphpatch.formats.output")
    if unfinished is not None:
        unfinished.remove_mine()
    os.write(2, f"graphpatch: {CHANGED}\n".encode())
    os._exit(1)


# In the order of work: look, choose, patch, check, take off, hand on.
COMMANDS = {
    "ops": "list inputs, outputs and op types; describe single ops",
    "doctor": "say why a gradient is None, zero or an error, and what fixes it",
    "view": "write a page that shows what flows back and what rules change",
    "match": "show what rules, or a pattern typed here, match",
    "patterns": "list the ready patterns for `match`, and their forms",
    "gradients": "list the library of gradients: formula, parameters, use",
    "recipes": "list ready rules for whole methods, for `apply @NAME`",
    "references": "measure DeepLIFT's reference of each unit on an input",
    "apply": "patch models by the rules of a rules file",
    "verify": "compare a patched model with its original: bits, gradients",
    "check": "check that models are patched by the rules of a rules file",
    "diff": "compare two models: gradients first, then ops and weights",
    "revert": "write the original of a patched model, or take off one rule",
    "split": "split a gradient in parts at a cut, for several machines",
    "schema": "print the JSON Schema of rules files",
    "completion": "print the script that completes commands in your shell",
}

USAGE, BUG, INTERRUPTED = 2, 3, 130
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}
NO_FILE = {errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR}
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Commands(click.Group):
    """A group whose commands lie in modules of their own name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = imported(f"{__name__}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is typed. Raises UsageError with the nearest for none."""
        typed = args[0]
        if typed in COMMANDS or typed.startswith("-"):
            return super().resolve_command(ctx, args)
        hint = did_you_mean(typed, COMMANDS) or "; `graphpatch --help` lists the commands"
        if os.path.exists(typed):  # noqa: PTH110  (Path.exists raises for a long name)
            hint = f", but there is a file of that name; its ops: graphpatch ops {typed}"
        raise click.UsageError(f"no command is called {typed!r}{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print what each command does, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(graphpatch.__version__, package_name="graphpatch")
def cli() -> None:
    """Change the gradients of TensorFlow 1 graphs in their files: .pb, .pbtxt, .meta, SavedModel.

    `graphpatch COMMAND --help` describes a command.
    """


def main() -> None:
    """Run the command line. Exit 0: done; 1: the input is at fault; 2: wrong usage; 3: a bug."""
    # A process that reads one graph makes millions of objects and no garbage in cycles.
    gc.disable()
    # What TensorFlow logs is about itself; what it raises is told.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").addFilter(lambda record: record.levelno >= logging.ERROR)
    mapped.BEFORE_MAPPING.append(report_cut_short)
    code = _run() if _open_standard_streams() else GraphpatchError.exit_code
    gc.freeze()  # else Python looks through all that is left of them as it ends
    sys.exit(code)


def _open_standard_streams() -> bool:
    """Open those that are closed, so that no file of ours takes their number.

    Without standard output nothing can be told, so nothing is done: then this is False.
    """
    is_told = sys.stdout is not None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdin, sys.stderr = sys.stdin or open(0), sys.stderr or open(2, "w")  # noqa: SIM115
    if not is_told:
        say_error("standard output is closed; nothing was done")
    return is_told


def _run() -> int:
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # until here it just ends it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.main(prog_name="graphpatch", standalone_mode=False)
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)
        say_lines(text.getvalue().splitlines(), err=True)
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        return _failed(error)
    return code if isinstance(code, int) else 0


def is_of_streams(error: Exception) -> TypeGuard[OSError]:
    """Return whether a standard stream cannot be written; for files GraphpatchErrors say so."""
    no_room = isinstance(error, OSError) and error.errno in NO_ROOM
    return no_room or isinstance(error, BrokenPipeError)


def _failed(error: Exception) -> int:
    """Say what went wrong; the exit code for it."""
    if isinstance(error, GraphpatchError):
        say_error(error)
        return error.exit_code
    if is_of_streams(error):
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  (else Python tries again)
        say_error(f"cannot write standard output: {error.strerror}")
    elif isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
        say_error(f"the system lets no more files be opened: {error.strerror}")
    elif isinstance(error, OSError) and error.errno in NO_FILE and error.filename is not None:
        say_error(f"cannot use {os.fsdecode(error.filename)}: {error.strerror}")
    elif isinstance(error, RecursionError):
        say_error("the input is nested more deeply than graphpatch follows")
    elif isinstance(error, MemoryError) or _no_room_to_load(error):
        say_error("there is not enough memory for this input")
    else:
        import traceback

        say_lines(traceback.format_exc().splitlines(), err=True)
        say_error("this is a bug of graphpatch; please report the above")
        return BUG
    return GraphpatchError.exit_code


def _no_room_to_load(error: Exception) -> bool:
    """Return whether a library was not loaded because there is no memory to map it into."""
    said = ("failed to map segment", "cannot allocate memory")
    return isinstance(error, ImportError) and any(phrase in str(error).lower() for phrase in said)

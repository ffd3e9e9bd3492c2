"""What commands write and print, and whether it is whole: models, rules, pages, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.page.view import page
from graphpatch.rules import rules_in

EXPORTED, PARTS, EVENTS = "exported", "parts", "events"  # folders
PAGE, FIXED, SAVED = "page.html", "fixed.json", "saved.json"
PARTLY = "partly.pb"  # without one of the rules
OUTPUTS = (
    "out.pb", "back.pb", "original.pb", PARTLY, EXPORTED, PARTS, EVENTS, PAGE, FIXED, SAVED, "odd",
)  # fmt: skip
OPTIONS = ("-o", "--fix", "--save", "--tensorboard")
DATA = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.DOTALL)
MARKUP = re.compile(r"<\s*/?\s*(?:script|style|meta|img|iframe|svg|!--)", re.IGNORECASE)


def output_of(command: Sequence[str]) -> str:
    """Return the file or folder that a command is told to write; nothing where it is told none."""
    found = [command[command.index(one) + 1] for one in OPTIONS if one in command]
    return found[0] if found and found[0] != "-" else ""


def check_whole(path: str) -> None:
    """Raise where an output is not what its reader expects: any exception says how."""
    if path in (FIXED, SAVED):
        rules_in(Path(path).read_bytes(), path, allow_none=True)  # `--fix` may need none
    elif path == PAGE:
        check_page(Path(path).read_text(encoding="utf-8"))
    elif path not in (PARTS, EVENTS):
        graphpatch.load(path)


def check_page(text: str) -> None:
    """Raise where a page is cut off, has markup that a model wrote, or data that is not JSON."""
    unmarked, _, mark = text.rstrip().rpartition("\n")
    text = unmarked if mark.startswith("<!-- written by graphpatch") else text
    empty = MARKUP.findall(page({}, ""))
    assert MARKUP.findall(text) == empty, "markup of the model"
    assert text.rstrip().endswith("</html>"), "cut off"
    found = DATA.search(text)
    assert found is not None, "no data"
    strict(found[1])


def strict(text: str) -> Any:
    """Return the value of a JSON text as browsers read it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refuse)


def check_printed(out: bytes) -> None:
    """Raise where what --json printed is not one document, or one on each line."""
    text = out.decode()
    try:
        strict(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            strict(line)

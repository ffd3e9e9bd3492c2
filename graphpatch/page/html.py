"""The page: our HTML, CSS and JavaScript in one file, filled in with a document."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from graphpatch.shown import json_text

SCRIPTS = (
    "rows.js",
    "places.js",
    "lanes.js",
    "plots.js",
    "list.js",
    "search.js",
    "detail.js",
    "main.js",
)
PLACE = re.compile(r"\{(\w+)\}")
# What ends a script, or begins a comment in one, wherever it is in a text of the model.
HTML_ESCAPES = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}


def page(document: dict[str, Any], title: str) -> str:
    """The page of a document, with nothing in it that a browser would load from elsewhere.

    Its policy lets run the script of the page alone, whatever the names of a model are.
    """
    style, script = _file("page.css"), "\n".join(map(_file, SCRIPTS))
    parts = {
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'",
        "title": escape(title),
        "style": style,
        "document": as_script(document),
        "script": script,
    }
    return PLACE.sub(lambda found: parts[found[1]], _file("page.html"))


def as_script(document: Any) -> str:
    """A document as JSON in ASCII that cannot end the element that it is in."""
    return json_text(document, separators=(",", ":")).translate(HTML_ESCAPES)


@cache
def _file(name: str) -> str:
    return (resources.files("graphpatch.page") / "files" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

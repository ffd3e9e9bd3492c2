"""What a pattern matches in a small body, as names."""

from __future__ import annotations

from typing import Any

import msgspec

from graphpatch.graph.node import Body
from graphpatch.match.pattern.matcher import Finder
from graphpatch.match.pattern.syntax import forms
from graphpatch.match.select import Binding
from graphpatch.match.spec import Pattern
from graphpatch.protos import NodeDef
from tests import graphs


def bindings(body: Body, pattern: Any) -> list[Binding]:
    """The matches of a pattern, given as its text or as its JSON form."""
    read = pattern if isinstance(pattern, str) else msgspec.convert(pattern, Pattern)
    return [found for form in forms(read) for found in Finder(form).matches(body)]


def found(body: Body, pattern: Any) -> list[str]:
    """Of each match the names of its ops, in the pattern's order; those of a run in brackets."""
    return [_words(binding) for binding in bindings(body, pattern)]


def _words(binding: Binding) -> str:
    names = binding.body.heads.names
    runs = [[names[index] for index in indices] for indices in binding.bound]
    return " ".join(one[0] if len(one) == 1 else f"({' '.join(one)})" for one in runs)


def body(*nodes: NodeDef, inputs: str = "") -> Body:
    """A main graph; with `inputs`, the body of a function that has these arguments instead."""
    if not inputs:
        return graphs.main(*nodes)
    function = graphs.function("f", inputs.split(), nodes, {})
    return graphs.opened(graphs.graphdef(functions=[function])).functions["f"]

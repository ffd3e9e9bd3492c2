"""Gradient functions that tell when they run: for what TensorFlow differentiates in C++.

Python is not asked there which gradient an op has. So each op gets gradient functions of its own,
which give what they gave, and print a line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from graphpatch.names import OpKey

STDERR = 2
FIRED = "graphpatch fired "


def add_probes(graph_def: Any, places: Sequence[OpKey]) -> None:
    """Let the gradient function of each of these calls of functions print its number."""
    functions = {one.signature.name: one for one in graph_def.library.function}
    gradients = {one.function_name: one.gradient_func for one in graph_def.library.gradient}
    for number, (body, name) in enumerate(places):
        nodes = graph_def.node if body == "main" else functions[body].node_def
        node = next(one for one in nodes if one.name == name)
        forward, backward = functions[node.op], functions[gradients[node.op]]
        probe = f"{forward.signature.name}_probe_{number}"
        _copied(graph_def.library, forward, probe)
        _telling(_copied(graph_def.library, backward, f"{probe}_gradient"), number)
        graph_def.library.gradient.add(function_name=probe, gradient_func=f"{probe}_gradient")
        node.op = probe


def _copied(library: Any, function: Any, name: str) -> Any:
    found = library.function.add()
    found.CopyFrom(function)
    found.signature.name = name
    return found


def _telling(function: Any, number: int) -> None:
    """Print where the first gradient that it gives is computed."""
    for place, arg in enumerate(function.signature.output_arg):
        node = function.node_def.add(name=f"probe_{place}", op="Print")
        node.input.extend([function.ret[arg.name]] * 2)
        node.attr["T"].type = arg.type
        node.attr["U"].list.type.append(arg.type)
        node.attr["message"].s = f"{FIRED}{number};".encode()
        node.attr["summarize"].i = 0
        function.ret[arg.name] = f"probe_{place}:output:0"


def fired(places: Sequence[OpKey], since: int) -> set[OpKey]:
    """Those of these places whose number was printed since."""
    said = os.pread(STDERR, os.fstat(STDERR).st_size - since, since).decode(errors="replace")
    return {places[int(number)] for number in re.findall(rf"{FIRED}(\d+);", said)}


def said() -> int:
    """How much was printed until now."""
    return os.fstat(STDERR).st_size

"""`graphpatch ops`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from graphpatch.analysis import ops
from graphpatch.analysis.interface import interface
from graphpatch.analysis.rule_words import type_gradient
from graphpatch.cli import options
from graphpatch.cli.options import Texts
from graphpatch.cli.say import bar, noted, say_json, say_lines
from graphpatch.differentiation import flow
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model, load
from graphpatch.graph.check import check_graph, foreign
from graphpatch.graph.graph import ModelGraph
from graphpatch.shown import IN_LIST, and_more, cut_short, short

STATE_WORDS = {
    "default": "default",
    "none": "none: TensorFlow registers it as not differentiable",
    "missing": "none: TensorFlow has no gradient for it (LookupError)",
    "function": "that of the function it calls",
    "unknown": "unknown: the op type is not TensorFlow's",
}

WIDEST_TYPE = 60  # characters of an op type that the column after it makes room for

GIVEN = {"none": "None", "zero": "zero", "error": "an error"}

TENSOR = {"name": str, "dtype": str, "shape": str, "signatures": [str]}
OP = {
    "body": str,
    "name": str,
    "type": str,
    "inputs": [str],
    "outputs": list | None,
    "attrs": dict,
    "gradient": {"state": str, "gives?": str, "key?": str, "function?": str},
    "changed": [{"rule": str, "did": str}],
}
OUTPUT = {
    "model": str,
    "format": str,
    "graphs": [{"tags": str, "inputs": [TENSOR], "outputs": [TENSOR], "variables": int}],
    "types": {str: int},
    "ops?": [OP],
}


@options.command("ops", "ops model.pb", "ops model.pb 'conv/**' --json")
def command(
    model: str = options.MODEL,
    names: Texts = options.argument("[NAME]...", type=str, required=False),
    every: bool = options.ALL,
    as_json: bool = options.JSON,
) -> None:
    """List inputs, outputs and op types of MODEL, or describe the ops named NAME.

    NAME may be a glob: `*` stays within one scope, `**` crosses `/`.
    """
    with bar() as progress:
        loaded = load(model, progress)
    sound = _say_notes(loaded)
    nodes, faults = (ops.all_ops(loaded), []) if every else ops.find_ops(loaded, names)
    described = [ops.op_document(node) for node in nodes]
    if as_json:
        ends = ({"tags": g.around.tags, **interface(g, Wiring(g.main)).document()} for g in sound)
        types = ops.count_types(loaded)
        document = {"model": model, "format": loaded.format, "graphs": list(ends), "types": types}
        say_json({**document, **({"ops": described} if names or every else {})})
    elif described:
        blocks = (["", *_op_lines(op)] for op in described)
        say_lines([line for block in blocks for line in block][1:])
    elif not faults:
        say_lines(_lines_of_types(loaded, sound))
    if faults:
        raise ModelError("\n".join(faults))


def _say_notes(model: Model) -> list[ModelGraph]:
    """Say what is wrong with graphs, or foreign in them; return those that are not broken."""
    notes, sound = list[str](), list[ModelGraph]()
    for graph in model.graphs:
        try:
            check_graph(graph)
            sound.append(graph)
        except ModelError as error:
            notes.append(f"{model.path}: {error}")
        notes += foreign(graph)
    if notes:
        say_lines(noted(notes), err=True)
    return sound


def _interface_lines(graph: ModelGraph) -> Iterator[str]:
    ends = interface(graph, Wiring(graph.main))
    rows = [(t.name, t.dtype, t.shape, ", ".join(t.signatures)) for t in ends.inputs + ends.outputs]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    count = len(ends.inputs)
    for title, tensors in (("inputs", lines[:count]), ("outputs", lines[count:])):
        more = and_more(tensors, IN_LIST)
        shown = [*tensors[:IN_LIST], *([f"{more}; --json lists all"] if more else [])]
        yield from _titled(title, shown or ["none"])
    if ends.variables:
        yield f"  weights   {ends.weights}"


def _lines_of_types(model: Model, sound: Sequence[ModelGraph]) -> Iterator[str]:
    counted = ops.count_model_ops(model)
    functions = sum(len(graph.functions) for graph in model.graphs)
    inside = f", {functions} functions" if functions else ""
    yield f"{model.path}: {model.format}, {model.node_count} ops{inside}"
    for graph in sound:
        if len(model.graphs) > 1:
            yield f"  graph     {graph.around.tags}"
        yield from _interface_lines(graph)
    width = min(WIDEST_TYPE, max(map(len, counted.types), default=0))
    for op, count in counted.types.items():
        words = _default_in_words(type_gradient(model.graphs[0].library.opdef(op)), flow.gives(op))
        yield f"{count:8}  {op:{width}}  {_with_patched(words, count, counted.patched.get(op, {}))}"
    if counted.by_rules:
        yield f"{counted.by_rules:8}  of the ops were added by rules; `graphpatch diff` lists them"


def _with_patched(own: str, count: int, by: Mapping[str, int]) -> str:
    """Return the gradient of so many ops of a type, some with another than its own."""
    if not by:
        return own
    if list(by.values()) == [count]:
        return next(iter(by))
    each = short([f"{many} {kind}" for kind, many in by.items()])
    return each if sum(by.values()) == count else f"{own}; {each}"


def _op_lines(op: dict[str, Any]) -> list[str]:
    place = "" if op["body"] == "main" else f"  in function {op['body']}"
    attrs = (f"{key} = {cut_short(json.dumps(value), 80)}" for key, value in op["attrs"].items())
    changed = (f"{change['did']}, by rule {change['rule']!r}" for change in op["changed"])
    return [
        f"{op['name']}{place}",
        f"  type      {op['type']}",
        *_titled("inputs", op["inputs"]),
        *_titled("outputs", [f"{o['tensor']}  {o['dtype']}" for o in op["outputs"] or ()]),
        *_titled("attrs", list(attrs)),
        f"  gradient  {_gradient_in_words(op['gradient'])}",
        *_titled("changed", list(dict.fromkeys(changed))),
    ]


def _titled(title: str, values: list[str]) -> list[str]:
    return [f"  {title if not place else '':8}  {value}" for place, value in enumerate(values)]


def _gradient_in_words(gradient: dict[str, str]) -> str:
    if "function" in gradient:
        return f"that of function {gradient['function']}, on a tape of key {gradient['key']}"
    if "key" in gradient:
        return f"overridden by {gradient['key']}"
    return _default_in_words(gradient["state"], gradient.get("gives", ""))


def _default_in_words(state: str, gives: str) -> str:
    """Return an op type's own gradient in words."""
    return f"{STATE_WORDS[state]}, which is always {GIVEN[gives]}" if gives else STATE_WORDS[state]

"""A model's graph in TensorFlow: random ops seeded and probed, variables given values."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from graphpatch import opdefs
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.container import META
from graphpatch.formats.output import refuse_odd_files
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.provenance import name_in_model
from graphpatch.names import OpKey
from graphpatch.runtime.graph_run import GraphRun, run_op_by_op, seeded_variable, variables_of
from graphpatch.runtime.imported import bare_meta, imported
from graphpatch.runtime.register import register_lone_keys
from graphpatch.runtime.values import Values

SEEDS = ("seed", "seed2")
# They move on the state of a tf.random.Generator, which is a variable.
GENERATOR = frozenset({"NonDeterministicInts", "RngReadAndSkip", "RngSkip"})
OUR_PREFIX = "graphpatch_"  # what functions that a rule adds are called


@cache
def _has_seeds(op: str) -> bool:
    known = opdefs.lookup(op)
    return known is not None and set(SEEDS) <= {attr.name for attr in known.attrs}


def own_names(graph: ModelGraph) -> dict[tuple[str, str], str]:
    """By body and name: what the ops that rules moved aside were called before."""
    return {
        (body.label, node.name): name_in_model(node)
        for body in graph.bodies
        for node in provenance.touched(body)
    }


def set_seeds(graph_def: Any, own: Mapping[tuple[str, str], str]) -> list[str]:
    """Give random ops of a GraphDef, and of its functions, seeds by name.

    An op that has seeds keeps them. One that a rule put into a function of its own has no name
    there: those share their type's. Returned are all ops that draw on from run to run: ops with
    seeds of any kind, and those that draw from a tf.random.Generator.

    A random op whose seeds are 0 draws from the seed of the graph and its own place in it, which is
    another one after nodes were added. So every such op gets explicit seeds, by its name.
    """
    names = []
    for body, node in _nodes(graph_def):
        if node.op in GENERATOR:
            names.append(node.name)
        elif _has_seeds(node.op):
            names.append(node.name)
            if not any(node.attr[key].i for key in SEEDS):
                text = (
                    node.op
                    if body.startswith(OUR_PREFIX)
                    else own.get((body, node.name), node.name)
                )
                node.attr[SEEDS[0]].i = 1 + (zlib.crc32(text.encode()) & 0x7FFFFFFE)
                node.attr[SEEDS[1]].i = 1
    return names


def _nodes(graph_def: Any) -> Iterator[tuple[str, Any]]:
    yield from (("main", node) for node in graph_def.node)
    for function in graph_def.library.function:
        yield from ((function.signature.name, node) for node in function.node_def)


STDERR = 2
FIRED = "graphpatch fired "


def add_probes(graph_def: Any, places: Sequence[OpKey]) -> None:
    """Let the gradient function of each of these calls of functions print its number.

    For what TensorFlow differentiates in C++: Python is not asked there which gradient an op has.
    So each op gets gradient functions of its own, which give what they gave, and print a line.
    """
    functions = {item.signature.name: item for item in graph_def.library.function}
    gradients = {item.function_name: item.gradient_func for item in graph_def.library.gradient}
    for number, (body, name) in enumerate(places):
        nodes = graph_def.node if body == "main" else functions[body].node_def
        node = next(item for item in nodes if item.name == name)
        forward, backward = functions[node.op], functions[gradients[node.op]]
        probe = f"{forward.signature.name}_probe_{number}"
        _copied_function(graph_def.library, forward, probe)
        _telling(_copied_function(graph_def.library, backward, f"{probe}_gradient"), number)
        graph_def.library.gradient.add(function_name=probe, gradient_func=f"{probe}_gradient")
        node.op = probe


def _copied_function(library: Any, function: Any, name: str) -> Any:
    copy = library.function.add()
    copy.CopyFrom(function)
    copy.signature.name = name
    return copy


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


def fired_since(places: Sequence[OpKey], since: int) -> set[OpKey]:
    """Return those of these places whose number was printed since."""
    said = os.pread(STDERR, os.fstat(STDERR).st_size - since, since).decode(errors="replace")
    return {places[int(number)] for number in re.findall(rf"{FIRED}(\d+);", said)}


def printed_bytes() -> int:
    """Return how much was printed until now."""
    return os.fstat(STDERR).st_size


def seeded_graph(
    model: Model, graph: ModelGraph, probed: Sequence[OpKey] = (), optimise: bool = False
) -> Any:
    """Return the tf.Graph of a model's graph, with its control-flow contexts and seeded random ops.

    The gradient functions of the `probed` ops tell when they run. Functions that are called run op
    by op; with `optimise`, as the calls say. Raises ModelError where TensorFlow does not take it,
    in its words.
    """

    def prepare(graph_def: Any) -> None:
        set_seeds(graph_def, own_names(graph))
        add_probes(graph_def, probed)
        if not optimise:
            run_op_by_op(graph_def)

    register_lone_keys(graph)
    return imported(_meta_graph(model, graph), clear_devices=True, prepare=prepare)


def _meta_graph(model: Model, graph: ModelGraph) -> Any:
    """Return the graph with its contexts, rebuilt where they can be."""
    try:
        return bare_meta(model.meta_graph(graph))
    except ModelError:  # what a Session runs all the same; its gradients tell
        return bare_meta(model.meta_graph(graph, rebuild=False))


def checkpoint(model: Model) -> str | None:
    """Return where the values of a model's variables lie, if they are there.

    Raises ModelError where a link in the model's folder leads out of it.
    """
    path = Path(model.path)
    if model.file:
        refuse_odd_files(path)
    prefix = path / "variables" / "variables" if model.file else path.with_suffix("")
    is_there = prefix.with_name(f"{prefix.name}.index").is_file()
    return str(prefix) if is_there and (model.file or model.container is META) else None


def restored_values(graph: Any, prefix: str | None) -> dict[str, Any]:
    """Return the values of variables by the name of their op, as far as the checkpoint has them."""
    import tensorflow as tf

    if prefix is None:
        return {}
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    values = {}
    for op in variables_of(graph):
        shape = tf.TensorShape(op.get_attr("shape"))
        shared = op.get_attr("shared_name").decode(errors="backslashreplace")
        key = next((name for name in (op.name, shared) if name in shapes), None)
        if key is not None and shape.is_compatible_with(shapes[key]):
            values[op.name] = reader.get_tensor(key)
    return values


def initial_values(graph: Any, fixed: Values, size: int, whole: tuple[int, ...]) -> dict[str, Any]:
    """Return a value for each variable: what is given, what its initialiser gives, or a seeded one.

    An initialiser that reads other variables finds their seeded values, so that no order counts.
    """
    values_by_name = dict(fixed)
    variables = {op.name: op for op in variables_of(graph) if op.name not in fixed}
    for name, op in variables.items():
        values_by_name[name] = seeded_variable(op, size, whole)
    sources = {
        name: source for name, op in variables.items() if (source := _initialiser(graph, op))
    }
    first = GraphRun(graph, variables=values_by_name)
    values = first.run(sorted(set(sources.values())), False)[0] if sources else {}
    return values_by_name | {
        name: values[source] for name, source in sources.items() if source in values
    }


def _initialiser(graph: Any, variable: Any) -> str:
    """The tensor that the variable is assigned first, where there is one of no other shape."""
    import tensorflow as tf

    try:
        op = graph.get_operation_by_name(f"{variable.name}/Assign")
    except KeyError:
        return ""
    if not op.type.startswith("Assign") or op.inputs[0].op is not variable:
        return ""
    value = op.inputs[1]
    shape = tf.TensorShape(variable.get_attr("shape"))
    return str(value.name) if value.shape.is_compatible_with(shape) else ""


def known_variables(graph: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values whose variables this graph has."""
    return {op.name: values[op.name] for op in variables_of(graph) if op.name in values}

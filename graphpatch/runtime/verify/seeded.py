"""A model's graph in TensorFlow, its random ops seeded, its variables given values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.container import META
from graphpatch.formats.folder import refuse_odd_files
from graphpatch.graph.graph import Graph
from graphpatch.names import OpKey
from graphpatch.runtime.imported import bare_meta, imported
from graphpatch.runtime.op_by_op import run_op_by_op
from graphpatch.runtime.register import register_lone_keys
from graphpatch.runtime.running import Running, seeded_variable, variables_of
from graphpatch.runtime.values import Values
from graphpatch.runtime.verify import probes
from graphpatch.runtime.verify.seeds import own_names, set_seeds


def seeded_graph(
    model: Model, graph: Graph, probed: Sequence[OpKey] = (), optimise: bool = False
) -> Any:
    """The tf.Graph of a model's graph, with its control-flow contexts and seeded random ops.

    The gradient functions of the `probed` ops tell when they run. Functions that are called run op
    by op; with `optimise`, as the calls say. Raises ModelError where TensorFlow does not take it,
    in its words.
    """

    def prepare(graph_def: Any) -> None:
        set_seeds(graph_def, own_names(graph))
        probes.add_probes(graph_def, probed)
        if not optimise:
            run_op_by_op(graph_def)

    register_lone_keys(graph)
    return imported(_meta_graph(model, graph), clear_devices=True, prepare=prepare)


def _meta_graph(model: Model, graph: Graph) -> Any:
    """The graph with its contexts, rebuilt where they can be."""
    try:
        return bare_meta(model.meta_graph(graph))
    except ModelError:  # what a Session runs all the same; its gradients tell
        return bare_meta(model.meta_graph(graph, rebuild=False))


def checkpoint(model: Model) -> str | None:
    """Where the values of a model's variables lie, if they are there.

    Raises ModelError where a link in the model's folder leads out of it.
    """
    path = Path(model.path)
    if model.file:
        refuse_odd_files(path)
    prefix = path / "variables" / "variables" if model.file else path.with_suffix("")
    is_there = prefix.with_name(f"{prefix.name}.index").is_file()
    return str(prefix) if is_there and (model.file or model.container is META) else None


def restored(graph: Any, prefix: str | None) -> dict[str, Any]:
    """The values of variables by the name of their op, as far as the checkpoint has them."""
    import tensorflow as tf

    if prefix is None:
        return {}
    reader = tf.train.load_checkpoint(prefix)
    there = reader.get_variable_to_shape_map()
    found = {}
    for op in variables_of(graph):
        shape = tf.TensorShape(op.get_attr("shape"))
        shared = op.get_attr("shared_name").decode(errors="backslashreplace")
        key = next((name for name in (op.name, shared) if name in there), None)
        if key is not None and shape.is_compatible_with(there[key]):
            found[op.name] = reader.get_tensor(key)
    return found


def initial(graph: Any, given: Values, size: int, whole: tuple[int, ...]) -> dict[str, Any]:
    """A value for each variable: what is given, what its initialiser gives, or a seeded one.

    An initialiser that reads other variables finds their seeded values, so that no order counts.
    """
    found = dict(given)
    variables = {op.name: op for op in variables_of(graph) if op.name not in given}
    for name, op in variables.items():
        found[name] = seeded_variable(op, size, whole)
    sources = {
        name: source for name, op in variables.items() if (source := _initialiser(graph, op))
    }
    first = Running(graph, variables=found)
    values = first.run(sorted(set(sources.values())), False)[0] if sources else {}
    return found | {name: values[one] for name, one in sources.items() if one in values}


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


def known(graph: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values whose variables this graph has."""
    return {op.name: values[op.name] for op in variables_of(graph) if op.name in values}

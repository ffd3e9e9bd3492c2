"""A model's graph in TensorFlow: seeded, its outputs, its variables, the branches it takes."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch import opdefs
from graphpatch.analysis.training import gradient_scopes
from graphpatch.control_flow.op_types import ENTERS, EXITS, MERGES, SWITCHES
from graphpatch.dtypes import HANDLES
from graphpatch.errors import ModelError
from graphpatch.formats import Model
from graphpatch.formats.container import META
from graphpatch.formats.output import refuse_odd_files
from graphpatch.graph import provenance
from graphpatch.graph.graph import Graph, ModelGraph
from graphpatch.graph.node import Body
from graphpatch.graph.op_types import IFS, PARSERS, PIPELINES, VARIABLES
from graphpatch.names import OpKey
from graphpatch.runtime.graph_run import (
    ASSIGNED,
    GraphRun,
    run_op_by_op,
    seeded_variable,
    variables_of,
    waiting_ops,
)
from graphpatch.runtime.imported import bare_meta, imported
from graphpatch.runtime.register import register_lone_keys
from graphpatch.runtime.values import Values

SEEDS = ("seed", "seed2")
# They move on the state of a tf.random.Generator, which is a variable.
GENERATOR = frozenset({"NonDeterministicInts", "RngReadAndSkip", "RngSkip"})
OUR_PREFIX = "graphpatch_"  # what functions that a rule adds are called
STDERR = 2
FIRED = "graphpatch fired "
MOST_CONSTANTS = 8  # with respect to which gradients are taken at most
RESERVED = "reserve_space"
WRITES = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)|CountUpTo|ResourceCountUpTo")
LARGEST_OUTPUT = 1 << 24  # elements of a tensor that is compared
# Ops that do one thing below zero, and another above.
SIGNED = frozenset({"Abs", "Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Sign"})
# Ops that choose by a condition, and which input that is.
TRUTHS = dict.fromkeys(("Select", "SelectV2", *IFS), 0) | dict.fromkeys(SWITCHES, 1)


def seeded_graph(
    model: Model, graph: ModelGraph, probed: Sequence[OpKey] = (), optimise: bool = False
) -> Any:
    """Return the tf.Graph of a model's graph, with its control-flow contexts and seeded random ops.

    The gradient functions of the `probed` ops tell when they run. Functions that are called run op
    by op; with `optimise`, as the calls say. Raises ModelError where TensorFlow does not take it,
    in its words.
    """

    def prepare(graph_def: Any) -> None:
        set_seeds(graph_def, graph)
        _add_probes(graph_def, probed)
        if not optimise:
            run_op_by_op(graph_def)

    register_lone_keys(graph)
    try:
        meta = bare_meta(model.meta_graph(graph))
    except ModelError:  # contexts that cannot be rebuilt; a Session runs it all the same
        meta = bare_meta(model.meta_graph(graph, rebuild=False))
    return imported(meta, clear_devices=True, prepare=prepare)


def set_seeds(graph_def: Any, graph: ModelGraph) -> bool:
    """Give random ops of a GraphDef, and of its functions, seeds by name; return whether any draw.

    A random op whose seeds are 0 draws from the seed of the graph and its own place in it, which
    changes when nodes are added. So it gets explicit seeds, by the name that the model gives it; in
    a function that a rule added by its type. Ops that draw from a tf.random.Generator count, too.
    """
    names_in_model = {
        (body.label, node.name): provenance.name_in_model(node)
        for body in graph.bodies
        for node in provenance.touched(body)
    }
    draws = False
    bodies = [("main", graph_def.node)]
    bodies += [(item.signature.name, item.node_def) for item in graph_def.library.function]
    for body, node in ((body, node) for body, nodes in bodies for node in nodes):
        draws |= node.op in GENERATOR
        if node.op not in GENERATOR and _has_seeds(node.op):
            draws = True
            if not any(node.attr[key].i for key in SEEDS):
                own = names_in_model.get((body, node.name), node.name)
                text = node.op if body.startswith(OUR_PREFIX) else own
                node.attr[SEEDS[0]].i = 1 + (zlib.crc32(text.encode()) & 0x7FFFFFFE)
                node.attr[SEEDS[1]].i = 1
    return draws


@cache
def _has_seeds(op: str) -> bool:
    known = opdefs.lookup(op)
    return known is not None and set(SEEDS) <= {attr.name for attr in known.attrs}


def _add_probes(graph_def: Any, places: Sequence[OpKey]) -> None:
    """Let the gradient function of each of these calls of functions print its number.

    For what TensorFlow differentiates in C++: Python is not asked there which gradient an op has.
    So each op gets gradient functions of its own, which give what they gave, and print a line.
    """
    library = graph_def.library
    functions = {item.signature.name: item for item in library.function}
    gradients = {item.function_name: item.gradient_func for item in library.gradient}

    def copied(name: str, new: str) -> Any:
        copy = library.function.add()
        copy.CopyFrom(functions[name])
        copy.signature.name = new
        return copy

    for number, (body, name) in enumerate(places):
        nodes = graph_def.node if body == "main" else functions[body].node_def
        node = next(item for item in nodes if item.name == name)
        probe = f"{node.op}_probe_{number}"
        copied(node.op, probe)
        backward = copied(gradients[node.op], f"{probe}_gradient")
        library.gradient.add(function_name=probe, gradient_func=f"{probe}_gradient")
        node.op = probe
        for index, arg in enumerate(backward.signature.output_arg):
            printing = backward.node_def.add(name=f"probe_{index}", op="Print")
            printing.input.extend([backward.ret[arg.name]] * 2)
            printing.attr["T"].type = arg.type
            printing.attr["U"].list.type.append(arg.type)
            printing.attr["message"].s = f"{FIRED}{number};".encode()
            printing.attr["summarize"].i = 0
            backward.ret[arg.name] = f"probe_{index}:output:0"


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
    """Return a value for each variable: what is fixed, what its initialiser gives, or a seeded one.

    An initialiser that reads other variables finds their seeded values, so that no order counts.
    """
    variables = {op.name: op for op in variables_of(graph) if op.name not in fixed}
    seeded = {name: seeded_variable(op, size, whole) for name, op in variables.items()}
    initial = {name: _initial_tensor(graph, op) for name, op in variables.items()}
    asked = sorted(set(filter(None, initial.values())))
    values = GraphRun(graph, variables={**fixed, **seeded}).run(asked, False)[0] if asked else {}
    drawn = {name: values[tensor] for name, tensor in initial.items() if tensor in values}
    return {**fixed, **seeded, **drawn}


def _initial_tensor(graph: Any, variable: Any) -> str:
    """Return the tensor that the variable is assigned first, where its shape fits."""
    import tensorflow as tf

    try:
        op = graph.get_operation_by_name(f"{variable.name}/Assign")
    except KeyError:
        return ""
    if not op.type.startswith("Assign") or op.inputs[0].op is not variable:
        return ""
    shape = tf.TensorShape(variable.get_attr("shape"))
    return str(op.inputs[1].name) if op.inputs[1].shape.is_compatible_with(shape) else ""


def result_tensors(graph: Any) -> list[str]:
    """Return the tensors that are computed, and that no op computes another tensor of.

    A float tensor that is made an int of, as logits by ArgMax, is among them; so is what only ops
    read that write to variables, or give nothing. Left out are those in v1 loops and branches,
    which cannot be fetched, what only this process can hold, and what is left uninitialised.
    """
    hidden = ops_in_control_flow(graph)
    return [
        output.name
        for op in graph.get_operations()
        if op.inputs and op not in hidden and not op.name.startswith(ASSIGNED)
        for output in op.outputs
        if _is_value(output) and not _gives_comparable(output) and not _is_scratch(output)
    ]


def _gives_comparable(tensor: Any) -> bool:
    """Return whether another tensor that can be compared in its place is computed of it."""
    outputs = [to for reader in tensor.consumers() for to in reader.outputs if _is_value(to)]
    return any(map(_is_differentiable, outputs)) if _is_differentiable(tensor) else bool(outputs)


def _is_scratch(tensor: Any) -> bool:
    """Return whether it is room that an op reserves for its gradient, and need not fill."""
    args = tensor.op.op_def.output_arg if tensor.op.op_def is not None else ()
    count = len(tensor.op.outputs)
    return len(args) == count and args[tensor.value_index].name.startswith(RESERVED)


def default_targets(graph: Any, compared: Iterable[str], patched: Iterable[str]) -> list[str]:
    """Return the float outputs among these of which gradients are taken, where nobody names them.

    Nothing reads their ops: not what ops give beside what is read. First come those that are
    computed from the ops that rules patched.
    """
    among, ops = set(compared), {op.name: op for op in graph.get_operations()}
    ends = [graph.get_tensor_by_name(name) for name in result_tensors(graph) if name in among]
    unread = [t for t in ends if not any(map(_gives_comparable, t.op.outputs))]
    behind = waiting_ops([ops[name] for name in patched if name in ops])
    targets = sorted(filter(_is_differentiable, unread), key=lambda tensor: tensor.op not in behind)
    return [tensor.name for tensor in targets]


def trained(graph: Any, main: Body) -> set[Any]:
    """Return the gradients that update variables, and the ops that are computed from them.

    Gradients of which a loss is computed, as a gradient penalty, are not among them: they come
    before the gradients of that loss.
    """
    scopes = gradient_scopes(main)
    inside = [[op for op in graph.get_operations() if scope.holds(op.name)] for scope in scopes]
    updating: set[Any] = set()
    for ops in inside:
        behind = waiting_ops(ops, control=False)
        before_others = any(op in behind for group in inside if group is not ops for op in group)
        if not before_others and any(map(_writes, behind)):
            updating |= behind
    return updating


def writing(graph: Any, names: Iterable[str]) -> list[str]:
    """Return those of these tensors that come after an op that writes to a variable.

    In the same run others read it, and who is faster decides what they give.
    """
    behind = waiting_ops(list(filter(_writes, graph.get_operations())))
    return [name for name in names if graph.get_tensor_by_name(name).op in behind]


def _writes(op: Any) -> bool:
    """Return whether an op writes to the variable that is its first input."""
    if not op.inputs:
        return False
    dtype = op.inputs[0].dtype
    return WRITES.match(op.type) is not None and (dtype._is_ref_dtype or dtype.name == "resource")


def fetchable(graph: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield those of these tensors that exist and can be fetched."""
    hidden = ops_in_control_flow(graph)
    for name in names:
        try:
            tensor = graph.get_tensor_by_name(name)
        except (KeyError, ValueError):
            continue
        if _is_value(tensor) and tensor.op not in hidden:
            yield name


def _is_value(tensor: Any) -> bool:
    """Return whether it can be fetched as an array, of a size that can be held."""
    dtype, size = tensor.dtype, tensor.shape.num_elements() or 0
    is_array = dtype.base_dtype.name not in HANDLES and not dtype._is_ref_dtype
    return size <= LARGEST_OUTPUT and is_array


def _is_differentiable(tensor: Any) -> bool:
    """Return whether TensorFlow takes gradients of it, or with respect to it."""
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex) and not dtype._is_ref_dtype


def default_sources(graph: Any, fed: Iterable[str], patched: Iterable[str]) -> list[str]:
    """Return the floats that are fed, parsed or read; or else float variables; or else constants.

    Of constants the largest count, which are weights: models that are fed words have no others.
    Those that `patched` ops are computed of are added where no fed float comes to these ops.
    """
    ops = graph.get_operations()
    parsed = [op for op in ops if op.type in PARSERS | PIPELINES]
    tensors = [graph.get_tensor_by_name(name) for name in fed]
    tensors += (tensor for op in parsed for tensor in op.outputs)
    sources = dict.fromkeys(tensor.name for tensor in tensors if _is_differentiable(tensor))
    if not sources:
        return _variables_or_constants(graph, ops)
    behind = waiting_ops([graph.get_tensor_by_name(name).op for name in sources])
    by_name, before = {op.name: op for op in ops}, set[Any]()
    todo = [by_name[name] for name in patched if name in by_name and by_name[name] not in behind]
    while todo:
        op = todo.pop()
        if op not in before:
            before.add(op)
            todo += [tensor.op for tensor in op.inputs]
    return [*sources, *_variables_or_constants(graph, sorted(before, key=lambda op: op._id))]


def _variables_or_constants(graph: Any, ops: Sequence[Any]) -> list[str]:
    """Return the variables of floats among some ops, or else the largest constants."""
    variables = [op for op in ops if op.type in VARIABLES]
    names = [op.outputs[0].name for op in variables if op.get_attr("dtype").is_floating]
    if names:
        return names
    hidden = ops_in_control_flow(graph)
    outputs = [op.outputs[0] for op in ops if op.type == "Const" and op not in hidden]
    constants = sorted(
        filter(_is_differentiable, outputs), key=lambda t: -(t.shape.num_elements() or 0)
    )
    return [tensor.name for tensor in constants[:MOST_CONSTANTS]]


def ops_in_control_flow(graph: Any) -> set[Any]:
    """Return the ops in v1 loops and branches, of which a Session fetches nothing."""
    inside: set[Any] = set()
    for start, end in ((ENTERS, EXITS), (SWITCHES, MERGES)):
        todo = [op for op in graph.get_operations() if op.type in start and op not in inside]
        while todo:
            op = todo.pop()
            if op not in inside:
                inside.add(op)
                readers = {to for output in op.outputs for to in output.consumers()}
                todo += [to for to in readers if to.type not in end]
    return inside


class BranchWatch:
    """The ops of a graph that take branches; nothing changes in what others compute.

    `read` has the tensor by which each decides, `hidden` counts those in v1 loops and branches,
    which cannot be looked at.
    """

    def __init__(self, graph: Any) -> None:
        self.graph, self.hidden = graph, 0
        self.read: dict[str, str] = {}
        inside = ops_in_control_flow(graph)
        for op in graph.get_operations():
            if op.name.startswith(ASSIGNED) or op.type not in SIGNED | TRUTHS.keys():
                continue
            tensor = op.inputs[TRUTHS.get(op.type, 0)]
            if not (tensor.dtype.is_bool if op.type in TRUTHS else tensor.dtype.is_floating):
                continue
            # In a loop or branch an op does not run by what it reads; a Switch is where it begins.
            is_open = op not in inside or op.type in TRUTHS
            # A constant of a loop's body reads nothing of the loop: its context tells.
            context = tensor.op._get_control_flow_context()
            if is_open and tensor.op not in inside and context is None and _is_value(tensor):
                self.read[op.name] = tensor.name
            else:
                self.hidden += 1
        self._questions: dict[str, tuple[str, str]] | None = None

    def taken(self, running: GraphRun) -> dict[str, tuple[bool, bool]]:
        """Return for each op whether something below 0 (or false) came to it, and above (true)."""
        is_first = self._questions is None
        asked = dict(self._asked()) if self._questions is None else self._questions
        values, _ = running.run([name for pair in asked.values() for name in pair], False)
        answers = {
            tensor: (bool(values[below]), bool(values[above]))
            for tensor, (below, above) in asked.items()
            if below in values and above in values
        }
        # What waits for a queue that nobody fills is asked once.
        self._questions = {name: asked[name] for name in answers} if is_first else asked
        return {name: answers[tensor] for name, tensor in self.read.items() if tensor in answers}

    def _asked(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Ask for each tensor whether some of it is below 0, or false; and above, or true."""
        import tensorflow as tf

        with self.graph.as_default(), tf.control_dependencies(None), tf.name_scope(ASSIGNED):
            for name in sorted(set(self.read.values())):
                value = self.graph.get_tensor_by_name(name)
                sides = (~value, value) if value.dtype.is_bool else (value < 0, value > 0)
                below, above = (tf.reduce_any(side) for side in sides)
                yield name, (below.name, above.name)

    def steered(self, running: GraphRun, names: Sequence[str], upwards: bool) -> dict[str, Any]:
        """Return values for what these ops read: of both signs or true (`upwards`), or false."""
        tensors = [self.graph.get_tensor_by_name(self.read[name]) for name in names]
        fed = {t.name for t in tensors if self.graph.is_feedable(t) and t.name not in running.feeds}
        likes, _ = running.run(sorted(fed), False)
        return {name: _random_values(name, like, upwards) for name, like in likes.items()}


def _random_values(name: str, like: Any, upwards: bool) -> Any:
    if like.dtype == bool:
        return np.full(like.shape, upwards)
    random = np.random.default_rng(zlib.crc32(f"{name} {upwards}".encode()))
    return np.asarray(random.standard_normal(like.shape, np.float32) * 4).astype(like.dtype)


def branches_in_functions(graph: Graph) -> int:
    """Return how many ops that take branches stand in functions, where nobody can look."""
    return sum(
        len(body.by_type.get(op, ()))
        for body in graph.functions.values()
        for op in SIGNED | TRUTHS.keys()
        if not body.is_ours
    )

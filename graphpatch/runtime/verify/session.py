"""A model that TensorFlow runs, in this process: as a graph in a Session, or as it is loaded.

Both kinds answer the same messages of `process.TensorFlowProcess`: what there is to compare, what
to feed, values, gradients, branches and formulas.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from graphpatch import opdefs
from graphpatch.analysis.interface import refuse_unknown_ends
from graphpatch.analysis.training import gradient_scopes
from graphpatch.control_flow.op_types import ENTERS, EXITS, MERGES, SWITCHES
from graphpatch.dtypes import HANDLES
from graphpatch.errors import ModelError
from graphpatch.formats import Model, load
from graphpatch.formats.container import META, meta_around
from graphpatch.formats.model import MESSAGE
from graphpatch.formats.output import refuse_odd_files
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body
from graphpatch.graph.op_types import CALLS, IFS, PARSERS, PIPELINES, VARIABLES
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import OpKey, fresh, op_of
from graphpatch.runtime.graph_run import (
    ASSIGNED,
    GraphRun,
    first_line,
    may_be_endless,
    ops_before,
    run_op_by_op,
    seeded_feeds,
    seeded_variable,
    variables_of,
    waiting_ops,
)
from graphpatch.runtime.imported import bare_meta, imported
from graphpatch.runtime.register import register_lone_keys
from graphpatch.runtime.tf_gradients import (
    GradientAnswer,
    RaisedError,
    gradients_or_raised,
    recorded,
)
from graphpatch.runtime.values import GUESSES, Values, full_tensor_name, seeded_value

SEEDS = ("seed", "seed2")
# They move on the state of a tf.random.Generator, which is a variable.
GENERATOR = frozenset({"NonDeterministicInts", "RngReadAndSkip", "RngSkip"})
OUR_PREFIX = "graphpatch_"  # what functions that a rule adds are called
MOST_CONSTANTS = 8  # with respect to which gradients are taken at most
RESERVED = "reserve_space"
WRITES = re.compile("(Resource)?(Sparse)?(Assign|Apply|Scatter)|CountUpTo|ResourceCountUpTo")
LARGEST_OUTPUT = 1 << 24  # elements of a tensor that is compared
# Ops that do one thing below zero, and another above.
SIGNED = frozenset({"Abs", "Elu", "LeakyRelu", "Relu", "Relu6", "Selu", "Sign"})
# Ops that choose by a condition, and which input that is.
TRUTHS = dict.fromkeys(("Select", "SelectV2", *IFS), 0) | dict.fromkeys(SWITCHES, 1)
DEAD = "does not have value"  # what TensorFlow says of a tensor in a branch that is not taken

Answers = tuple[dict[str, GradientAnswer], set[OpKey]]  # and the ops that were asked for theirs
Near = tuple[Sequence[str], Sequence[str]]  # ops that rules patched, and those that they read
Ends = tuple[list[str], list[str], list[str]]  # sources, targets, and which targets are trained
Branches = tuple[dict[str, tuple[bool, bool]], dict[str, int]]  # taken, and hidden by where
Ran = tuple[dict[str, Any], dict[str, str]]  # values, and why there are no others


def running_model(file: str, path: str, index: int) -> SessionModel | LoadedModel:
    """Return a graph of the model in a file, which the user calls `path`, as TensorFlow runs it."""
    model = load(file)
    graph = model.graphs[index]
    if graph.around.is_object_based:
        return LoadedModel(model, graph)
    return SessionModel(replace(model, path=path), graph)


class RunningModel:
    """A graph of a model that is run on `feeds`, its variables with the values of `variables`."""

    model_graph: ModelGraph
    feeds: Values
    variables: Values

    def guess(self, feed: Values, size: int, whole: tuple[int, ...]) -> None:
        """Take what is fed, and seeded values of these sizes for all else."""
        raise NotImplementedError

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Return the values of those tensors that can be computed, and why the others cannot.

        With `optimise` as TensorFlow optimises graphs by default, else op by op.
        """
        raise NotImplementedError

    def choose(self, tensors: Sequence[str], feed: Values) -> tuple[Values, Values]:
        """Return what to feed, and what variables hold: the guess with which most of it runs."""
        most, best, tried = -1, (self.feeds, self.variables), list[list[Any]]()
        for size, whole in GUESSES:
            self.guess(feed, size, whole)
            values = *self.feeds.values(), *self.variables.values()
            shapes = list(map(np.shape, values))
            if shapes in tried:
                continue
            tried.append(shapes)
            count = len(self.run(tensors, False)[0])
            if count > most:
                best, most = (self.feeds, self.variables), count
            if count == len(tensors):
                break
        self.feeds, self.variables = best
        return best

    def values(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        self.variables = variables

    def feed(self, feeds: Values) -> None:
        """Feed these values from now on."""
        self.feeds = feeds

    def formulas(self) -> Sequence[Any]:
        """Return each formula that the graph carries, compared with numpy."""
        from graphpatch.runtime.verify.formulas import check_formulas

        return check_formulas(self.model_graph, None)

    def branches(self) -> Branches:
        """Return for each op that takes branches whether the values that are fed take each of them.

        Then how many stand where nobody can look, by where that is.
        """
        inside = sum(
            len(body.by_type.get(op, ()))
            for body in self.model_graph.functions.values()
            for op in SIGNED | TRUTHS.keys()
            if not body.is_ours
        )
        return {}, {"functions": inside}


class SessionModel(GraphRun, RunningModel):
    """A graph in a Session; where the model has a checkpoint, variables have its values."""

    def __init__(self, model: Model, graph: ModelGraph) -> None:
        is_limited = may_be_endless(op for body in graph.bodies for op in body.by_type)
        super().__init__(seeded_graph(model, graph), is_limited=is_limited)
        self.model, self.model_graph, self.prefix = model, graph, checkpoint(model)
        self.watched, self.hidden = branch_inputs(self.graph)

    def _full_names(self, names: Iterable[str], are_sources: bool = False) -> list[str]:
        """Return tensors as TensorFlow spells them; ModelError for one that is not there."""
        names = list(names)
        ends = (names, []) if are_sources else ([], names)
        refuse_unknown_ends(self.model.path, [self.model_graph], *ends)
        return list(map(full_tensor_name, names))

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return outputs, those of signatures, `more`, and the targets that are asked for."""
        signatures = meta_around(self.model_graph).signature_def.values()
        signed = (info.name for item in signatures for info in item.outputs.values() if info.name)
        asked = [*signed, *more, *self._full_names(targets)]
        names = dict.fromkeys([*result_tensors(self.graph), *asked])
        # An import adds Exits that freezing pruned; what is compared is what the file has.
        present = self.there(
            [name for name in names if op_of(name) in self.model_graph.main.by_name]
        )
        # In the same run others read a variable that is written, and who is faster decides.
        behind = waiting_ops(list(filter(_writes, self.graph.get_operations())))
        after = [n for n in present if self.graph.get_tensor_by_name(n).op in behind]
        return present, after

    def there(self, names: Sequence[str]) -> list[str]:
        """Return those of these tensors that exist and can be fetched."""
        return list(fetchable(self.graph, names))

    def guess(self, feed: Values, size: int, whole: tuple[int, ...]) -> None:
        """Take what is fed, what a checkpoint or an initialiser gives, and seeded values."""
        fed = dict(zip(self._full_names(feed, True), feed.values(), strict=True))
        restored = restored_values(self.graph, self.prefix)
        self.feeds = seeded_feeds(self.graph, size, whole, fed)
        self.variables = initial_values(self.graph, restored, size, whole)

    def values(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        names = {op.name for op in variables_of(self.graph)}
        shared = {name: value for name, value in variables.items() if name in names}
        self.variables = {**shared, **restored_values(self.graph, self.prefix)}

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Run in a Session; optimised, calls have their functions optimised as the model says."""
        if optimise and any(CALLS & body.by_type.keys() for body in self.model_graph.bodies):
            graph = seeded_graph(self.model, self.model_graph, optimise=True)
            run = GraphRun(graph, self.feeds, self.variables, is_limited=self.is_limited)
            return run.run(fetches, optimise)
        return super().run(fetches, optimise)

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answers:
        """Return what tf.gradients gives."""
        return session_gradients(self, sources, target, dy)

    def ends(
        self, named: tuple[Sequence[str], Sequence[str]], near: Near, compared: Sequence[str]
    ) -> Ends:
        """Return between which tensors gradients are taken."""
        graph, (patched, read) = self.graph, near
        ops = *patched, *read
        xs = self._full_names(named[0], True) or default_sources(graph, self.feeds, ops)
        if named[1]:
            return xs, self._full_names(named[1]), []
        ys = default_targets(graph, compared, patched)
        updates = trained(graph, self.model_graph.main)
        return xs, ys, [name for name in ys if graph.get_tensor_by_name(name).op in updates]

    def formulas(self) -> Sequence[Any]:
        """Return each formula that the graph carries, compared with numpy."""
        from graphpatch.runtime.verify.formulas import check_formulas

        return check_formulas(self.model_graph, self)

    def branches(self) -> Branches:
        """Return which branches the values take, of ops that are in no loop, branch or function."""
        values, _ = super().run(sorted(set(self.watched.values())), False)
        # What waits for a queue that nobody fills is asked once.
        self.watched = {op: name for op, name in self.watched.items() if name in values}
        taken = {
            name: (
                bool(np.any(~value if value.dtype == bool else value < 0)),
                bool(np.any(value > 0)),
            )
            for name, value in values.items()
        }
        hidden = {"v1 loops or branches": self.hidden, **super().branches()[1]}
        return {op: taken[name] for op, name in self.watched.items()}, hidden


def session_gradients(running: GraphRun, sources: Sequence[str], target: str, dy: Any) -> Answers:
    """Take the gradient of a target, weighted by dy, with respect to each source, and run it.

    In a branch that is not taken there is no gradient.
    """
    import tensorflow as tf

    with running.graph.as_default(), recorded() as asked:
        upstream = tf.constant(dy, running.graph.get_tensor_by_name(target).dtype)
        try:
            built = gradients_or_raised(running.graph, target, sources, upstream, dense=True)
        except RaisedError as error:
            return dict.fromkeys(sources, GradientAnswer("error", says=str(error))), asked
    names = {name: dx.name for name, dx in zip(sources, built, strict=True) if dx is not None}
    values, reasons = running.run(list(names.values()), False)
    answers = dict.fromkeys(sources, GradientAnswer("none"))
    for source, name in names.items():
        if name in values:
            answers[source] = GradientAnswer("tensor", np.asarray(values[name]))
        elif DEAD not in reasons[name]:
            answers[source] = GradientAnswer("error", says=f"running it fails: {reasons[name]}")
    return answers, asked


class LoadedModel(RunningModel):
    """A TF2 SavedModel as tf.saved_model.load gives it; tensors are called `signature:name`.

    Its ops are in functions, where nobody can look. Each run loads it anew where it has random ops,
    which else would draw on. Variables have the values of its own checkpoint.
    """

    def __init__(self, model: Model, graph: ModelGraph) -> None:
        import tensorflow as tf

        self.model_graph, self.feeds, self.variables = graph, {}, {}
        self._loaded: Any = None
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name, "model")
        if not tf.executing_eagerly():
            raise ModelError("TensorFlow does not execute eagerly, which a TF2 SavedModel needs")
        self.is_random = self._write_seeded(model)
        try:
            signatures = self.signatures()
        except Exception as error:  # whatever the loader says is the reason
            raise ModelError(f"tf.saved_model.load raises {first_line(error)}") from error
        self.inputs, self.outputs = dict[str, Any](), dict[str, Any]()
        for key, function in signatures.items():
            takes, gives = function.structured_input_signature[1], function.structured_outputs
            self.inputs |= {f"{key}:{name}": spec for name, spec in takes.items()}
            self.outputs |= {f"{key}:{name}": spec for name, spec in gives.items()}

    def _write_seeded(self, model: Model) -> bool:
        """Write the model, its random ops seeded, beside its variables; whether it has such ops."""
        from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

        message = SavedModel.FromString(b"".join(map(piece_bytes, model.pieces())))
        draws = False
        for meta, graph in zip(message.meta_graphs, model.graphs, strict=True):
            draws |= set_seeds(meta.graph_def, graph)
            for node in meta.object_graph_def.nodes:  # of an optimiser, which loaders may not know
                node.ClearField("slot_variables")
        self.folder.mkdir()
        (self.folder / MESSAGE).write_bytes(message.SerializeToString())
        if not model.in_memory:
            refuse_odd_files(Path(model.path))
            for path in Path(model.path).iterdir():
                if path.name not in {MESSAGE, "saved_model.pbtxt", "fingerprint.pb"}:
                    (self.folder / path.name).symlink_to(path.resolve())
        return draws

    def signatures(self) -> Mapping[str, Any]:
        """Return the functions of the model that have names for their inputs and outputs."""
        import tensorflow as tf

        if self._loaded is None or self.is_random:
            self._loaded = tf.saved_model.load(str(self.folder))
        signatures: Mapping[str, Any] = self._loaded.signatures
        return signatures

    def _checked(self, names: Sequence[str]) -> list[str]:
        legal = [*self.inputs, *self.outputs]
        for name in names:
            if name not in legal:
                listed = ", ".join(legal)
                raise ModelError(f"no input or output is named {name!r}; there are: {listed}")
        return list(names)

    def tensors(self, more: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the outputs of signatures; none comes after a write that could be left out."""
        self._checked(targets)
        return list(self.outputs), []

    def there(self, names: Sequence[str]) -> list[str]:
        """Return those of these outputs that there are."""
        return [name for name in names if name in self.outputs]

    def guess(self, feed: Values, size: int, whole: tuple[int, ...]) -> None:
        """Take what is fed, by the name of an input with or without its signature, and seeds."""
        short = {full: f"{full.partition(':')[2]}:0" for full in self.inputs}
        self._checked([name for name in feed if name not in short.values()])
        self.feeds = {
            full: seeded_value(full, spec.dtype, spec.shape, size, whole)
            if (value := feed.get(full, feed.get(short[full]))) is None
            else value
            for full, spec in self.inputs.items()
        }

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Call the signatures of these outputs."""
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        functions = self.signatures()
        for key in dict.fromkeys(map(op_of, fetches)):
            wanted = [name for name in fetches if op_of(name) == key]
            try:
                self._set_optimiser(optimise)
                results = functions[key](**self._arguments(key, functions[key]))
            except Exception as error:  # whatever TensorFlow says is the reason
                reasons |= dict.fromkeys(wanted, first_line(error))
                continue
            values |= {name: np.asarray(results[name.removeprefix(f"{key}:")]) for name in wanted}
        return values, reasons

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answers:
        """Return the gradient of a target, weighted by dy, as a tape gives it."""
        import tensorflow as tf

        key = op_of(target)
        function = self.signatures()[key]
        variables = _float_variables(key, function)
        near = [name for name in sources if op_of(name) == key]
        answers = dict.fromkeys(sources, GradientAnswer("none"))
        self._set_optimiser(True)
        with recorded() as asked:
            try:
                arguments = self._arguments(key, function)
                with tf.GradientTape() as tape:
                    inputs = {f"{key}:{name}": value for name, value in arguments.items()}
                    xs = [{**inputs, **variables}[name] for name in near]
                    for x in xs:
                        tape.watch(x)
                    y = function(**arguments)[target.removeprefix(f"{key}:")]
                built = tape.gradient(y, xs, output_gradients=tf.constant(dy, y.dtype))
            except Exception as error:  # whatever a gradient function raises is the answer
                failed = GradientAnswer("error", says=f"a tape raises {first_line(error)}")
                return dict.fromkeys(sources, failed), asked
        for name, dx in zip(near, built, strict=True):
            if dx is not None:
                answers[name] = GradientAnswer("tensor", np.asarray(tf.convert_to_tensor(dx)))
        return answers, asked

    def _set_optimiser(self, optimise: bool) -> None:
        """Let functions run as TensorFlow optimises them from now on, or op by op."""
        import tensorflow as tf

        options = {"disable_meta_optimizer": not optimise}
        tf.config.optimizer.set_experimental_options(options)

    def _arguments(self, key: str, function: Any) -> dict[str, Any]:
        import tensorflow as tf

        specs = function.structured_input_signature[1]
        return {name: tf.constant(self.feeds[f"{key}:{name}"], specs[name].dtype) for name in specs}

    def ends(
        self, named: tuple[Sequence[str], Sequence[str]], near: Near, compared: Sequence[str]
    ) -> Ends:
        """Return the inputs and outputs between which gradients are taken.

        Models that are fed words have no inputs of floats: then it is their variables.
        """
        specs = {**self.inputs, **self.outputs}
        floats = [name for name in self.inputs if _is_float(specs[name])]
        xs = self._checked(named[0]) or floats
        if not xs:
            functions = self.signatures().items()
            xs = [name for key, function in functions for name in _float_variables(key, function)]
        ys = self._checked(named[1]) or filter(lambda name: _is_float(specs[name]), compared)
        return xs, list(ys), []


def _float_variables(key: str, function: Any) -> dict[str, Any]:
    """Return the variables of floats that a signature reads, by names that no other one has."""
    variables = dict[str, Any]()
    for variable in function.variables:
        if variable.dtype.is_floating:
            variables[fresh(f"{key}:{variable.name}", variables)] = variable
    return variables


def seeded_graph(model: Model, graph: ModelGraph, optimise: bool = False) -> Any:
    """Return the tf.Graph of a model's graph, with its control-flow contexts and seeded random ops.

    Functions that are called run op by op; with `optimise`, as the calls say. Raises ModelError
    where TensorFlow does not take it, in its words.
    """

    def prepare(graph_def: Any) -> None:
        set_seeds(graph_def, graph)
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
    import tensorflow as tf

    seeded, initial = dict[str, Any](), dict[str, str]()
    for op in variables_of(graph):
        if op.name in fixed:
            continue
        seeded[op.name] = seeded_variable(op, size, whole)
        for reader in op.outputs[0].consumers():
            named = reader.name == f"{op.name}/Assign" and reader.type.startswith("Assign")
            is_first = named and reader.inputs[0].op is op
            shape = tf.TensorShape(op.get_attr("shape"))
            if is_first and reader.inputs[1].shape.is_compatible_with(shape):
                initial[op.name] = reader.inputs[1].name
    asked = sorted(set(initial.values()))
    values = GraphRun(graph, variables={**fixed, **seeded}).run(asked, False)[0] if asked else {}
    drawn = {name: values[tensor] for name, tensor in initial.items() if tensor in values}
    return {**fixed, **seeded, **drawn}


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
    return any(map(_is_float, outputs)) if _is_float(tensor) else bool(outputs)


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
    targets = sorted(filter(_is_float, unread), key=lambda tensor: tensor.op not in behind)
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


def _is_float(tensor: Any) -> bool:
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
    sources = dict.fromkeys(tensor.name for tensor in tensors if _is_float(tensor))
    if not sources:
        return _variables_or_constants(graph, ops)
    behind = waiting_ops([graph.get_tensor_by_name(name).op for name in sources])
    others = [op for op in ops if op.name in set(patched) and op not in behind]
    return [*sources, *_variables_or_constants(graph, ops_before(others, control=False))]


def _variables_or_constants(graph: Any, ops: Sequence[Any]) -> list[str]:
    """Return the variables of floats among some ops, or else the largest constants."""
    variables = [op for op in ops if op.type in VARIABLES]
    names = [op.outputs[0].name for op in variables if op.get_attr("dtype").is_floating]
    if names:
        return names
    hidden = ops_in_control_flow(graph)
    outputs = [op.outputs[0] for op in ops if op.type == "Const" and op not in hidden]
    constants = sorted(filter(_is_float, outputs), key=lambda t: -(t.shape.num_elements() or 0))
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


def branch_inputs(graph: Any) -> tuple[dict[str, str], int]:
    """Return the ops that take branches, each with the tensor by which it decides.

    Then how many there are in v1 loops and branches, which cannot be looked at.
    """
    read, hidden, inside = dict[str, str](), 0, ops_in_control_flow(graph)
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
            read[op.name] = tensor.name
        else:
            hidden += 1
    return read, hidden

"""A model that TensorFlow runs, in this process: as a graph in a Session, or as it is loaded.

Both kinds answer the same messages of `process.TensorFlowProcess`: what there is to compare, what
to feed, values, gradients, branches and formulas.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphpatch import opdefs
from graphpatch.analysis.interface import default_targets, refuse_unknown_ends
from graphpatch.analysis.training import gradient_scopes
from graphpatch.control_flow.contexts import inside_control_flow
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import ModelError
from graphpatch.formats import Model, load
from graphpatch.formats.model import MESSAGE, meta_around
from graphpatch.formats.output import regular_files
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body
from graphpatch.graph.op_types import CALLS, IFS, PARSERS, PIPELINES, SWITCHES, VARIABLES
from graphpatch.graph.wire import piece_bytes
from graphpatch.names import OpKey, fresh, op_of
from graphpatch.opdefs import HANDLES
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import (
    ASSIGNED,
    ENDLESS,
    GraphRun,
    Ran,
    first_line,
    ops_before,
    placeholders,
    run_op_by_op,
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
from graphpatch.runtime.values import Guess, Values, full_tensor_name, seeded_value

SEEDS = ("seed", "seed2")
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
SIDES = "below 0, or false", "above 0, or true"
Branches = tuple[dict[str, set[str]], dict[str, int]]  # sides that were taken, and hidden by where


class Plan(NamedTuple):
    """What there is to compare in a graph.

    `writing` are those of the `tensors` that come after a write to a variable: where others read it
    in the same run, who is faster decides. `trained` are `targets` that training computes
    from gradients. `left_out` are tensors that nobody may compare, each with the reason.
    """

    tensors: list[str]
    sources: list[str]
    targets: list[str]
    writing: Set[str] = frozenset()
    trained: Sequence[str] = ()
    left_out: Mapping[str, str] = {}


def running_model(file: str, path: str, index: int) -> SessionModel | LoadedModel:
    """Return a graph of the model in a file, which the user calls `path`, as TensorFlow runs it."""
    model = load(file)
    graph = model.graphs[index]
    if graph.around.is_object_based:
        return LoadedModel(model, graph)
    return SessionModel(replace(model, path=path), graph)


class SessionModel(GraphRun):
    """A graph in a Session; where the model has a checkpoint, variables have its values."""

    model: Model

    def __init__(self, model: Model, graph: ModelGraph) -> None:
        self.model, self.model_graph = model, graph
        ops = {op for body in graph.bodies for op in body.by_type}
        limit = next((ms for which, ms in ENDLESS.items() if any(map(which.search, ops))), 0)
        super().__init__(**self.built(False), limit=limit, model=model)
        # The ops in v1 loops and branches, of which a Session fetches nothing.
        body, names = graph.main, graph.main.heads.names
        switches = (index for op in SWITCHES for index in body.by_type.get(op, ()))
        self.inside = {names[index] for index in (*inside_control_flow(body), *switches)}

    def built(self, optimise: bool) -> dict[str, Any]:
        """Return a new tf.Graph, and what goes with it, that calls functions op by op or not."""
        return {"graph": seeded_graph(self.model, self.model_graph, optimise)}

    def plan(
        self,
        fed: Sequence[str],
        sources: Sequence[str],
        targets: Sequence[str],
        patched: Sequence[str],
        read: Sequence[str],
    ) -> Plan:
        """Return what to compare: outputs, also of signatures and of the ops that rules patched.

        `read` are ops that these read. Without names gradients are taken of all float outputs.
        """
        refuse_unknown_ends(self.model.path, [self.model_graph], [*fed, *sources], targets)
        sources, targets = (list(map(full_tensor_name, names)) for names in (sources, targets))
        signatures = meta_around(self.model_graph).signature_def.values()
        signed = (info.name for item in signatures for info in item.outputs.values() if info.name)
        names = dict.fromkeys([*self.results, *signed, *(f"{op}:0" for op in patched), *targets])
        # An import adds Exits that freezing pruned; what is compared is what the file has.
        in_file = self.model_graph.main.by_name
        tensors = self.there([name for name in names if op_of(name) in in_file])
        writes = waiting_ops(list(filter(_writes, self.graph.get_operations())))
        updates = set() if targets else trained(self.graph, self.model_graph.main)
        targets = targets or self._targets(patched)
        return Plan(
            tensors,
            sources or self._sources(fed, {*patched, *read}),
            targets,
            writing={name for name in tensors if self.tensor(name).op in writes},
            trained=[name for name in targets if self.tensor(name).op in updates],
        )

    def there(self, names: Iterable[str]) -> list[str]:
        """Return those of these tensors that exist and can be fetched."""
        tensors = []
        for name in names:
            try:
                tensors.append(self.graph.get_tensor_by_name(name))
            except (KeyError, ValueError):
                continue
        return [t.name for t in tensors if _is_value(t) and t.op.name not in self.inside]

    @cached_property
    def results(self) -> list[str]:
        """Return the tensors that are computed, and that no op computes another tensor of.

        A float tensor that is made an int of, as logits by ArgMax, is among them; so is what only
        ops read that write to variables, or give nothing. Left out is what is uninitialised.
        """
        outputs = (
            output
            for op in self.graph.get_operations()
            if op.inputs and not op.name.startswith(ASSIGNED)
            for output in op.outputs
            if not _gives_comparable(output) and not _is_scratch(output)
        )
        return self.there(output.name for output in outputs)

    def guess(self, fed: Values, guess: Guess) -> None:
        """Take what is fed, what a checkpoint or an initialiser gives, and seeded values."""
        refuse_unknown_ends(self.model.path, [self.model_graph], list(fed), ())
        super().guess(fed, guess)

    def hold(self, variables: Values) -> None:
        """Let the variables hold these values, where its own checkpoint has no others."""
        shared = {name: value for name, value in variables.items() if name in self._assigns}
        self.variables = {**shared, **self.restored}

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Run in a Session; optimised, calls have their functions optimised as the model says."""
        if optimise and any(CALLS & body.by_type.keys() for body in self.model_graph.bodies):
            optimised = GraphRun(**self.built(True), limit=self.limit)
            optimised.feeds, optimised.variables = self.feeds, self.variables
            return optimised.run(fetches, optimise)
        return super().run(fetches, optimise)

    def gradients(self, sources: Sequence[str], target: str, dy: Any) -> Answers:
        """Take the gradient of a target, weighted by dy, with respect to each source, and run it.

        In a branch that is not taken there is no gradient.
        """
        y, xs = self.tensor(target), list(map(self.tensor, sources))
        with self.graph.as_default(), recorded() as asked:
            try:
                built = gradients_or_raised(y, xs, tf.constant(dy, y.dtype), dense=True)
            except RaisedError as error:
                return dict.fromkeys(sources, GradientAnswer("error", says=str(error))), asked
        names = {name: dx.name for name, dx in zip(sources, built, strict=True) if dx is not None}
        values, reasons = self.run(list(names.values()), False)
        answers = dict.fromkeys(sources, GradientAnswer("none"))
        for source, name in names.items():
            if name in values:
                answers[source] = GradientAnswer("tensor", np.asarray(values[name]))
            elif DEAD not in reasons[name]:
                answers[source] = GradientAnswer("error", says=f"running it fails: {reasons[name]}")
        return answers, asked

    def _targets(self, patched: Iterable[str]) -> list[str]:
        """Return the float outputs of which gradients are taken, where nobody names them.

        Nothing reads their ops: not what ops give beside what is read. First come those that are
        computed from the ops that rules patched; of them, what a user would name.
        """
        ops = {op.name: op for op in self.graph.get_operations()}
        ends = list(map(self.tensor, self.results))
        unread = [t for t in ends if not any(map(_gives_comparable, t.op.outputs))]
        behind = waiting_ops([ops[name] for name in patched if name in ops])
        graph, wiring = self.model_graph, Wiring(self.model_graph.main)
        likely = list(map(wiring.spelled, default_targets(graph, wiring, every=False)))
        ranks = {name: rank for rank, name in enumerate(likely)}

        def rank(tensor: Any) -> tuple[bool, int]:
            return tensor.op not in behind, ranks.get(tensor.name, len(ranks))

        return [tensor.name for tensor in sorted(filter(_is_float, unread), key=rank)]

    def _sources(self, fed: Iterable[str], near: set[str]) -> list[str]:
        """Return the floats that are fed, parsed or read; else float variables; else constants.

        Those that the ops `near` the rules are computed of are added where no fed float comes to
        these ops.
        """
        ops = self.graph.get_operations()
        parsed = (t for op in ops if op.type in PARSERS | PIPELINES for t in op.outputs)
        tensors = (*placeholders(self.graph), *parsed, *map(self.tensor, fed))
        sources = {tensor.name: tensor.op for tensor in tensors if _is_float(tensor)}
        if not sources:
            return self._parameters(ops)
        behind = waiting_ops(list(sources.values()))
        others = [op for op in ops if op.name in near and op not in behind]
        return [*sources, *self._parameters(ops_before(others, control=False))]

    def _parameters(self, ops: Sequence[Any]) -> list[str]:
        """Return the variables of floats among some ops, or else the largest constants: weights."""
        variables = [op for op in ops if op.type in VARIABLES]
        names = [op.outputs[0].name for op in variables if op.get_attr("dtype").is_floating]
        constants = [op for op in ops if op.type == "Const" and op.name not in self.inside]
        floats = [op.outputs[0] for op in constants if _is_float(op.outputs[0])]
        floats.sort(key=lambda tensor: -(tensor.shape.num_elements() or 0))
        return names or [tensor.name for tensor in floats[:MOST_CONSTANTS]]

    def formulas(self) -> Sequence[Any]:
        """Return each formula that the graph carries, compared with numpy."""
        from graphpatch.runtime.verify.formulas import check_formulas

        return check_formulas(self)

    @cached_property
    def _deciders(self) -> dict[str, str]:
        """Return the ops that take branches, each with the tensor by which it decides.

        No tensor where it cannot be looked at: in v1 loops and branches.
        """
        deciders = dict[str, str]()
        for op in self.graph.get_operations():
            if op.name.startswith(ASSIGNED) or op.type not in SIGNED | TRUTHS.keys():
                continue
            tensor = op.inputs[TRUTHS.get(op.type, 0)]
            if tensor.dtype.is_bool if op.type in TRUTHS else tensor.dtype.is_floating:
                # In a loop or branch an op does not run by what it reads; a Switch begins one.
                is_seen = op.name not in self.inside or op.type in TRUTHS
                deciders[op.name] = tensor.name if is_seen and self.there([tensor.name]) else ""
        return deciders

    def branches(self) -> Branches:
        """Return which branches the values take, of ops that are in no loop, branch or function."""
        deciders, taken = self._deciders, dict[str, set[str]]()
        values, _ = super().run(sorted(filter(None, set(deciders.values()))), False)
        for op, name in deciders.items():
            if name in values:
                value = values[name]
                below = ~value if value.dtype == bool else value < 0
                pairs = zip(SIDES, (below, value > 0), strict=True)
                taken[op] = {side for side, is_there in pairs if np.any(is_there)}
        # What waits for a queue that nobody fills is asked once.
        self._deciders = {op: name for op, name in deciders.items() if not name or op in taken}
        hidden = sum(not name for name in deciders.values())
        return taken, {"v1 loops or branches": hidden, **branches_in_functions(self.model_graph)}


def branches_in_functions(graph: ModelGraph) -> dict[str, int]:
    """Return how many ops that take branches stand in functions, where nobody can look."""
    bodies = [body for body in graph.functions.values() if not body.is_ours]
    types = SIGNED | TRUTHS.keys()
    return {"functions": sum(len(body.by_type.get(op, ())) for body in bodies for op in types)}


class LoadedModel(SessionModel):
    """A TF2 SavedModel as tf.saved_model.load gives it: a graph that calls each signature.

    Tensors are called `signature:name`. All other ops are in functions, where nobody can look.
    Variables have the values of its own checkpoint.
    """

    def __init__(self, model: Model, graph: ModelGraph) -> None:
        if not tf.executing_eagerly():
            raise ModelError("TensorFlow does not execute eagerly, which a TF2 SavedModel needs")
        self._folder = tempfile.TemporaryDirectory()
        self._write_seeded(model, Path(self._folder.name))
        super().__init__(model, graph)

    def _write_seeded(self, model: Model, folder: Path) -> None:
        """Write the model, its random ops seeded, beside its variables."""
        from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

        message = SavedModel.FromString(b"".join(map(piece_bytes, model.pieces())))
        for meta, graph in zip(message.meta_graphs, model.graphs, strict=True):
            set_seeds(meta.graph_def, graph)
            for node in meta.object_graph_def.nodes:  # of an optimiser, which loaders may not know
                node.ClearField("slot_variables")
        (folder / MESSAGE).write_bytes(message.SerializeToString())
        list(regular_files(Path(model.path)))  # raises for what it does not follow
        for path in Path(model.path).iterdir():
            if path.name not in {MESSAGE, "saved_model.pbtxt", "fingerprint.pb"}:
                (folder / path.name).symlink_to(path.resolve())

    def built(self, optimise: bool) -> dict[str, Any]:
        """Return a new tf.Graph of calls of its signatures, with the names of their tensors."""
        tf1 = tf.compat.v1
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not optimise})
        inputs, outputs, variables = dict[str, Any](), dict[str, Any](), dict[str, Any]()
        with tf.Graph().as_default() as graph:
            try:
                signatures = tf.saved_model.load(self._folder.name).signatures
            except Exception as error:  # whatever the loader says is the reason
                raise ModelError(f"tf.saved_model.load raises {first_line(error)}") from error
            for key, function in signatures.items():
                specs = function.structured_input_signature[1].items()
                takes = {name: tf1.placeholder(spec.dtype, spec.shape) for name, spec in specs}
                inputs |= {f"{key}:{name}": tensor for name, tensor in takes.items()}
                gives = function(**takes).items()
                outputs |= {f"{key}:{name}": tensor for name, tensor in gives}
                for variable in function.variables:
                    if variable.dtype.is_floating:
                        name = fresh(f"{key}:{variable.name}", variables)
                        variables[name] = variable.handle
            restores = [variable.initializer for variable in tf1.global_variables()]
            initialisers = [op for op in (*restores, tf1.tables_initializer()) if op is not None]
        self.inputs, self.outputs, self.floats = inputs, outputs, list(variables)
        tensors = {**variables, **inputs, **outputs}
        names = {name: tensor.name for name, tensor in tensors.items()}
        return {"graph": graph, "names": names, "initialisers": initialisers}

    def _checked(self, names: Sequence[str]) -> list[str]:
        legal = [*self.inputs, *self.outputs]
        for name in names:
            if name not in legal:
                listed = ", ".join(legal)
                raise ModelError(f"no input or output is named {name!r}; there are: {listed}")
        return list(names)

    def plan(
        self, fed: Sequence[str], sources: Sequence[str], targets: Sequence[str], *_: Sequence[str]
    ) -> Plan:
        """Return outputs, and the inputs and outputs between which gradients are taken.

        Models that are fed words have no inputs of floats: then it is their variables.
        """
        inputs = [name for name, tensor in self.inputs.items() if _is_float(tensor)]
        outputs = [name for name, tensor in self.outputs.items() if _is_float(tensor)]
        sources = self._checked(sources) or inputs or self.floats
        return Plan(list(self.outputs), sources, self._checked(targets) or outputs)

    def there(self, names: Iterable[str]) -> list[str]:
        """Return those of these outputs that there are."""
        return [name for name in names if name in self.outputs]

    def guess(self, fed: Values, guess: Guess) -> None:
        """Take what is fed, by the name of an input with or without its signature, and seeds."""
        self._checked([n for n in fed if n not in map(without_signature, self.inputs)])
        self.feeds = {
            full: seeded_value(full, spec.dtype, spec.shape, guess)
            if (value := fed.get(full, fed.get(without_signature(full)))) is None
            else value
            for full, spec in self.inputs.items()
        }

    def hold(self, variables: Values) -> None:
        """Let the variables hold what its own checkpoint says."""

    def run(self, fetches: Sequence[str], optimise: bool) -> Ran:
        """Run each signature by itself: where one fails, others do not."""
        by_key: dict[str, list[str]] = {}
        for name in fetches:
            by_key.setdefault(op_of(name) if name in self.names else "", []).append(name)
        runs = [super(LoadedModel, self).run(names, optimise) for names in by_key.values()]
        values = {name: value for ran, _ in runs for name, value in ran.items()}
        return values, {name: why for _, reasons in runs for name, why in reasons.items()}

    def branches(self) -> Branches:
        """Return that no branch can be looked at."""
        return {}, branches_in_functions(self.model_graph)


def without_signature(name: str) -> str:
    """Return how an input, `signature:name`, may be fed for all signatures that have it."""
    return f"{name.partition(':')[2]}:0"


def seeded_graph(model: Model, graph: ModelGraph, optimise: bool = False) -> Any:
    """Return the tf.Graph of a model's graph, with its control-flow contexts and seeded random ops.

    Functions that are called run op by op; with `optimise`, as the calls say. Raises ModelError
    where TensorFlow does not take it, in its words.
    """
    register_lone_keys(graph)
    try:
        meta = bare_meta(model.meta_graph(graph))
    except ModelError:  # contexts that cannot be rebuilt; a Session runs it all the same
        meta = bare_meta(model.meta_graph(graph, rebuild=False))
    set_seeds(meta.graph_def, graph)
    if not optimise:
        run_op_by_op(meta.graph_def)
    return imported(meta, clear_devices=True)


def set_seeds(graph_def: Any, graph: ModelGraph) -> None:
    """Give random ops of a GraphDef, and of its functions, seeds by name.

    A random op whose seeds are 0 draws from the seed of the graph and its own place in it, which
    changes when nodes are added. So it gets explicit seeds, by the name that the model gives it; in
    a function that a rule added by its type.
    """
    touched = (node for body in graph.bodies for node in provenance.touched(body))
    names_in_model = {(n.body.label, n.name): provenance.in_model(n).name for n in touched}
    bodies = [("main", graph_def.node)]
    bodies += [(item.signature.name, item.node_def) for item in graph_def.library.function]
    for body, node in ((body, node) for body, nodes in bodies for node in nodes):
        if _has_seeds(node.op) and not any(node.attr[key].i for key in SEEDS):
            own = names_in_model.get((body, node.name), node.name)
            text = node.op if body.startswith(OUR_PREFIX) else own
            node.attr[SEEDS[0]].i = 1 + (zlib.crc32(text.encode()) & 0x7FFFFFFE)
            node.attr[SEEDS[1]].i = 1


@cache
def _has_seeds(op: str) -> bool:
    known = opdefs.lookup(op)
    return known is not None and set(SEEDS) <= {attr.name for attr in known.attrs}


def _gives_comparable(tensor: Any) -> bool:
    """Return whether another tensor that can be compared in its place is computed of it."""
    outputs = [to for reader in tensor.consumers() for to in reader.outputs if _is_value(to)]
    return any(map(_is_float, outputs)) if _is_float(tensor) else bool(outputs)


def _is_scratch(tensor: Any) -> bool:
    """Return whether it is room that an op reserves for its gradient, and need not fill."""
    args = tensor.op.op_def.output_arg if tensor.op.op_def is not None else ()
    count = len(tensor.op.outputs)
    return len(args) == count and args[tensor.value_index].name.startswith(RESERVED)


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


def _is_value(tensor: Any) -> bool:
    """Return whether it can be fetched as an array, of a size that can be held."""
    dtype, size = tensor.dtype, tensor.shape.num_elements() or 0
    is_array = dtype.base_dtype.name not in HANDLES and not dtype._is_ref_dtype
    return size <= LARGEST_OUTPUT and is_array


def _is_float(tensor: Any) -> bool:
    """Return whether TensorFlow takes gradients of it, or with respect to it."""
    dtype = tensor.dtype
    return bool(dtype.is_floating or dtype.is_complex) and not dtype._is_ref_dtype

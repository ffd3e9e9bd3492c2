"""Rules on a live graph: in place where keys are enough, else in a patched copy of the graph."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

from graphpatch.application import Result, apply, reported_rules
from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.differentiation.bodies import callers
from graphpatch.differentiation.flow import CUSTOM
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.formats import Model
from graphpatch.formats.load import instead_of
from graphpatch.graph import attrs
from graphpatch.graph.check import BUILT
from graphpatch.graph.graph import Graph
from graphpatch.graph.walk import reached
from graphpatch.rules import Rule, RulesLike, rules_of
from graphpatch.runtime import tf
from graphpatch.runtime.functions import unconverted
from graphpatch.runtime.imported import bare_meta, imported, model_of
from graphpatch.runtime.live import NoKeyError, keyed, put_into, rules_of_live
from graphpatch.runtime.register import register_gradients
from graphpatch.runtime.values import full_tensor_name
from graphpatch.shown import plural, short

DEEPEST_OBJECT = 4  # an object in a collection, what it holds, and what that holds

OPAQUE = (str, bytes, int, float, bool, type, FunctionType, MethodType, ModuleType)

# Where tf.compat.v1.get_variable finds variables, and which scopes are open.
STORES = {
    ("__variable_store",): ("_vars", "_partitioned_vars"),
    ("__varscope",): ("variable_scopes_count",),
}


@dataclass(frozen=True, eq=False, repr=False)
class PatchedGraph:
    """A live graph to which rules were applied.

    `in_place`: `graph` is the graph that was given, and keys are registered in this process. Else
    `graph` is a new one beside it, with the variables, collections, savers, queue runners,
    control-flow contexts, devices and colocations of the old one, which is left as it was. `report`
    is what `graphpatch apply --json` prints, with `in_place`. `old` is the graph that was given.

    Forward, each tensor of `graph` has the value, shape and dtype of the one that it stands for.

    Example:
        >>> old = tf.Graph()
        >>> with old.as_default():
        ...     x = tf.compat.v1.get_variable("x", [2])
        ...     y = tf.nn.relu(x, name="act")
        >>> patched = graphpatch.patch_graph("rules.json", old, in_place=False)
        >>> patched.of({"x": x, "y": y})["y"].shape
        TensorShape([2])
        >>> patched.variable(x).name, patched.operation("act").name, patched.tensor("act").name
        ('x:0', 'act', 'act:0')
        >>> a, b = (tf.compat.v1.Session(graph=one) for one in (old, patched.graph))
        >>> a.run(x.initializer)
        >>> patched.restore(a, b)
        ['x:0']
    """

    graph: Any
    old: Any
    report: dict[str, Any] = field(default_factory=dict)
    _remade: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by id: the old and the new

    @property
    def in_place(self) -> bool:
        """Return whether `graph` is the graph that was given."""
        return self.graph is self.old

    @property
    def ok(self) -> bool:
        """Return True: `patch_graph` raises where a rule cannot be applied."""
        return True

    def document(self) -> dict[str, Any]:
        """Return the report."""
        return self.report

    def tensor(self, old: Any) -> Any:
        """Return the tensor that stands for a tensor of the old graph, or has this name.

        It carries the new gradient. Raises TypeError for what is not a tensor, ValueError for one
        of another graph, KeyError for a name that is not there.
        """
        name = self._name(old, tf.Tensor, "a tensor or its name")
        return self.graph.get_tensor_by_name(full_tensor_name(name))

    def operation(self, old: Any) -> Any:
        """Return the operation that stands for one of the old graph, or has this name.

        Where a construction took the name of an op, it is the op that consumers read; the op that
        computes the value is called `NAME/forward`. Raises TypeError for what is not an operation,
        ValueError for one of another graph, KeyError for a name that is not there.
        """
        name = self._name(old, tf.Operation, "an operation or its name")
        return self.graph.get_operation_by_name(name)

    def variable(self, old: Any) -> Any:
        """Return the variable that stands for one of the old graph. Values: see `restore`.

        Raises TypeError for what is not a variable, ValueError for one of another graph.
        """
        return self._made_again(self._checked(old, tf.Variable, "a variable"))

    def of(self, old: Any) -> Any:
        """Return what stands for a tensor, operation, variable, saver or queue runner.

        Also for names (`x:0` is a tensor, `x` an operation), for sparse and ragged tensors, and
        for all of these in a list, tuple or dict, in which None stays. Raises TypeError for
        anything else, ValueError for what is of another graph, KeyError for a name that is not
        there.
        """
        return tf.nest.map_structure(self._counterpart, old)

    def restore(self, old_session: Any, new_session: Any) -> list[str]:
        """Copy the values of variables from a Session of the old graph to one of the patched.

        All variables are copied that are in a collection and have a value, reference and resource
        variables alike; no op is added. Returns their names. Not copied, as it is not a variable:
        what tables, queues, iterators and random ops hold. Raises ValueError where a Session is of
        another graph.
        """
        if old_session.graph is not self.old or new_session.graph is not self.graph:
            raise ValueError("expected a Session of the old graph, then one of the patched graph")
        collected = {
            id(variable): variable
            for key in self.old.get_all_collection_keys()
            for variable in self.old.get_collection(key)
            if isinstance(variable, tf.Variable) and not _is_assignment(variable)
        }
        copied = []
        for variable in collected.values():  # each once
            try:
                value = old_session.run(variable)
            except tf.errors.FailedPreconditionError:
                continue  # it has none yet
            # What an initializer assigns is its input 1; feeding that adds no op to the graph.
            initializer = self.graph.get_operation_by_name(variable.initializer.name)
            new_session.run(initializer, {initializer.inputs[1].name: value})
            copied.append(variable.name)
        return copied

    def _carried(self, old: Any, deepest: int = DEEPEST_OBJECT) -> Any:
        """Return a value with what stands for all of the old graph that it holds.

        Lists, tuples, dicts and objects are copied where they hold something of it. What a function
        has closed over cannot be seen.
        """
        if old is self.old:
            return self.graph
        if _is_of_graph(old):
            return self._counterpart(old)
        if deepest == 0 or isinstance(old, OPAQUE):
            return old
        is_sequence, is_dict = isinstance(old, list | tuple), isinstance(old, dict)
        own = dict(enumerate(old)) if is_sequence else getattr(old, "__dict__", {})
        parts = old if is_dict else own
        deepest -= not (is_sequence or is_dict)
        new = {key: self._carried(part, deepest) for key, part in parts.items()}
        if all(new[key] is part for key, part in parts.items()):
            return old
        if is_sequence:
            return type(old)(*new.values()) if hasattr(old, "_fields") else type(old)(new.values())
        return new if is_dict else _with_fields(old, new)

    def _counterpart(self, old: Any) -> Any:
        if old is None:  # a gradient that TensorFlow does not have
            return None
        if isinstance(old, str | tf.Tensor | tf.Operation):
            name = self._name(old, tf.Tensor | tf.Operation, "a tensor or an operation")
            return self.graph.as_graph_element(name)
        if isinstance(old, tf.Variable):
            return self.variable(old)
        if isinstance(old, tf.SparseTensor | tf.IndexedSlices | tf.RaggedTensor):
            return tf.nest.map_structure(self.tensor, old, expand_composites=True)
        if _is_of_graph(old):
            return self._made_again(old)
        raise TypeError(f"nothing in a graph stands for {_type_and_name(old)}")

    def _made_again(self, old: Any) -> Any:
        """Return an object made again from its message in the new graph, each once."""
        from tensorflow.python.framework import ops

        if self.in_place:
            return old
        if id(old) in self._remade:
            return self._remade[id(old)][1]
        with self.graph.as_default():
            if _is_assignment(old):
                fields = {key: self._carried(part, 0) for key, part in vars(old).items()}
                new = _with_fields(old, fields)
            elif isinstance(old, tf.Variable):
                make = ops.get_from_proto_function(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                new = make(old.to_proto())
                new._constraint = old.constraint  # a function, of which no message tells
            else:
                new = type(old).from_proto(old.to_proto())
        self._remade[id(old)] = (old, new)
        return new

    def _name(self, old: Any, kind: Any, expected: str) -> str:
        return str(old if isinstance(old, str) else self._checked(old, kind, expected).name)

    def _checked(self, old: Any, kind: Any, expected: str) -> Any:
        """Raise TypeError for what is of another kind, ValueError for what is of another graph."""
        if not isinstance(old, kind):
            raise TypeError(f"expected {expected}, found {_type_and_name(old)}")
        if getattr(old, "graph", None) not in (self.old, self.graph):
            raise ValueError(
                f"{_type_and_name(old)} is of another graph than the one that was patched"
            )
        return old

    def __repr__(self) -> str:
        rules = reported_rules(self.report)
        count = sum(len(rule["matches"]) for rule in rules)
        how = "in place" if self.in_place else "as a new graph"
        return f"<PatchedGraph: {plural(len(rules), 'rule')} on {plural(count, 'op')}, {how}>"


def _is_assignment(old: Any) -> bool:
    """Return whether it is what assigning to a resource variable returns.

    It passes for a variable, is in UPDATE_OPS of nets with batch norm, and assigns when it is read.
    """
    return isinstance(old, tf.Variable) and old.initializer is None


def _is_of_graph(old: Any) -> bool:
    """Return whether a value is of a graph: tensors, operations, variables, what messages hold."""
    kinds = tf.Tensor, tf.Operation, tf.Variable, tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor
    return isinstance(old, kinds) or (hasattr(old, "to_proto") and hasattr(type(old), "from_proto"))


def _with_fields(old: Any, fields: Mapping[Any, Any]) -> Any:
    new = copy.copy(old)
    new.__dict__.update(fields)
    return new


def _type_and_name(old: Any) -> str:
    name = getattr(old, "name", None)
    return f"{type(old).__name__} {name!r}" if isinstance(name, str) else repr(old)


def _carry_collections(patched: PatchedGraph) -> list[str]:
    """Put into the new graph what stands for each item of the old one's collections.

    Contexts of v1 loops and branches are there already: they came with the graph. Returns notes
    on what cannot be carried over.
    """
    old, new, notes = patched.old, patched.graph, dict[str, None]()
    for key in old.get_all_collection_keys():
        if key in CONTEXTS:
            continue
        items = old.get_collection(key)
        new.get_collection_ref(key)[:] = carried = list(map(patched._carried, items))
        for item, counterpart in zip(items, carried, strict=True):
            is_plain = _is_of_graph(item) or isinstance(item, list | tuple | dict)
            if counterpart is not item and not is_plain:
                notes[
                    f"collection {key!r}: a {type(item).__name__} was copied, with the tensors, "
                    f"operations and variables that its attributes hold"
                ] = None
    # So get_variable finds the variables, and numbers scopes on from where the old graph was.
    for key, attributes in STORES.items():
        for store in old.get_collection(key):
            copied = type(store)()
            for name in attributes:
                setattr(copied, name, patched._carried(copy.copy(getattr(store, name))))
            new.get_collection_ref(key)[:] = [copied]
    return list(notes)


def _carry_python(patched: PatchedGraph, graph: Graph) -> list[str]:
    """Carry over what Python holds for the old graph; return notes on what cannot be carried."""
    old, new = patched.old, patched.graph
    if hasattr(old, "_py_funcs_used_in_graph"):  # they live as long as a graph names them
        new._py_funcs_used_in_graph = list(old._py_funcs_used_in_graph)
    # Python holds the gradient of a call; where a rule is inside, the function in the library says
    # what it is.
    calls_of = callers(graph.functions.values())
    edited = reached(
        (name for name, body in graph.functions.items() if body.edited),
        lambda name: (call.body.label for call in calls_of.get(name, ())),
    )
    for op in old.get_operations():
        if op._gradient_function is not None and op.get_attr("f").name not in edited:
            call = new.get_operation_by_name(op.name)
            if call.type == op.type:
                call._gradient_function = op._gradient_function
    names = [
        repr(op.name)
        for op in new.get_operations()
        if op.type == "IdentityN" and op.node_def.attr[attrs.OVERRIDE].s.startswith(CUSTOM.encode())
    ]
    if not names:
        return []
    return [
        f"{short(names, 1)} has a gradient of tf.custom_gradient: where that function uses "
        f"tensors of the old graph, TensorFlow raises when it builds the gradient; let patch_graph "
        f"patch in place, or use graphpatch.building"
    ]


@unconverted
def patch_graph(
    rules: RulesLike,
    graph: tf.Graph | None = None,
    *,
    in_place: bool | None = None,
    allow_python: bool = False,
) -> PatchedGraph:
    """Apply rules to a live `tf.compat.v1` graph, each on the result of the one before.

    Forward: every tensor keeps its value, bit for bit. Backward: gradients that are built from now
    on are what the rules say; those that exist already stay, and `report["notes"]` names them.
    Where keys on ops are all that each rule takes, the graph is patched in place, as
    `gradient_override_map` would have done; else a patched copy is made, which a warning says, and
    `graph` stays as it is: go on with the `PatchedGraph`.

    Args:
        rules: A rules file's path, a list of dicts, a dict with `rules`, or `Rule`s.
        graph: The graph. Default: the default graph.
        in_place: True raises where keys are not enough; False makes a patched graph in any case.
        allow_python: Let {"python": "package.module:function"} import that module.

    Raises:
        RulesError: A rule is not valid.
        MatchError: A rule does not match as often as it expects.
        PatchError: A patch cannot be done, or the rules were applied to this graph before.
        ModelError: The graph cannot be exported, or is larger than protobuf's 2 GB.
        GraphpatchError: There is no graph, since TensorFlow executes eagerly.
        TypeError: `graph` is not a `tf.Graph`. Nothing is changed where anything is raised.

    When not to use it: for gradients that are built already; `rebuild_gradients` builds them anew.

    Example:
        >>> with tf.Graph().as_default():
        ...     x = tf.constant([2.0])
        ...     y = tf.nn.relu(x)
        ...     patched = graphpatch.patch_graph("rules.json")
        ...     dx = tf.gradients(patched.tensor(y), patched.tensor(x), tf.constant([-1.0]))[0]
        ...     print(tf.compat.v1.Session().run(dx))
        [0.]
    """
    live = _graph(graph)
    ready, model = rules_of(rules, allow_python), replace(model_of(live), live=True)
    patched, result = PatchedGraph(live, live), None
    reason = "in_place is False" if in_place is False else ""
    if not reason:
        try:
            result = _patched_in_place(ready, model, live)
        except NoKeyError as error:
            if in_place:
                raise
            reason = str(error)
    notes = list[str]()
    if result is None:
        if hasattr(live, "outer_graph"):
            raise PatchError(
                f"a function that is being traced can be patched in place alone: {reason}; "
                f"graphpatch.apply takes its concrete function"
            )
        result = apply(ready, model)
        register_gradients(result.model)
        in_file = result.model.graphs[0]
        new = imported(bare_meta(result.model.meta_graph(in_file)))
        new.seed = live.seed
        patched = PatchedGraph(new, live)
        notes = [f"a patched graph was made: {reason}", *_carry_collections(patched)]
        notes += _carry_python(patched, in_file)
    names = {match["op"] for rule in result.report["rules"] for match in rule["matches"]}
    stale = built_before(live, names)
    notes += [text for text in result.report["notes"] if not (stale and BUILT in text)]
    patched.report.update(result.report, in_place=patched.in_place, notes=[*notes, *stale])
    if not patched.in_place and in_place is None:
        warnings.warn(
            f"graphpatch.patch_graph made a patched copy of the graph, as {reason}. The graph that "
            f"was given stays as it is: go on with the `graph` of what is returned, and get at "
            f"tensors with its `tensor`. in_place=False says that a copy is expected, "
            f"in_place=True raises instead",
            stacklevel=4,  # past `unconverted`
        )
    return patched


def _graph(graph: Any) -> Any:
    if graph is None:
        if tf.executing_eagerly():
            raise GraphpatchError(
                "TensorFlow executes eagerly, so there is no default graph: give `graph`, or call "
                "patch_graph in `with graph.as_default():`"
            )
        return tf.compat.v1.get_default_graph()
    if not isinstance(graph, tf.Graph):
        instead = instead_of(graph)
        raise TypeError(f"graph: expected a tf.Graph; found {type(graph).__name__}{instead}")
    return graph


def _patched_in_place(rules: Sequence[Rule], model: Model, graph: Any) -> Result:
    """Apply rules to the live graph that `model` was taken from, by keys on its ops.

    All rules are tried on the model first: where one fails, the graph is left as it was. Raises
    NoKeyError where a key cannot do what a rule says, and what `apply` raises.
    """
    if graph.finalized:
        raise NoKeyError("the graph is finalized, so no gradient can be built in it any more")
    result = apply([keyed(rule, bodies=False) for rule in rules], model)
    patched = result.model.graphs[0]
    put_into(graph, patched.main)
    rules_of_live(graph).read(patched, graph)
    return result


def built_before(graph: Any, names: Collection[str]) -> list[str]:
    """Return what to say of gradients that were built of these ops before they were patched.

    Each op of a gradient knows the forward op that it was built for, in the process that built it.
    """
    forward = (op._original_op for op in graph.get_operations())
    counts = Counter(op.name for op in forward if op is not None and op.name in names)
    if not counts:
        return []
    some = short([repr(name) for name in counts], 1)
    return [
        f"gradients of {some} were built before ({plural(counts.total(), 'op')}) and stay as "
        f"they are, in every Session: build them again (tf.gradients, an optimizer's minimize)"
    ]

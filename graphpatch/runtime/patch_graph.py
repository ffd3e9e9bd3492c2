"""Rules on a live graph: in place where keys are enough, else in a patched copy of the graph."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from graphpatch.application import Result, RulesLike, apply, rules_of
from graphpatch.control_flow.stored import CONTEXTS
from graphpatch.differentiation.override_keys import CUSTOM
from graphpatch.errors import GraphpatchError, PatchError
from graphpatch.formats import Model
from graphpatch.graph import attrs
from graphpatch.graph.check import BUILT
from graphpatch.graph.functions import calls
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Node
from graphpatch.graph.wire import piece_bytes
from graphpatch.rules import Rule
from graphpatch.runtime.imported import model_of
from graphpatch.runtime.keys import NoKeyError, keyed, register_all, write_key
from graphpatch.runtime.register import register_gradients
from graphpatch.runtime.unconverted import unconverted
from graphpatch.runtime.values import full_tensor_name
from graphpatch.table import plural, short

if TYPE_CHECKING:
    import tensorflow as tf


def patched_in_place(rules: Sequence[Rule], model: Model, graph: Any) -> Result:
    """Apply rules to the live graph that `model` was taken from, by keys on its ops.

    All rules are tried on the model first: where one fails, the graph is left as it was. Raises
    NoKeyError where a key cannot do what a rule says, and what `apply` raises.
    """
    if graph.finalized:
        raise NoKeyError("the graph is finalized, so no gradient can be built in it any more")
    keys: dict[str, None] = {}
    result = apply([keyed(rule, False, keys) for rule in rules], model)
    main = result.model.graphs[0].main
    changed = {
        node: graph.get_operation_by_name(node.name)
        for node in (Node(main, index) for index in sorted(main.edited))
    }
    for node, op in changed.items():
        if op._gradient_function is not None and node.attr(attrs.OVERRIDE) is not None:
            # TensorFlow looks at no key then.
            raise NoKeyError(f"{node} calls a tf.function, whose gradient Python holds")
    register_all(keys)
    with graph._mutation_lock():  # no Session runs meanwhile
        for node, op in changed.items():
            write_key(node, op)
    return result


def built_before(graph: Any, names: Collection[str]) -> list[str]:
    """What the report says of gradients that were built of these ops before they were patched.

    Each op of a gradient knows the forward op that it was built for, in the process that built it.
    """
    counts: Counter[str] = Counter()
    for op in graph.get_operations():
        forward = op._original_op
        if forward is not None and forward.name in names:
            counts[forward.name] += 1
    if not counts:
        return []
    some = short([repr(name) for name in counts], 1)
    return [
        f"gradients of {some} were built before ({plural(sum(counts.values()), 'op')}) and stay as "
        f"they are, in every Session: build them again (tf.gradients, an optimizer's minimize)"
    ]


@dataclass(frozen=True, eq=False, repr=False)
class PatchedGraph:
    """A live graph to which rules were applied.

    `in_place`: `graph` is the graph that was given, and keys are registered in this process. Else
    `graph` is a new one beside it, with the variables, collections, savers, queue runners,
    control-flow contexts, devices and colocations of the old one, which is left as it was. `report`
    is what `graphpatch apply --json` prints, with `in_place`. `counterparts` holds both graphs.

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
    in_place: bool
    report: dict[str, Any]
    counterparts: Counterparts

    @property
    def ok(self) -> bool:
        """True: `patch_graph` raises where a rule cannot be applied."""
        return True

    def document(self) -> dict[str, Any]:
        """Return the report."""
        return self.report

    def tensor(self, old: Any) -> Any:
        """Return the tensor that stands for a tensor of the old graph, or has this name.

        It carries the new gradient. Raises TypeError for what is not a tensor, ValueError for one
        of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.tensor(old)

    def operation(self, old: Any) -> Any:
        """Return the operation that stands for one of the old graph, or has this name.

        Where a construction took the name of an op, it is the op that consumers read; the op that
        computes the value is called `NAME/forward`. Raises TypeError for what is not an operation,
        ValueError for one of another graph, KeyError for a name that is not there.
        """
        return self.counterparts.operation(old)

    def variable(self, old: Any) -> Any:
        """Return the variable that stands for one of the old graph. Values: see `restore`.

        Raises TypeError for what is not a variable, ValueError for one of another graph.
        """
        return self.counterparts.variable(old)

    def of(self, old: Any) -> Any:
        """What stands for a tensor, operation, variable, saver or queue runner of the old graph.

        Also for names (`x:0` is a tensor, `x` an operation), for sparse and ragged tensors, and
        for all of these in a list, tuple or dict, in which None stays. Raises TypeError for
        anything else, ValueError for what is of another graph, KeyError for a name that is not
        there.
        """
        return self.counterparts.of(old)

    def restore(self, old_session: Any, new_session: Any) -> list[str]:
        """Copy the values of variables from a Session of the old graph to one of the patched.

        All variables are copied that are in a collection and have a value, reference and resource
        variables alike; no op is added. Returns their names. Not copied, as it is not a variable:
        what tables, queues, iterators and random ops hold. Raises ValueError where a Session is of
        another graph.
        """
        import tensorflow as tf

        old, new = self.counterparts.old, self.counterparts.new
        for session, graph in ((old_session, old), (new_session, new)):
            if session.graph is not graph:
                raise ValueError(
                    "expected a Session of the old graph, then one of the patched graph"
                )
        collected = {
            id(variable): variable
            for key in old.get_all_collection_keys()
            for variable in old.get_collection(key)
            if isinstance(variable, tf.Variable) and not is_assignment(variable)
        }
        variables = list(collected.values())  # each once
        try:
            values = list(old_session.run(variables))
        except tf.errors.FailedPreconditionError:
            values = [_value_of(variable, old_session) for variable in variables]
        pairs = [
            (variable, value)
            for variable, value in zip(variables, values, strict=True)
            if value is not None
        ]
        initializers = [self.variable(variable).initializer for variable, _ in pairs]
        # What an initializer assigns is its input 1; feeding that adds no op to the graph.
        fed = zip(initializers, pairs, strict=True)
        new_session.run(initializers, {op.inputs[1]: value for op, (_, value) in fed})
        return [variable.name for variable, _ in pairs]

    def __repr__(self) -> str:
        rules = self.report["rules"]
        count = sum(len(rule["matches"]) for rule in rules)
        how = "in place" if self.in_place else "as a new graph"
        return f"<PatchedGraph: {plural(len(rules), 'rule')} on {plural(count, 'op')}, {how}>"


def _value_of(variable: Any, session: Any) -> Any:
    """Return the value of a variable; None where it has none yet."""
    import tensorflow as tf

    try:
        return session.run(variable)
    except tf.errors.FailedPreconditionError:
        return None


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
    Where a key on an op is all that each rule takes, the graph is patched in place, as
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
    reason = "in_place is False" if in_place is False else ""
    counterparts, notes = Counterparts(live, live), list[str]()
    if not reason:
        try:
            result = patched_in_place(ready, model, live)
        except NoKeyError as error:
            if in_place:
                raise
            reason = str(error)
    if reason:
        if hasattr(live, "outer_graph"):
            raise PatchError(
                f"a function that is being traced can be patched in place alone: {reason}; "
                f"graphpatch.apply takes its concrete function"
            )
        result = apply(ready, model)
        counterparts, notes = rebuilt_graph(result.model, live)
        notes = [f"a patched graph was made: {reason}", *notes]
    names = {match["op"] for rule in result.report["rules"] for match in rule["matches"]}
    stale = built_before(live, names)
    notes += [text for text in result.report["notes"] if not (stale and BUILT in text)]
    report = {**result.report, "in_place": not reason, "notes": [*notes, *stale]}
    if reason and in_place is None:
        warnings.warn(
            f"graphpatch.patch_graph made a patched copy of the graph, as {reason}. The graph that "
            f"was given stays as it is: go on with the `graph` of what is returned, and get at "
            f"tensors with its `tensor`. in_place=False says that a copy is expected, "
            f"in_place=True raises instead",
            stacklevel=4,  # past `unconverted`
        )
    return PatchedGraph(counterparts.new, not reason, report, counterparts)


def _graph(graph: Any) -> Any:
    import tensorflow as tf

    if graph is None:
        if tf.executing_eagerly():
            raise GraphpatchError(
                "TensorFlow executes eagerly, so there is no default graph: give `graph`, or call "
                "patch_graph in `with graph.as_default():`"
            )
        return tf.compat.v1.get_default_graph()
    if not isinstance(graph, tf.Graph):
        raise TypeError(f"graph: expected a tf.Graph, found {type(graph).__name__}")
    return graph


@dataclass(eq=False)
class Counterparts:
    """The map from the old graph to the new one, which may be the same.

    Ops keep their names, so names are the map; objects that hold ops are made again, each once.
    """

    old: Any
    new: Any
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)  # by id: the old and the new

    def tensor(self, old: Any) -> Any:
        """Return the tensor for a tensor or its name; `x` is short for `x:0`."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_tensor_by_name(full_tensor_name(old))
        is_tensor = tf.is_tensor(old) and not isinstance(old, tf.Variable) and hasattr(old, "op")
        self._check(old, "a tensor or its name", is_tensor and old.op.graph)
        return self.new.get_tensor_by_name(old.name)

    def operation(self, old: Any) -> Any:
        """Return the operation for an operation or its name."""
        import tensorflow as tf

        if isinstance(old, str):
            return self.new.get_operation_by_name(old)
        self._check(old, "an operation or its name", isinstance(old, tf.Operation) and old.graph)
        return self.new.get_operation_by_name(old.name)

    def variable(self, old: Any) -> Any:
        """Return the variable for a variable: one object for it, in all collections."""
        import tensorflow as tf

        self._check(old, "a variable", isinstance(old, tf.Variable) and old.graph)
        return self._made(old)

    def of(self, old: Any) -> Any:
        """What stands for a value of any of these kinds, or for all in a list, tuple or dict."""
        import tensorflow as tf

        return tf.nest.map_structure(self._one, old)

    def of_any(self, old: Any) -> Any:
        """Return what stands for a value; the value itself where it is of no graph."""
        if old is self.old:
            return self.new
        return self._one(old) if is_of_graph(old) else old

    def _one(self, old: Any) -> Any:
        import tensorflow as tf

        if old is None:  # a gradient that TensorFlow does not have
            return None
        if isinstance(old, str):
            return self.new.as_graph_element(old)
        if isinstance(old, tf.Variable):
            return self.variable(old)
        if isinstance(old, tf.Operation):
            return self.operation(old)
        if isinstance(old, tf.Tensor):
            return self.tensor(old)
        if _is_composite(old):
            return tf.nest.map_structure(self.tensor, old, expand_composites=True)
        if is_remade(old):
            return self._made(old)
        raise TypeError(f"nothing in a graph stands for {_type_and_name(old)}")

    def _made(self, old: Any) -> Any:
        """Return an object made again from its message, in the new graph."""
        if self.old is self.new:
            return old
        if id(old) not in self.made:
            new = _object(old, self.of_any, 1) if is_assignment(old) else self._remade(old)
            self.made[id(old)] = (old, new)
        return self.made[id(old)][1]

    def _remade(self, old: Any) -> Any:
        import tensorflow as tf

        with self.new.as_default():
            if not isinstance(old, tf.Variable):
                return type(old).from_proto(old.to_proto())
            from tensorflow.python.framework import ops

            make = ops.get_from_proto_function(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
            new = make(old.to_proto())
        new._constraint = old.constraint  # a function, of which no message tells
        return new

    def _check(self, old: Any, expected: str, graph: Any) -> None:
        """Raise TypeError for what has no graph, ValueError for what is of another one."""
        if graph is False:
            raise TypeError(f"expected {expected}, found {_type_and_name(old)}")
        if graph is not self.old and graph is not self.new:
            raise ValueError(
                f"{_type_and_name(old)} is of another graph than the one that was patched"
            )


def is_assignment(old: Any) -> bool:
    """Return whether it is what assigning to a resource variable returns.

    It passes for a variable, is in UPDATE_OPS of nets with batch norm, and assigns when it is read.
    """
    import tensorflow as tf

    return isinstance(old, tf.Variable) and old.initializer is None


def is_remade(old: Any) -> bool:
    """Whether an object, such as a Saver or a QueueRunner, can be made again from its message."""
    return hasattr(old, "to_proto") and hasattr(type(old), "from_proto")


def is_of_graph(old: Any) -> bool:
    """Return whether a value is, or is made of, tensors, operations or variables."""
    import tensorflow as tf

    kinds = (tf.Tensor, tf.Operation, tf.Variable)
    return isinstance(old, kinds) or _is_composite(old) or is_remade(old)


def _is_composite(old: Any) -> bool:
    import tensorflow as tf

    return isinstance(old, tf.SparseTensor | tf.IndexedSlices | tf.RaggedTensor)


def _type_and_name(old: Any) -> str:
    name = getattr(old, "name", None)
    return f"{type(old).__name__} {name!r}" if isinstance(name, str) else repr(old)


DEEPEST_OBJECT = 4  # an object in a collection, what it holds, and what that holds

OPAQUE = (str, bytes, int, float, bool, type, FunctionType, MethodType, ModuleType)

Counterpart = Callable[[Any], Any]


def copied(old: Any, counterpart: Counterpart, deepest: int = DEEPEST_OBJECT) -> Any:
    """The value with `counterpart` of all that it holds, or itself where it holds nothing of that.

    `counterpart` gives what stands for a value, and the value itself where nothing does. Objects
    are copied attribute by attribute; what a function has closed over cannot be seen.
    """
    new = counterpart(old)
    if new is not old or deepest == 0 or isinstance(old, OPAQUE):
        return new
    if isinstance(old, dict):
        return _replaced_items(
            old, {key: copied(part, counterpart, deepest) for key, part in old.items()}
        )
    if isinstance(old, list | tuple):
        parts = [copied(part, counterpart, deepest) for part in old]
        if all(part is old_part for part, old_part in zip(parts, old, strict=True)):
            return old
        return type(old)(*parts) if hasattr(old, "_fields") else type(old)(parts)
    return _object(old, counterpart, deepest)


def _object(old: Any, counterpart: Counterpart, deepest: int) -> Any:
    fields = getattr(old, "__dict__", None)
    if not fields:
        return old
    parts = _replaced_items(
        fields, {k: copied(v, counterpart, deepest - 1) for k, v in fields.items()}
    )
    if parts is fields:
        return old
    new = copy.copy(old)
    new.__dict__.update(parts)
    return new


def _replaced_items(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    return old if all(new[key] is old[key] for key in old) else new


# Where tf.compat.v1.get_variable finds variables, and which scopes are open.
STORE, SCOPES = ("__variable_store",), ("__varscope",)


def carry_collections(counterparts: Counterparts) -> list[str]:
    """Put into the new graph what stands for each item of the old one's collections.

    Contexts of v1 loops and branches are there already: they came with the graph. Returns notes
    on what cannot be carried over.
    """
    old, new = counterparts.old, counterparts.new
    notes: list[str] = []
    for key in old.get_all_collection_keys():
        if key in CONTEXTS:
            continue
        collection = new.get_collection_ref(key)
        del collection[:]
        for item in old.get_collection(key):
            if is_of_graph(item):
                collection.append(counterparts.of(item))
                continue
            collection.append(copied(item, counterparts.of_any))
            # Else it is a number, a text, a function: of no graph.
            if collection[-1] is not item and not isinstance(item, list | tuple | dict):
                notes.append(
                    f"collection {key!r}: a {type(item).__name__} was copied, with the tensors, "
                    f"operations and variables that its attributes hold"
                )
    # So get_variable finds the variables, and numbers scopes on from where the old graph was.
    for store in old.get_collection(STORE):
        copied_store = type(store)()
        for name in ("_vars", "_partitioned_vars"):
            setattr(copied_store, name, copied(getattr(store, name), counterparts.of_any))
        new.get_collection_ref(STORE)[:] = [copied_store]
    for scopes in old.get_collection(SCOPES):
        copied_scopes = type(scopes)()
        copied_scopes.variable_scopes_count = copy.copy(scopes.variable_scopes_count)
        new.get_collection_ref(SCOPES)[:] = [copied_scopes]
    return list(dict.fromkeys(notes))


def rebuilt_graph(patched: Model, old: Any) -> tuple[Counterparts, list[str]]:
    """Return a new graph of what was taken from the graph `old` and patched, and notes on it.

    Its gradients of ours are registered in this process.
    """
    import tensorflow as tf
    from tensorflow.python.framework import meta_graph

    message = tf.compat.v1.MetaGraphDef.FromString(
        b"".join(map(piece_bytes, patched.meta_graph(patched.graphs[0])))
    )
    for key in [key for key in message.collection_def if key not in CONTEXTS]:
        del message.collection_def[key]
    register_gradients(patched)
    new = tf.Graph()
    new.seed = old.seed
    with new.as_default():
        meta_graph.import_scoped_meta_graph(message)
    counterparts = Counterparts(old, new)
    notes = [*carry_collections(counterparts), *_carry_python(counterparts, patched.graphs[0])]
    return counterparts, notes


def _carry_python(counterparts: Counterparts, patched: Graph) -> list[str]:
    """Carry over what Python holds for the old graph; return notes on what cannot be carried."""
    old, new = counterparts.old, counterparts.new
    functions = getattr(old, "_py_funcs_used_in_graph", None)
    if functions is not None:  # tf.py_function's: they live as long as a graph names them
        new._py_funcs_used_in_graph = list(functions)
    # Python holds the gradient of a call; where a rule is inside, the function in the library says
    # what it is.
    edited = {name for name, body in patched.functions.items() if body.edited}
    called = {
        name: {function for _, function in calls(body)} for name, body in patched.functions.items()
    }
    while more := {name for name, those in called.items() if those & edited} - edited:
        edited |= more
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

"""The gradients that a file stores, as TensorFlow takes them, against what their rules say.

Each place is cut out of the graph and run alone: of the tensors x0, x1, ... that an op reads, and
y0, ... that it gives, TensorFlow takes the gradient of what stands in the op's place now, however
that is stored, and numpy computes the formula of the rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from graphpatch import names
from graphpatch.analysis.rule_words import patch_in_words
from graphpatch.differentiation.override_keys import override_key
from graphpatch.dtypes import DIFFERENTIABLE, DTYPE_NAMES
from graphpatch.errors import GraphpatchError, ModelError
from graphpatch.gradients import interpreter
from graphpatch.gradients.attach import is_guard
from graphpatch.gradients.fits import signature, windows_of
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import (
    Computed,
    InlineFormula,
    LibraryGradient,
    from_key,
    parse_gradient,
)
from graphpatch.graph import provenance
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.graph.functions import calls
from graphpatch.graph.graph import Graph, ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.match.spec import WHOLE
from graphpatch.names import TensorName
from graphpatch.patches import KINDS
from graphpatch.protos import GraphDef
from graphpatch.runtime.gradient_functions import as_main, flat_index, surrogate_gradient
from graphpatch.runtime.graph_run import GraphRun, first_line
from graphpatch.runtime.imported import spliced
from graphpatch.runtime.register import register_lone_keys
from graphpatch.runtime.tf_gradients import gradients
from graphpatch.runtime.values import distance, finite, full_tensor_name, upstream_weights
from graphpatch.runtime.verify.session import fetchable

# By how much of its largest element a gradient may differ: what the dtype's precision leaves.
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 2e-5, "float64": 1e-10}
SCALES = (-1.0, 1e-3, 30.0)
ANYWHERE = (4, 4)  # the shape of all that a formula reads, where the graph does not tell
NOT_OF_OPS = ("_class", "_graphpatch", "_output_shapes")  # attrs that say nothing of the gradient
DROPPED = "this kind has no formula to compare"
TRACED = "it is traced code, not a formula"
Tensors = list[Any]


@dataclass(frozen=True, slots=True)
class FormulaCheck:
    """A formula on tensors of these dtypes and shapes: how far the two sides are apart."""

    label: str
    ops: int
    example: str
    shapes: str
    error: float = 0.0
    tolerance: float = 0.0
    why: str = ""  # it was not compared
    by: str = "numpy"  # what computes the gradient that the rule tells

    @property
    def is_wrong(self) -> bool:
        """Return whether the two sides differ."""
        return not self.why and not self.error <= self.tolerance

    def document(self) -> dict[str, Any]:
        """Return the formula as `verify --json` prints it."""
        compared = {"max_error": finite(self.error), "tolerance": self.tolerance}
        return {
            "formula": self.label,
            "ops": self.ops,
            "example": self.example,
            "shapes": self.shapes,
            "compared_with": self.by,
            **({"not_compared": self.why} if self.why else compared),
        }


@dataclass(frozen=True, eq=False)
class StoredGradient:
    """An op that carries a gradient of ours, and what its rule says that flows back.

    `reads` are the tensors that the formula calls x0, x1, ...; `gives` those that it calls y0, ...,
    which the op gives on, and which are computed from `reads`. `expected` has the gradients, or is
    a formula that TensorFlow differentiates; it is None where there is nothing to compare, and
    `why` says so.
    """

    node: Node
    label: str
    reads: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    expected: Computed | Formula | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    op_type: str = ""
    why: str = ""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return what it reads, and what it gives."""
        return (*self.reads, *self.gives)

    @property
    def example(self) -> str:
        """Return the op, by the type that the model gives it."""
        return f"{op_type_in_model(self.node)} {self.node.name!r}"


def stored_gradients(graph: Graph) -> Iterator[StoredGradient]:
    """Yield each op of a graph that carries a gradient of ours."""
    patches = provenance.patches(graph)
    for body in graph.bodies:
        for node in () if body.is_ours else provenance.touched(body):
            key, calls_function = override_key(node) or "", node.op in graph.library.gradients
            is_join = node.op == "Select" and key == "AddN" and provenance.is_added(node)
            computed = None if calls_function else from_key(key)
            if computed is not None:
                gives = tuple(node.tensor(index) for index in range(len(node.outputs or ())))
                reads, attrs = tuple(node.data_inputs), dict(signature(node).attrs)
                yield StoredGradient(node, computed.key, reads, gives, computed, attrs, node.op)
            elif is_join or (calls_function and provenance.is_added(node) and not is_guard(key)):
                rules = [rule.id for rule in provenance.rules_that_patched(node)]
                patch = next((patches[rule] for rule in rules if rule in patches), {})
                kind = next((key for key in patch if key in KINDS and KINDS[key].verified), None)
                label = patch_in_words(patch)
                if kind is None and not is_join:
                    yield StoredGradient(node, label, why=DROPPED)
                elif kind is not None:
                    try:
                        yield _of_rule(StoredGradient(node, label), kind, patch, is_join)
                    except (GraphpatchError, IndexError) as error:  # a file that others wrote
                        yield StoredGradient(node, label, why=str(error))


def _of_rule(
    stored: StoredGradient, kind: str, patch: Mapping[str, Any], is_join: bool
) -> StoredGradient:
    """Say what the rule of a Select, or of a call of a function, gives back."""
    node, own = stored.node, len(stored.node.outputs or ())
    if not is_join and len(node.data_inputs) == own:  # it gives on what it reads
        same = tuple(node.data_inputs)
        if kind == "filter_gradient":
            return _by_gradient(replace(stored, reads=same, gives=same), patch[kind])
        none = InlineFormula(Formula.parse("zeros_like(dy)"))
        label = f"{stored.label}, where no gradient comes to the op"
        return replace(stored, label=label, reads=same, gives=same, expected=none)
    joined = node.data_inputs[1:2] if is_join else node.data_inputs[-own:]
    gives = tuple(filter(None, (_before_stops(node.body, text) for text in joined)))
    moved = node.body.producer(gives[0]) if len(gives) == len(joined) else None
    if moved is None:
        return replace(stored, why="it does not pass on what a StopGradient reads")
    record = provenance.record(node)
    reads = (() if record is None else record.reads) or tuple(moved.data_inputs)
    behind = node.data_inputs[2:] if is_join else node.data_inputs[:-own]
    roots = tuple(_counted(node.body, text) for text in behind)
    if kind == "backward_as":
        gives = tuple(
            text
            for n, text in enumerate(gives)
            if (moved.outputs or [])[n].dtype in DIFFERENTIABLE or len(gives) == 1
        )[: len(roots)]
        sums = Formula.parse([f"sum_like(dy{n}, x{n})" for n in range(len(roots))])
        return replace(stored, reads=roots, gives=gives, expected=InlineFormula(sums))
    stored = replace(stored, reads=reads, gives=gives)
    if kind == "straight_through":
        place = patch[kind].get("input", 0) if isinstance(patch[kind], Mapping) else 0
        if isinstance(place, str):  # a name of the pattern
            place = list(map(names.parse, reads)).index(names.parse(roots[0]))
        texts = [f"sum_like(dy, x{n})" if n == place else None for n in range(len(reads))]
        return replace(stored, expected=InlineFormula(Formula.parse(texts)))
    if kind == "override_gradient" and patch.get("on") == WHOLE:
        return _by_gradient(replace(stored, attrs=windows_of(_match_ops(moved))), patch[kind])
    stored = replace(stored, attrs=dict(signature(moved).attrs))
    if kind == "surrogate_gradient":
        return replace(stored, expected=Formula.parse(patch[kind]))
    stored = _by_gradient(stored, patch[kind])
    if kind == "override_gradient" and isinstance(stored.expected, LibraryGradient | InlineFormula):
        op_type = provenance.original_type(moved)
        return replace(stored, expected=stored.expected.for_op(op_type), op_type=op_type)
    return stored


def _by_gradient(stored: StoredGradient, spec: Any) -> StoredGradient:
    """Expect the formula that a rule gives; say why there is none."""
    gradient = parse_gradient(spec)
    if isinstance(gradient, LibraryGradient | InlineFormula):
        return replace(stored, expected=gradient)
    return replace(stored, why=TRACED)


def _before_stops(body: Body, text: str) -> str | None:
    """Return the tensor that the op gives, behind a StopGradient; and, in a SavedModel, `tape`."""
    node = body.producer(text)
    if node is None or not provenance.is_added(node):
        return None
    if node.name.endswith("/tape"):
        first = len(node.data_inputs) - len(node.outputs or ())
        return _before_stops(body, node.data_inputs[first + flat_index(body, names.parse(text))])
    if node.op != "StopGradient":
        return None
    return _before_stops(body, node.data_inputs[0]) or node.data_inputs[0]


def _counted(body: Body, text: str) -> str:
    """Return the tensor that gets a gradient: before a guard, and before it was repeated."""
    node = body.producer(text)
    while node is not None and provenance.is_added(node) and not provenance.clone_of(node):
        if not is_guard(override_key(node) or "") and node.op != "BroadcastTo":
            break
        text = node.data_inputs[0]
        node = body.producer(text)
    return text


def _match_ops(last: Node) -> list[Node]:
    """Return the ops of a match as one op: its last, and those that no gradient reaches now."""
    ops: dict[str, Node] = {}
    waiting: list[Node | None] = [last]
    while waiting:
        node = waiting.pop()
        if node is not None and node.name not in ops and (node is last or provenance.shadow(node)):
            ops[node.name] = node
            waiting += map(node.body.producer, node.data_inputs)
    return list(ops.values())


def check_formulas(graph: ModelGraph, running: GraphRun | None) -> list[FormulaCheck]:
    """Check each formula of a patched graph, on what its ops meet, or else on seeded arrays.

    `running` is the patched graph with its feeds; without it nothing is known of shapes.
    """
    register_lone_keys(graph)
    stored = list(stored_gradients(graph))
    main = {full_tensor_name(t) for g in stored if g.node.body.is_main for t in g.tensors}
    ran = running.run(list(fetchable(running.graph, sorted(main))), False)[0] if running else {}
    groups: dict[tuple[str, ...], tuple[list[StoredGradient], list[Any] | None]] = {}
    for gradient in stored:
        full = list(map(full_tensor_name, gradient.tensors))
        is_met = bool(full) and gradient.node.body.is_main and ran.keys() >= set(full)
        met = [np.asarray(ran[name]) for name in full] if is_met else None
        try:
            types = (
                [str(value.dtype) for value in met]
                if met
                else [_dtype(gradient.node.body, text) for text in gradient.tensors]
            )
            form = _fingerprint(graph, gradient)
        except (GraphpatchError, LookupError) as error:  # a file that others wrote
            gradient, types, form = replace(gradient, expected=None, why=str(error)), [], ""
        sizes = [value.shape for value in met] if met else [ANYWHERE] * len(types)
        shapes = (f"{dtype}{list(size)}" for dtype, size in zip(types, sizes, strict=False))
        key = (gradient.label, gradient.why, form, *shapes)
        same, _ = groups.get(key, ([], None))
        groups[key] = [*same, gradient], met
    return [_check_group(graph, key[3:], *group) for key, group in groups.items()]


def _dtype(body: Body, text: str) -> str:
    tensor, node = names.parse(text), body.producer(text)
    if node is None:
        return DTYPE_NAMES[body.arguments[tensor.op]]
    return (node.outputs or [])[flat_index(body, tensor)].dtype or "float32"


def _check_group(
    graph: Graph, shapes: tuple[str, ...], group: Sequence[StoredGradient], met: list[Any] | None
) -> FormulaCheck:
    first = group[0]
    about = first.label, len(group), first.example, ", ".join(shapes)
    if first.expected is None:
        return FormulaCheck(*about, why=first.why)
    try:
        checked = [_apart(graph, first, *values) for values in _value_sets(graph, first, met)]
    except GraphpatchError as refusal:
        return FormulaCheck(*about, why=str(refusal))
    except Exception as failure:  # TensorFlow's or numpy's reason why it cannot be computed
        return FormulaCheck(*about, why=first_line(failure))
    by = "TensorFlow" if isinstance(first.expected, Formula) else "numpy"
    error, tolerance = (max(column) for column in zip(*checked, strict=True))
    return FormulaCheck(*about, error, tolerance, by=by)


def _value_sets(
    graph: Graph, gradient: StoredGradient, met: list[Any] | None
) -> Iterator[tuple[Tensors, Tensors]]:
    """Yield values of x0, ... and of y0, ...: those that the op met, and seeded ones.

    Of what an op met much may be 0. The op itself computes y from seeded x, as a gradient may read
    both.
    """
    import tensorflow as tf

    count = len(gradient.reads)
    if met is not None:
        likes = met
        yield likes[:count], likes[count:]
    else:
        dtypes = (_dtype(gradient.node.body, text) for text in gradient.tensors)
        likes = [np.zeros(ANYWHERE, tf.as_dtype(dtype).as_numpy_dtype) for dtype in dtypes]
    seeds = [
        like if like.dtype.kind in "iub" and met is not None else upstream_weights(f"x{n}", like)
        for n, like in enumerate(likes[:count])
    ]
    for scale in (1.0, *SCALES) if gradient.node.op == "Select" else (1.0,):
        xs = [x if x.dtype.kind in "iub" else (x * scale).astype(x.dtype) for x in seeds]
        try:
            yield xs, _outputs(graph, gradient, xs)
        except Exception:  # the op alone does not run on such shapes
            formula = getattr(gradient.expected, "formula", None)
            if formula is None or not formula.reads_op:
                yield xs, [upstream_weights(f"y{n}", y) for n, y in enumerate(likes[count:])]
            elif met is None:
                raise


def _outputs(graph: Graph, gradient: StoredGradient, xs: Tensors) -> Tensors:
    """Compute what the op gives from what it reads."""
    if gradient.gives == gradient.reads:
        return xs
    cut = _cut(
        graph,
        gradient.node.body,
        _read_as(gradient.reads, "x"),
        lambda node: bool(node.data_inputs) or node.op == "Const",
        gradient.gives,
    )
    with _spliced(cut, dict(enumerate(xs)), {}, len(gradient.gives)) as (scratch, tensors, _):
        return list(map(np.asarray, _run_in(scratch, tensors)))


def _apart(graph: Graph, gradient: StoredGradient, xs: Tensors, ys: Tensors) -> tuple[float, float]:
    """Return how far apart both sides are, as a part of the largest element; what is allowed."""
    upstream = [upstream_weights(f"dy{n}", y) for n, y in enumerate(ys)]
    tensors = list(map(names.parse, gradient.reads))
    firsts = list(map(tensors.index, tensors))  # some of the inputs may be one tensor
    xs = [xs[first] for first in firsts]
    if isinstance(gradient.expected, Formula):
        expected = _by_formula(gradient.expected, gradient, xs, ys, upstream)
    else:
        assert gradient.expected is not None
        expected = interpreter.gradient(
            gradient.expected.formula, xs, ys, upstream, dict(gradient.attrs), gradient.op_type
        )
    sums: list[Any] = [None] * len(xs)
    for dx, first in zip(expected, firsts, strict=False):
        if dx is not None:
            sums[first] = dx if sums[first] is None else sums[first] + dx
    actual = _stored(graph, gradient, xs, ys, upstream)
    pairs = [
        (sums[n], actual.get(n))
        for n, x in enumerate(xs)
        if n == firsts[n] and x.dtype.kind not in "iubOSU"
    ]
    dtypes = [np.asarray(dx).dtype.name for pair in pairs for dx in pair if dx is not None]
    error = max((_distance(*pair) for pair in pairs), default=0.0)
    return error, max((TOLERANCES.get(dtype, 0.0) for dtype in dtypes), default=0.0)


def _distance(expected: Any, actual: Any) -> float:
    """Return how far apart they are; no gradient, `null` in a formula, is the same as zeros."""
    if expected is None or actual is None:
        flows = [dx for dx in (expected, actual) if dx is not None]
        return float("inf") if any(np.any(np.asarray(dx)) for dx in flows) else 0.0
    expected = np.asarray(expected)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    _, relative = distance(expected, actual)
    return relative if relative == relative else float("inf")


def _read_as(texts: Sequence[str], letter: str) -> dict[TensorName, str]:
    return {names.parse(text): f"{letter}{n}" for n, text in reversed(list(enumerate(texts)))}


def _carrier(graph: Graph, gradient: StoredGradient, library: bool = True) -> GraphDef:
    """Cut out the ops that carry a gradient: what rules added between x, y and the op."""
    node, gives = gradient.node, gradient.gives
    own = len(node.outputs or ())
    fed = _read_as(gradient.reads, "x")
    if gives != gradient.reads:
        fed = _read_as(gives, "y") | fed
        if node.op in graph.library.gradients:  # y behind what stops gradients, in a Session
            stopped = {_before_stops(node.body, text): text for text in node.data_inputs[-own:]}
            fed |= {names.parse(stopped[y]): f"y{n}" for n, y in enumerate(gives) if y in stopped}
    outputs = [node.tensor(index) for index in range(own)]
    return _cut(
        graph,
        node.body,
        fed,
        lambda read: read == node or provenance.is_added(read),
        outputs,
        node,
        library,
    )


def _fingerprint(graph: Graph, gradient: StoredGradient) -> str:
    """Return the same for two places of the same ops and attrs, whatever their ops are called."""
    if gradient.expected is None:
        return ""
    content = _carrier(graph, gradient, library=False).SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest() + str(sorted(gradient.attrs.items()))


def _cut(
    graph: Graph,
    body: Body,
    fed: Mapping[TensorName, str],
    follow: Callable[[Node], bool],
    texts: Sequence[str],
    root: Node | None = None,
    library: bool = True,
) -> GraphDef:
    """Return a graph of its own of the ops that compute some tensors, called out0, out1, ... there.

    It reads the `fed` tensors by other names. `root` gives the tensors itself. Without `library`,
    functions are there by name alone.
    """
    graph_def, copied = GraphDef(), dict[str, str]()
    graph_def.versions.producer = body.library.producer

    def read(text: str) -> str:
        tensor = names.parse(text)
        if tensor in fed:
            return fed[tensor]
        node = body.producer(text)
        if node is None or not follow(node):
            raise ModelError(f"what carries its gradient reads {text}, which its op does not read")
        return output(node, tensor)

    def output(node: Node, tensor: TensorName) -> str:
        if node.name not in copied:
            inputs = list(map(read, node.data_inputs))
            copy = as_main(node)
            copy.input[:], copy.name, copy.device = inputs, f"n{len(copied)}", ""
            for key in NOT_OF_OPS:
                copy.attr.pop(key, None)
            graph_def.node.append(copy)
            copied[node.name] = copy.name
        return str(TensorName(copied[node.name], flat_index(body, tensor)))

    for n, text in enumerate(texts):
        computed = read(text) if root is None else output(root, names.parse(text))
        out = graph_def.node.add(name=f"out{n}", op="Identity", input=[computed])
        out.attr["T"].type = DTYPE_NUMBERS[_dtype(body, text)]
    if library:
        _add_functions(graph, graph_def)
    return graph_def


def _add_functions(graph: Graph, graph_def: GraphDef) -> None:
    """Add the functions that the ops call, those that they call, and their gradients."""
    todo, done = [node.op for node in graph_def.node], set[str]()
    todo += (value.func.name for node in graph_def.node for value in node.attr.values())
    while todo:
        name = todo.pop()
        if name in done or name not in graph.functions:
            continue
        done.add(name)
        _, part = graph.function_fields[name]
        graph_def.library.function.add().ParseFromString(graph.source.data[part.value : part.end])
        todo += [called for _, called in calls(graph.functions[name])]
        if name in graph.library.gradients:
            gradient = graph.library.gradients[name]
            graph_def.library.gradient.add(function_name=name, gradient_func=gradient)
            todo.append(gradient)


@contextmanager
def _spliced(
    cut: GraphDef, xs: Mapping[int, Any], ys: Mapping[int, Any], outs: int
) -> Iterator[tuple[Any, list[Any], dict[int, Any]]]:
    """Put a cut into a graph of its own: that graph, its outputs, and x0, x1, ... in it."""
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef.FromString(cut.SerializeToString())
    read = {text.partition(":")[0] for node in graph_def.node for text in node.input}
    with tf.Graph().as_default() as scratch:
        tensors = {n: tf.constant(x) for n, x in xs.items()}
        at = {f"x{n}": tensor for n, tensor in tensors.items()}
        at |= {f"y{n}": tf.constant(y) for n, y in ys.items()}
        on = {f"{name}:0": tensor for name, tensor in at.items() if name in read}
        yield scratch, spliced(graph_def, on, [f"out{n}:0" for n in range(outs)], "cut"), tensors


def _run_in(graph: Any, tensors: Any) -> Any:
    import tensorflow as tf

    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(tensors) if tensors else tensors


def _stored(
    graph: Graph, gradient: StoredGradient, xs: Tensors, ys: Tensors, upstream: Tensors
) -> dict[int, Any]:
    """Return what flows back to each x through what the file stores, as TensorFlow takes it."""
    import tensorflow as tf

    cut, outs = _carrier(graph, gradient), len(gradient.node.outputs or ())
    fed = dict(enumerate(xs)), dict(enumerate(ys))
    with _spliced(cut, *fed, outs) as (scratch, outputs, tensors):
        floats = {n: tensor for n, tensor in tensors.items() if tensor.dtype.is_floating}
        pairs = zip(outputs, upstream, strict=False)
        flowing = [(out, tf.constant(dy)) for out, dy in pairs if out.dtype.is_floating]
        dys = [dy for _, dy in flowing]
        built = gradients([out for out, _ in flowing], list(floats.values()), dys, apart=True)
        dxs = zip(floats, built, strict=True)
        dense = {n: tf.convert_to_tensor(dx) for n, dx in dxs if dx is not None}
        return dict(_run_in(scratch, dense))


def _by_formula(
    formula: Formula, gradient: StoredGradient, xs: Tensors, ys: Tensors, upstream: Tensors
) -> list[Any]:
    """Return what flows back to x0, x1, ... where the op counts as a formula of these.

    TensorFlow computes the formula and differentiates it: nothing of the file is used.
    """
    import tensorflow as tf

    with tf.Graph().as_default() as scratch:
        op = SimpleNamespace(
            inputs=[tf.constant(x) for x in xs],
            outputs=[tf.constant(ys[0])],
            type="",
            name=gradient.node.name,
            get_attr=gradient.attrs.__getitem__,
        )
        built = surrogate_gradient(formula)(op, tf.constant(upstream[0]))
    ran = _run_in(scratch, {n: dx for n, dx in enumerate(built) if dx is not None})
    return [ran.get(n) for n in range(len(xs))]

"""A gradient in parts: from a loss to a cut, and from the cut to what lies before it.

`gradient_in_parts` adds them to a live graph, `split` makes graphs that separate processes run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpatch.analysis.cuts import Cut, GradientPaths, ordered_cuts
from graphpatch.analysis.split_parts import Split
from graphpatch.analysis.unsafe import refuse_unsafe
from graphpatch.errors import CutError, tensor_name, tensor_names
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.graph import Progress, graph_of
from graphpatch.graph.op_types import BOUNDARIES
from graphpatch.runtime import tf
from graphpatch.runtime.graph_run import first_line, require_tensorflow
from graphpatch.runtime.imported import exported_graph, graph_def_of, imported_graph
from graphpatch.runtime.register import register_gradients
from graphpatch.runtime.tf_gradients import gradients, op_types_in, warn_of_newer

if TYPE_CHECKING:
    Named: TypeAlias = str | tf.Tensor | tf.Variable


@dataclass(frozen=True, eq=False)
class Jacobian:
    """The derivative of each element of `of` with respect to each of `by`, in one tensor.

    Its shape is `of_shape + by_shape`.
    """

    of: str
    by: str
    of_shape: tuple[int, ...]
    by_shape: tuple[int, ...]
    tensor: tf.Tensor = field(repr=False)


def jacobians(graph: Any, of: Sequence[str], by: Sequence[str]) -> dict[tuple[str, str], Jacobian]:
    """Return the Jacobian of each tensor `of` by each `by`, those of `by` held fixed.

    One gradient is taken for all elements at once (tf.vectorized_map); where TensorFlow cannot
    do that for an op, one after the other. Raises CutError where a shape is not known.
    """
    shapes = {name: _shape_run(graph.get_tensor_by_name(name)) for name in (*of, *by)}
    xs = [graph.get_tensor_by_name(name) for name in by]
    blocks = {}
    for target in of:
        y = tf.reshape(graph.get_tensor_by_name(target), [-1])

        def row(number: Any, y: Any = y) -> list[Any]:
            dxs = gradients([tf.gather(y, number)], xs, apart=True)
            return [
                tf.zeros(shapes[name], y.dtype) if dx is None else tf.convert_to_tensor(dx)
                for dx, name in zip(dxs, by, strict=True)
            ]

        count = int(y.shape[0])
        try:
            rows = tf.vectorized_map(row, tf.range(count), fallback_to_while_loop=False)
        except (ValueError, NotImplementedError, TypeError):  # it cannot vectorize some op
            columns = zip(*map(row, range(count)), strict=True)
            rows = [tf.stack(column) for column in columns]
        for name, tensor in zip(by, rows, strict=True):
            whole = tf.reshape(tensor, (*shapes[target], *shapes[name]))
            blocks[target, name] = Jacobian(target, name, shapes[target], shapes[name], whole)
    return blocks


def _shape_run(tensor: Any) -> tuple[int, ...]:
    is_handle = tensor.dtype == tf.resource
    shape = tf.TensorShape(tensor.op.get_attr("shape")) if is_handle else tensor.shape
    if not shape.is_fully_defined():
        needs = "a Jacobian needs shapes that are known; without jacobian=True the gradients do not"
        raise CutError(f"the shape of {tensor.name} is {shape}: {needs}")
    return tuple(shape.as_list())


@dataclass(frozen=True, eq=False)
class Parts:
    """The tensors of a gradient in parts, by the names of the tensors that they are gradients at.

    `cuts` are in forward order. `at_cuts` has for each the gradient of the loss at its tensors,
    the others of the same cut held fixed; `at_wrt` what follows from the first of them. Each
    gradient has the shape and dtype of the tensor that it is at.
    `jacobians[k]` has the Jacobians of cut k by the cut before it (the first by `wrt`), by the
    names (of, by). With them, the gradient before a cut is the sum over `of` of the gradient at
    `of`, times the Jacobian, over all axes of `of`.

    Example:
        >>> with tf.Graph().as_default() as graph:
        ...     x = tf.constant([1.0, 2.0], name="x")
        ...     loss = tf.reduce_sum(tf.square(x, name="cut"), name="loss")
        ...     parts = graphpatch.gradient_in_parts(graph, loss, "cut:0", x, jacobian=True)
        >>> parts.jacobians[0]["cut:0", "x:0"].tensor.shape
        TensorShape([2, 2])
    """

    loss: str
    cuts: tuple[Cut, ...]
    wrt: tuple[str, ...]
    at_cuts: tuple[dict[str, tf.Tensor], ...] = field(repr=False)
    at_wrt: dict[str, tf.Tensor] = field(repr=False)
    jacobians: tuple[dict[tuple[str, str], Jacobian], ...] = field(default=(), repr=False)


def gradient_in_parts(
    graph: tf.Graph,
    loss: Named,
    cut: Named | Sequence[Named | Sequence[Named]],
    wrt: Named | Sequence[Named],
    *,
    jacobian: bool = False,
    check: bool = False,
) -> Parts:
    """Add to a live graph the gradient of a loss in parts that are joined at a cut.

    Forward nothing changes. Backward, the gradient at the cut is taken of the loss alone, and the
    gradient at `wrt` from that (grad_ys): together what tf.gradients gives for the whole. Where
    the loss is not a scalar, its sum counts, as for tf.gradients.

    Args:
        graph: Where the tensors are, and where ops are added.
        loss: A floating tensor of any shape, or its name.
        cut: A tensor, a list of tensors that are a cut together, or a list of such lists: several
            cuts in a row.
        wrt: A tensor or variable, or a list of them, before all cuts.
        jacobian: Add the full Jacobian of each cut by what comes before it. It holds a gradient
            for each element of the cut.
        check: Add tf.gradients of the whole, and let the gradients at `wrt` fail when they are
            run where they differ from it by more than the square root of the dtype's precision.

    Raises:
        CutError: A name is not that of a tensor, the loss does not depend on a tensor, no gradient
            flows, a path leads around the cut (the message shows it, and a cut), or a shape is not
            known that a Jacobian needs.
        ModelError: The graph is broken.
        TypeError: `loss`, `cut` or `wrt` is neither a tensor nor a name.

    When not to use it: to evaluate the parts in separate runs of a graph with random ops: each run
    draws anew. `graphpatch split` hands on what was drawn.

    Example:
        >>> with tf.Graph().as_default() as graph:
        ...     x = tf.constant([1.0, 2.0], name="x")
        ...     loss = tf.reduce_sum(tf.square(x, name="cut"), name="loss")
        ...     parts = graphpatch.gradient_in_parts(graph, loss, "cut:0", x)
        ...     print(tf.compat.v1.Session().run(parts.at_wrt["x:0"]))
        [2. 4.]
    """
    asked = tensor_names("wrt", wrt)
    listed = cuts_in_order(cut)
    opened = graph_of(graph_def_of(graph))
    paths, cuts = ordered_cuts(opened, tensor_name("loss", loss), listed, asked)
    return add_parts(graph, paths, cuts, jacobian=jacobian, check=check)


def add_parts(
    graph: Any,
    paths: GradientPaths,
    cuts: Sequence[Cut],
    *,
    jacobian: bool = False,
    check: bool = False,
) -> Parts:
    """Return the same at cuts that are known to be some, in forward order."""
    stages = [paths.wrt, *cuts, (paths.loss,)]
    with graph.as_default(), _explained(paths):
        at_stages: list[dict[str, Any]] = []
        flowing = None
        for by, of in reversed(list(pairwise(stages))):
            at_stages.insert(0, _gradients_or_raise(graph, of, by, flowing))
            flowing = list(at_stages[0].values())
        at_wrt, *at_cuts = at_stages
        if check:
            at_wrt = _checked_gradients(graph, paths, at_wrt)
        between = pairwise(stages[:-1]) if jacobian else ()
        blocks = tuple(jacobians(graph, stage, before) for before, stage in between)
    return Parts(paths.loss, tuple(cuts), paths.wrt, tuple(at_cuts), at_wrt, blocks)


def _gradients_or_raise(
    graph: Any, of: Sequence[str], by: Sequence[str], flowing: list[Any] | None
) -> dict[str, Any]:
    """Return the gradients at tensors that are held fixed against each other."""
    ys, xs = ([graph.get_tensor_by_name(name) for name in some] for some in (of, by))
    gradients_by_name = {}
    for name, dx in zip(by, gradients(ys, xs, flowing, apart=True), strict=True):
        if dx is None:
            ends = f"from {', '.join(of)} back to {name}"
            raise CutError(f"no gradient flows {ends}: tf.gradients gives None there")
        label = name.removesuffix(":0").replace(":", "_")
        gradients_by_name[name] = tf.identity(tf.convert_to_tensor(dx), f"gradient/{label}")
    return gradients_by_name


def _checked_gradients(graph: Any, paths: GradientPaths, at_wrt: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients at `wrt`, which fail where they are not those of the whole."""
    whole = _gradients_or_raise(graph, [paths.loss], paths.wrt, None)
    checked = {}
    for name, a in at_wrt.items():
        b = whole[name]
        # Rounding explains the root of the dtype's precision times the largest element.
        real = tf.math.real(a).dtype.as_numpy_dtype
        least = abs(b) * 0 + tf.reduce_max(abs(b))
        bound = float(np.sqrt(tf.experimental.numpy.finfo(real).eps)) * least
        equal = tf.reduce_all((a == b) | (abs(a - b) <= bound) | ((a != a) & (b != b)))
        message = f"the gradient in parts at {name} is not that of the whole"
        with tf.control_dependencies([tf.debugging.Assert(equal, [message])]):
            checked[name] = tf.identity(a)
    return checked


@contextmanager
def _explained(paths: GradientPaths) -> Iterator[None]:
    """Raise CutError for what tf.gradients says where an op on the path has no gradient."""
    try:
        yield
    except LookupError as error:
        raise CutError(
            f"{first_line(error)}; a gradient that the op names by _gradient_op_type must be "
            f"registered first, one of ours by graphpatch.register_gradients"
        ) from error
    except (AttributeError, AssertionError) as error:
        if not any(op in paths.body.by_type for op in BOUNDARIES):
            raise
        raise CutError(
            f"TensorFlow cannot differentiate the v1 loop or branch of this graph "
            f"({first_line(error)}): a GraphDef holds no control-flow contexts; a MetaGraphDef "
            f"(.meta) does"
        ) from error


def cuts_in_order(cut: Any) -> list[list[str]]:
    """Return several cuts in a row; one where no list holds another."""
    if isinstance(cut, list | tuple) and any(isinstance(item, list | tuple) for item in cut):
        return [tensor_names(f"cut[{place}]", item) for place, item in enumerate(cut)]
    return [tensor_names("cut", cut)]


def split(
    model: ModelLike,
    loss: str,
    cut: str | Sequence[str | Sequence[str]],
    wrt: str | Sequence[str],
    progress: Progress | None = None,
    allow_unsafe_ops: bool = False,
) -> Split:
    """Split the gradient of a loss into graphs that separate processes can run.

    Forward and backward, the parts run one after the other give what the whole gives. What the
    cuts are is decided before TensorFlow is imported.

    Args:
        model: What `load` takes, with one graph.
        loss: The floating tensor that is differentiated; of one that is no scalar the sum counts.
        cut: A tensor, a list of tensors that are a cut together, or a list of such lists: several
            cuts in a row.
        wrt: A tensor before all cuts, or a list of them.
        progress: Called with what is done, how much of it, and of how much.
        allow_unsafe_ops: Import models, too, whose ops touch files, the network or Python as
            TensorFlow imports them.

    `Split.save` writes the graphs and parts.json, which tells what to feed and to fetch. A
    UserWarning names ops of the gradients that TensorFlow 1.15 does not know, as it knew the model.

    Raises:
        CutError: The tensors are not a cut, no gradient flows, or TensorFlow is missing.
        ModelError: The model cannot be read, TensorFlow does not import it, or it is larger than
            protobuf's 2 GB.
        RulesError: A key in the model is not one that this version of graphpatch knows.
        UnsafeError: TensorFlow would run such ops as it imports the model.
        TypeError: `model` is not a model, or `loss`, `cut` or `wrt` is not a name.

    When not to use it: in one process; `gradient_in_parts` adds the same to a live graph.

    Example:
        >>> graphpatch.split("model.pb", "loss", "features", "x").save("parts")
        >>> sorted(path.name for path in Path("parts").iterdir())
        ['part1.pb', 'part2.pb', 'parts.json']
    """
    ends = tensor_name("loss", loss), cuts_in_order(cut), tensor_names("wrt", wrt)
    loaded = model_from("model", model, progress)
    if len(loaded.graphs) != 1:
        raise CutError(f"{loaded.path} holds {len(loaded.graphs)} graphs; one is split at a time")
    paths, ordered = ordered_cuts(loaded.graphs[0], *ends)
    refuse_unsafe(loaded.graphs[0], allow_unsafe_ops, [])  # what an import may run
    require_tensorflow("a gradient is built by", CutError)
    graph = imported_graph(loaded)
    register_gradients(loaded)
    before = op_types_in(graph.as_graph_def())
    parts = add_parts(graph, paths, ordered)
    warn_of_newer(before, op_types_in(graph.as_graph_def()))
    at_stages = parts.at_wrt, *parts.at_cuts
    stages = [{name: dx.name for name, dx in stage.items()} for stage in at_stages]
    outputs = [output for op in graph.get_operations() for output in op.outputs]
    shapes = (None if t.shape.rank is None else t.shape.as_list() for t in outputs)
    described = zip((t.dtype.base_dtype.name for t in outputs), shapes, strict=True)
    tensors = dict(zip((t.name for t in outputs), described, strict=True))
    return Split(loaded.path, exported_graph(graph), parts.loss, stages, tensors)

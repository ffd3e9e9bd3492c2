"""A gradient in parts: from a loss to a cut, and from the cut to what lies before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from graphpatch import names
from graphpatch.arguments import tensor_name, tensor_names
from graphpatch.control_flow.op_types import BOUNDARIES
from graphpatch.errors import CutError
from graphpatch.graph.graph import graph_of
from graphpatch.runtime.jacobian import Jacobian, jacobians
from graphpatch.runtime.tf_gradients import gradients

if TYPE_CHECKING:
    import tensorflow as tf

    from graphpatch.analysis.cuts import Cut
    from graphpatch.analysis.gradient_paths import GradientPaths

    Named: TypeAlias = str | tf.Tensor | tf.Variable

PARTS_SCOPE = "gradient"


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
    from graphpatch.analysis.cuts import ordered_cuts  # networkx, when it is needed

    asked = tensor_names("wrt", wrt)
    listed = cuts_in_order(cut)
    opened = graph_of(graph.as_graph_def().SerializeToString())
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
    stages = [paths.wrt, *cuts]
    with graph.as_default(), _explained(paths):
        at_cuts, at_wrt = _gradients_at_cuts(graph, paths, cuts)
        by_stage = (jacobians(graph, stage, before) for before, stage in pairwise(stages))
        return Parts(
            paths.loss,
            tuple(cuts),
            paths.wrt,
            tuple(at_cuts),
            _checked_gradients(graph, paths, at_wrt) if check else at_wrt,
            tuple(by_stage) if jacobian else (),
        )


def _gradients_at_cuts(
    graph: Any, paths: GradientPaths, cuts: Sequence[Cut]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the gradients at each cut, in forward order, and those at `wrt`."""
    at_cuts: list[dict[str, Any]] = []
    of: tuple[str, ...] = (paths.loss,)
    flowing = None
    for by in [*reversed(cuts), paths.wrt]:
        at_cuts.append(_gradients_or_raise(graph, of, by, flowing))
        of, flowing = by, list(at_cuts[-1].values())
    at_wrt = at_cuts.pop()
    return at_cuts[::-1], at_wrt


def _gradients_or_raise(
    graph: Any, of: Sequence[str], by: Sequence[str], flowing: list[Any] | None
) -> dict[str, Any]:
    """Return the gradients at tensors that are held fixed against each other."""
    import tensorflow as tf

    ys, xs = ([graph.get_tensor_by_name(name) for name in some] for some in (of, by))
    dxs = gradients(ys, xs, flowing, apart=True)
    missing = [name for name, dx in zip(by, dxs, strict=True) if dx is None]
    if missing:
        raise CutError(
            f"no gradient flows from {', '.join(of)} back to {missing[0]}: "
            f"tf.gradients gives None there"
        )
    return {
        name: tf.identity(tf.convert_to_tensor(dx), name=f"{PARTS_SCOPE}/{_tensor_label(name)}")
        for name, dx in zip(by, dxs, strict=True)
    }


def _checked_gradients(graph: Any, paths: GradientPaths, at_wrt: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients at `wrt`, which fail where they are not those of the whole."""
    import tensorflow as tf

    whole = _gradients_or_raise(graph, [paths.loss], paths.wrt, None)
    out = {}
    for name, dx in at_wrt.items():
        equal = tf.reduce_all(_nearly_equal(dx, whole[name]))
        message = f"the gradient in parts at {name} is not that of the whole"
        with tf.control_dependencies([tf.debugging.Assert(equal, [message])]):
            out[name] = tf.identity(dx)
    return out


def _nearly_equal(a: Any, b: Any) -> Any:
    """Element by element: equal, both NaN, or apart by no more than rounding explains.

    What rounding explains is the square root of the dtype's precision times the largest element.
    """
    import numpy as np
    import tensorflow as tf

    real = tf.math.real(a).dtype.as_numpy_dtype
    least = abs(b) * 0 + tf.reduce_max(abs(b))
    bound = float(np.sqrt(tf.experimental.numpy.finfo(real).eps)) * least
    both_nan = (a != a) & (b != b)
    return (a == b) | (abs(a - b) <= bound) | both_nan


@contextmanager
def _explained(paths: GradientPaths) -> Iterator[None]:
    """Raise CutError for what tf.gradients says where an op on the path has no gradient."""
    try:
        yield
    except LookupError as error:
        raise CutError(
            f"{_reason(error)}; a gradient that the op names by _gradient_op_type must be "
            f"registered first, one of ours by graphpatch.register_gradients"
        ) from error
    except (AttributeError, AssertionError) as error:
        loops = [op for op in BOUNDARIES if op in paths.body.by_type]
        if not loops:
            raise
        raise CutError(
            f"TensorFlow cannot differentiate the v1 loop or branch of this graph "
            f"({_reason(error)}): a GraphDef holds no control-flow contexts; a MetaGraphDef "
            f"(.meta) does"
        ) from error


def _reason(error: Exception) -> str:
    text = str(error.args[0] if error.args else "").strip() or type(error).__name__
    return text.splitlines()[0]


def cuts_in_order(cut: Any) -> list[list[str]]:
    """Several cuts in a row; one where no list holds another."""
    if isinstance(cut, list | tuple) and any(isinstance(item, list | tuple) for item in cut):
        return [tensor_names(f"cut[{place}]", item) for place, item in enumerate(cut)]
    return [tensor_names("cut", cut)]


def _tensor_label(tensor: str) -> str:
    """Return what the gradient at a tensor is named after: `h`, or `split_1`."""
    name = names.parse(tensor)
    return f"{name.op}_{name.index}" if name.index else name.op

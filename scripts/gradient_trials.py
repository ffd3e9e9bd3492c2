"""Into which inputs of an op its registered gradient flows: asked, for scripts/make_gradients.py.

An op is built on placeholders, on many shapes and attrs, and its gradient function is called.
Nothing is run: an input gets None, or a tensor that is computed from the upstream gradient, or one
that is not. The gradient is linear in the upstream gradient, so one that is not computed from it is
zero. Works under TensorFlow 1.15 (Python 3.7) and 2.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shape_trials import Trials

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Shape = Sequence[int | None] | None

TRAINABLE = "float16 bfloat16 float32 float64 complex64 complex128 resource variant".split()

# Of the inputs that carry gradients, and of the others, which are sizes and indices.
SHAPES: Sequence[Shape] = (None, (2, 2), (), (4,), (2, 4, 4), (1, 4, 4, 4), (1, 4, 4, 4, 4))
OTHERS: Sequence[Shape] = (None, (), (2,), (4,), (2, 2))
# Of attrs that are lists of ints: strides and windows of two and of three dimensions.
LISTS: Sequence[Sequence[int]] = ((), (1, 1, 1, 1), (1, 1, 1, 1, 1))
# What a gradient function raises that has none to give: the op cannot be differentiated.
REFUSALS = (LookupError, NotImplementedError)


class Built(Trials):
    """An op type, built so that its gradient function may take it."""

    def __init__(self, op: Any) -> None:
        super().__init__(op)
        lists = [attr.name for attr in op.attr if self.is_open_list(attr)]
        if self.possible and lists:
            values = [self.ints(sizes) for sizes in LISTS[1:]]
            self.variants += [dict.fromkeys(lists, value) for value in values]

    def choices(self, attr: Any) -> list[Any]:
        if self.is_open_list(attr):
            return [self.ints(())]
        return super().choices(attr)

    @staticmethod
    def is_open_list(attr: Any) -> bool:
        return bool(attr.type == "list(int)" and not attr.HasField("default_value"))

    @staticmethod
    def ints(sizes: Sequence[int]) -> Any:
        import tensorflow as tf

        make = tf.compat.v1.AttrValue
        return make(list=make.ListValue(i=sizes))

    def shapes(self) -> Iterator[list[Shape]]:
        """Shapes for the inputs: all alike, or one that is known beside others that are not."""
        import tensorflow as tf

        floats = [tf.as_dtype(one.dtype).base_dtype.name in TRAINABLE for one in self.inputs]
        for shape in SHAPES:
            for other in OTHERS if not all(floats) else (None,):
                yield [shape if is_float else other for is_float in floats]
        for known in range(len(floats)):
            yield [SHAPES[5] if place == known else None for place in range(len(floats))]


def ask(op: Any) -> dict[str, Any]:
    """What the gradient function of an op (an OpDef message) gives for each input it declares.

    `inputs` has, for each, the numbers of the declared outputs whose upstream gradient reaches it
    in some trial, or None where every trial gives None. `raises` is what it raises, where it
    refuses in all trials. Nothing where no trial could be made.
    """
    trials, answers, refusals = Built(op), [], []
    for shapes in trials.shapes() if trials.possible else ():
        for variant in trials.variants:
            try:
                answers.append(once(trials, shapes, variant))
            except REFUSALS as error:
                refusals.append(f"{type(error).__name__}: {error}")
            except Exception as error:  # it does not take such shapes or attrs
                del error
    answers = [one for one in answers if one is not None]
    if answers:
        return {"inputs": [listed(together(some)) for some in zip(*answers)]}
    return {"raises": refusals[0].splitlines()[0]} if refusals else {}


def together(some: Sequence[Any]) -> Any:
    """What the trials say of one input: the outputs of all of them; None where all say None."""
    there = [set(one) for one in some if one is not None]
    return set().union(*there) if there else None


def listed(found: Any) -> Any:
    return None if found is None else sorted(found)


def by_arg(op: Any, attrs: Any, found: Sequence[Any]) -> list[Any]:
    """What is found for tensors, by the inputs that the op declares: a list of tensors is one."""
    rows: list[Any] = []
    place = 0
    for arg in op.input_arg:
        count = length(arg, attrs)
        row = together(found[place : place + count])
        rows.append(None if row is None else {output_arg(op, attrs, k) for k in row})
        place += count
    return rows


def length(arg: Any, attrs: Any) -> int:
    """How many tensors an input or output holds that an op declares."""
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr].list.type)
    return int(attrs[arg.number_attr].i) if arg.number_attr else 1


def output_arg(op: Any, attrs: Any, flat: int) -> int:
    """The number of the declared output that holds an op's output tensor."""
    for place, arg in enumerate(op.output_arg):
        flat -= length(arg, attrs)
        if flat < 0:
            return place
    raise AssertionError(op.name)


def once(trials: Built, shapes: Sequence[Shape], variant: Any) -> list[Any] | None:
    """One trial: None where TensorFlow does not build the op on inputs of these shapes."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph, tf.name_scope("gradients"):  # TensorArrays ask for it
        attrs = dict(trials.attrs, **variant)
        try:
            tensors = [one.tensor(shape) for one, shape in zip(trials.inputs, shapes)]
            op = graph.create_op(trials.op.name, tensors, None, attrs=attrs)
        except (ValueError, TypeError, tf.errors.OpError):
            return None
        upstream = [
            tf.compat.v1.placeholder(out.dtype.base_dtype, out.shape)
            if out.dtype.base_dtype.name in TRAINABLE
            else None
            for out in op.outputs
        ]
        found = gradient_function(op)(op, *upstream)
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    return by_arg(trials.op, attrs, [reached_by(one, upstream) for one in found])


def gradient_function(op: Any) -> Any:
    from tensorflow.python.framework import ops

    return ops.get_gradient_function(op)


def reached_by(found: Any, upstream: Sequence[Any]) -> set[int] | None:
    """The outputs whose upstream gradient a gradient is computed from; None where it is None."""
    if found is None:
        return None
    seen: set[str] = set()
    todo = [found.values if hasattr(found, "dense_shape") else found]  # of IndexedSlices
    while todo:
        op = todo.pop().op
        if op.name not in seen:
            seen.add(op.name)
            todo += list(op.inputs)
    return {k for k, one in enumerate(upstream) if one is not None and one.op.name in seen}

"""Into which inputs of an op its gradient flows, and what it reads: for scripts/make_gradients.py.

An op is built on placeholders, on many shapes and attrs, and its gradient function is called.
Nothing is run: an input gets None, or a tensor that is computed from the upstream gradient, or one
that is not. The gradient is linear in the upstream gradient, so one that is not computed from it is
zero. A gradient that is computed from no value of the op's inputs and outputs, but for their
shapes, is the same for all values. Works under TensorFlow 1.15 (Python 3.7) and 2.x.
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
# Of two such inputs: the sizes of some axes, and what is added before and behind them.
PAIR: Sequence[Shape] = ((2,), (2, 2))
# Of attrs that are lists of ints: strides and windows of two and of three dimensions.
LISTS: Sequence[Sequence[int]] = ((), (1, 1, 1, 1), (1, 1, 1, 1, 1))
# Ops that look at the shape of what they read alone. A decision: TensorFlow has no call that tells.
SHAPE_READERS = "Shape ShapeN Size Rank ZerosLike OnesLike".split()
# The inputs of which only the shape is looked at, by op type.
OF_SHAPES = {
    **dict.fromkeys(SHAPE_READERS, range(1000)),
    "ResizeBilinearGrad": (1,),
    "ResizeBicubicGrad": (1,),
}
OUTPUT = -1  # in what a gradient reads: an output of the op

# What a gradient function raises that has none to give: the op cannot be differentiated.
REFUSALS = (LookupError, NotImplementedError)
OF_TRIAL = "ValueError"  # what it raises for shapes and attrs that it does not take


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
        if floats.count(False) == len(PAIR):
            pair = iter(PAIR)
            yield [None if is_float else next(pair) for is_float in floats]
        for known in range(len(floats)):
            yield [SHAPES[5] if place == known else None for place in range(len(floats))]


def ask(op: Any) -> dict[str, Any]:
    """Return what the gradient function of an op (an OpDef message) gives for its inputs.

    `inputs` has, for each, the numbers of the declared outputs whose upstream gradient reaches it
    in some trial, or None where every trial gives None. `reads` has, for each, the numbers of the
    declared inputs whose values the gradient is computed from, and -1 for those of the outputs;
    nothing where none is. Then `shapes` is "never" where it reads no shape of them either, and
    "unknown" where it reads those that are not known before the graph runs. `raises` is what it
    raises, where it refuses in all trials, or raises the same in each. `refuses` has, by attr, the
    value of a flag with which each trial raises the same. Nothing where no trial could be made.
    """
    trials, answers, refusals = Built(op), [], []
    raised: set[str] = set()
    touched: dict[bool, list[bool]] = {False: [], True: []}  # by whether all shapes were known
    for shapes in trials.shapes() if trials.possible else ():
        for variant in trials.variants:
            try:
                answer = once(trials, shapes, variant)
                if answer is not None:
                    answers.append(answer[:2])
                    touched[None not in shapes].append(answer[2])
            except REFUSALS as error:
                refusals.append(told(error))
            except Exception as error:  # it does not take such shapes or attrs
                raised.add(told(error))
    refused = refusing(trials) if answers else {}
    flags = {"refuses": refused} if refused else {}
    if answers:
        flows, reads = ([listed(together(some)) for some in zip(*both)] for both in zip(*answers))
        if any(reads):
            return dict({"inputs": flows, "reads": reads}, **flags)
        of_shapes = shapes_read(touched[True], touched[False]) if any(flows) else ""
        return dict({"inputs": flows}, **({"shapes": of_shapes} if of_shapes else {}), **flags)
    if len(raised) == 1 and not any(one.startswith(OF_TRIAL) for one in raised):
        refusals += raised
    return {"raises": refusals[0].splitlines()[0]} if refusals else {}


def told(error: Exception) -> str:
    """Return what is raised, in its first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def refusing(trials: Built) -> dict[str, Any]:
    """Return the flags with which each trial raises the same: the value, and what is raised."""
    import tensorflow as tf

    found: dict[str, Any] = {}
    for attr in trials.op.attr:
        if attr.type == "bool" and attr.HasField("default_value"):
            value = not attr.default_value.b
            says = raised_with(trials, {attr.name: tf.compat.v1.AttrValue(b=value)})
            if says:
                found[attr.name] = [value, says]
    return found


def raised_with(trials: Built, variant: Any) -> str:
    """Return what each trial with these attrs raises; nothing where one answers, or two differ."""
    raised: set[str] = set()
    for shapes in trials.shapes():
        try:
            if once(trials, shapes, variant) is not None:
                return ""
        except Exception as error:
            raised.add(told(error))
    return raised.pop() if len(raised) == 1 else ""


def shapes_read(known: Sequence[bool], unknown: Sequence[bool]) -> str:
    """Which shapes of an op a gradient reads, by whether each trial met a tensor of the op."""
    if all(known or unknown):
        return ""
    return "unknown" if any(known) or any(unknown) else "never"


def together(some: Sequence[Any]) -> Any:
    """Return what trials say of one input: the outputs of all of them; None where all say None."""
    there = [set(one) for one in some if one is not None]
    return set().union(*there) if there else None


def listed(found: Any) -> Any:
    return None if found is None else sorted(found)


def by_arg(op: Any, attrs: Any, found: Sequence[Any], args: Any) -> list[Any]:
    """Return what holds of tensors, by the inputs that the op declares: a list of tensors is one.

    It is numbers of tensors of `args`, which the op declares, and becomes numbers of these.
    """
    rows: list[Any] = []
    place = 0
    for arg in op.input_arg:
        count = length(arg, attrs)
        row = together(found[place : place + count])
        rows.append(None if row is None else {of_arg(op, attrs, k, args) for k in row})
        place += count
    return rows


def length(arg: Any, attrs: Any) -> int:
    """How many tensors an input or output holds that an op declares."""
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr].list.type)
    return int(attrs[arg.number_attr].i) if arg.number_attr else 1


def of_arg(op: Any, attrs: Any, flat: int, args: Any) -> int:
    """Return the number of the declared input or output that holds a tensor; OUTPUT stays."""
    left = flat
    for place, arg in enumerate(args) if flat >= 0 else ():
        left -= length(arg, attrs)
        if left < 0:
            return place
    assert flat == OUTPUT, op.name
    return OUTPUT


def once(trials: Built, shapes: Sequence[Shape], variant: Any) -> tuple[Any, Any, bool] | None:
    """One trial: None where TensorFlow does not build the op on inputs of these shapes.

    What comes to each input, what is read for it, and whether a tensor of the op is met at all.
    """
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
    walks = [walk(one, op) for one in found]
    whole = [walk(one, op, {}) for one in found]
    flows = [reached_by(one, upstream) for one in walks]
    reads = [one if one is None else one[1] for one in walks]
    return (
        by_arg(trials.op, attrs, flows, trials.op.output_arg),
        by_arg(trials.op, attrs, reads, trials.op.input_arg),
        any(one is not None and bool(one[1]) for one in whole),
    )


def gradient_function(op: Any) -> Any:
    from tensorflow.python.framework import ops

    return ops.get_gradient_function(op)


def walk(found: Any, op: Any, of_shapes: Any = OF_SHAPES) -> tuple[set[str], set[int]] | None:
    """Return ops that a gradient comes from, and what it reads of `op`; None where it is None."""
    if found is None:
        return None
    seen: set[str] = set()
    reads: set[int] = set()
    inputs = {one.op.name: place for place, one in enumerate(op.inputs)}
    todo = [found.values if hasattr(found, "dense_shape") else found]  # of IndexedSlices
    while todo:
        here = todo.pop().op
        if here is op or here.name in inputs:
            reads.add(OUTPUT if here is op else inputs[here.name])
        if here.name not in seen and here is not op:
            shapes = of_shapes.get(here.type, ())
            todo += [one for place, one in enumerate(here.inputs) if place not in shapes]
        seen.add(here.name)
    return seen, reads


def reached_by(walked: Any, upstream: Sequence[Any]) -> set[int] | None:
    """Return outputs whose upstream gradient a gradient is computed from; None where it is None."""
    if walked is None:
        return None
    return {k for k, one in enumerate(upstream) if one is not None and one.op.name in walked[0]}

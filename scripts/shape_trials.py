"""Which inputs of an op have the shape of its output 0: measured, for scripts/make_opdefs.py.

An op is built again and again on placeholders of given shapes, and TensorFlow's own shape
inference is asked. Nothing is run. Works under TensorFlow 1.15 (Python 3.7) and 2.x.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Shape = tuple[int, ...]
    AnyShape = Sequence[int | None] | None
    Attrs = dict[str, Any]

SHAPES: Sequence[Shape] = ((), (3,), (3, 5), (2, 3, 5, 7))
# These can only refute: sizes 0 and 1 show what drops or stretches them (Squeeze).
ODD_SHAPES: Sequence[Shape] = ((1,), (0,), (1, 5), (2, 1, 3), (4, 4, 4))
OTHER_SHAPES: Sequence[Shape] = ((), (1,), (2,), (5,), (1, 5), (3, 1), (5, 3), (2, 3, 5, 7))

DTYPES = (
    "float32 int32 bool string int64 complex64 resource variant uint8 float64 complex128 int8"
    " float16 bfloat16 uint32 uint64 qint8 quint8 qint32"
).split()

# Shape inference says "as input 0", but another input's or attr's value changes the size.
UNTRUE = {
    "FFTND": "fft_length crops and pads",
    "IFFTND": "fft_length crops and pads",
    "RFFTND": "the last axis is halved",
    "IRFFTND": "the last axis is doubled",
    "TPUPartitionedInputV2": "partition_dims joins the inputs",
    "XlaSpmdFullToShardShape": "manual_sharding cuts the input up",
}


def measure(op: Any) -> dict[str, Any]:
    """`keeps_shape` and `broadcasts` of an op (an OpDef message), where it has them.

    Inputs count flat, each list as two tensors; behind the first list they have no fixed place,
    and are left out.
    """
    if not op.output_arg or op.name in UNTRUE:
        return {}
    trials = Trials(op)
    lists = [place for place, source in enumerate(trials.inputs) if source.in_list]
    steady = [k for k in range(len(trials.inputs)) if not lists or k <= lists[0] or k in lists]
    kept = [k for k in steady if trials.keeps(k)]
    if kept and trials.broadcasts():
        return {"keeps_shape": kept, "broadcasts": True}
    kept = [k for k in kept if trials.keeps_beside(k)]
    return {"keeps_shape": kept} if kept else {}


def allowed_dtypes(attr: Any) -> list[int]:
    """Return the dtypes that a type attr can take, the most usual first."""
    import tensorflow as tf

    ours = [tf.as_dtype(name).as_datatype_enum for name in DTYPES]
    theirs = list(attr.allowed_values.list.type)
    return [number for number in ours if number in theirs] + theirs if theirs else ours


class Input:
    """One input tensor of an op; those of one type attr are of one `group`."""

    def __init__(self, group: str, dtype: int, is_ref: bool, in_list: bool) -> None:
        self.group, self.dtype, self.is_ref, self.in_list = group, dtype, is_ref, in_list

    def tensor(self, shape: AnyShape) -> Any:
        """Return a placeholder, or a variable where the op wants a reference."""
        import tensorflow as tf

        dtype = tf.as_dtype(self.dtype)
        if not self.is_ref:
            return tf.compat.v1.placeholder(dtype, shape)
        attrs = {
            "dtype": tf.compat.v1.AttrValue(type=self.dtype),
            "shape": tf.compat.v1.AttrValue(shape=tf.TensorShape(shape).as_proto()),
        }
        graph = tf.compat.v1.get_default_graph()
        return graph.create_op("VariableV2", [], None, attrs=attrs).outputs[0]


class Trials:
    """One op type, built on inputs of given shapes."""

    def __init__(self, op: Any) -> None:
        import tensorflow as tf

        self.op = op
        self.graph = tf.Graph()
        self.tensors: dict[Any, Any] = {}
        self.attrs: Attrs = {}
        choices = {attr.name: self.choices(attr) for attr in op.attr}
        self.possible = all(choices.values())
        if self.possible:
            self.attrs = {name: values[0] for name, values in choices.items()}
        self.inputs = list(self.flat_inputs()) if self.possible else []
        self.variants: list[Attrs] = [{}]
        for name, values in choices.items():
            self.variants += [{name: value} for value in values[1:]]

    def choices(self, attr: Any) -> list[Any]:
        """Return the values to try an attr with: its default, or what it may be without one."""
        import tensorflow as tf

        make, least = tf.compat.v1.AttrValue, max(attr.minimum, 0)
        used = {arg.type_attr for arg in self.op.input_arg}
        counts = {arg.number_attr for arg in self.op.input_arg}
        default = [attr.default_value] if attr.HasField("default_value") else []
        if attr.type == "type":
            values = default + [make(type=number) for number in allowed_dtypes(attr)]
            return values[:1] if attr.name in used else values
        if default:
            return default
        if attr.type == "list(type)":
            values = allowed_dtypes(attr)[:1] * max(2, least)
            return [make(list=make.ListValue(type=values))]
        if attr.type == "int":
            least = least if attr.has_minimum else 1
            sizes = [max(2, least)] if attr.name in counts else [least, least + 1, least + 2]
            return [make(i=size) for size in sizes]
        return self.invented(attr, make)

    @staticmethod
    def invented(attr: Any, make: Any) -> list[Any]:
        if attr.type == "string":
            return [make(s=text) for text in attr.allowed_values.list.s or [b""]]
        if attr.type == "bool":
            return [make(b=False), make(b=True)]
        if attr.type == "float":
            return [make(f=1.0)]
        if attr.type == "shape":
            unknown = make()
            unknown.shape.unknown_rank = True
            return [unknown]
        empty = make(list=make.ListValue())
        return [empty] if attr.type.startswith("list(") and not attr.minimum else []

    def flat_inputs(self) -> Iterator[Input]:
        for place, arg in enumerate(self.op.input_arg):
            if arg.type_list_attr:
                for number in self.attrs[arg.type_list_attr].list.type:
                    yield Input(arg.type_list_attr, number, arg.is_ref, True)
                continue
            dtype = arg.type or self.attrs[arg.type_attr].type
            group = arg.type_attr or f"fixed {place}"
            for _ in range(self.attrs[arg.number_attr].i if arg.number_attr else 1):
                yield Input(group, dtype, arg.is_ref, bool(arg.number_attr))

    def tensor(self, place: int, shape: Shape) -> Any:
        if (place, shape) not in self.tensors:
            self.tensors[place, shape] = self.inputs[place].tensor(shape)
        return self.tensors[place, shape]

    def shape(self, shapes: Sequence[Shape], variant: Attrs | None = None) -> Any:
        """Return the inferred shape of output 0; None: the op can't be built; "?": not known."""
        import tensorflow as tf

        with self.graph.as_default():
            inputs = [self.tensor(place, shape) for place, shape in enumerate(shapes)]
            attrs = dict(self.attrs, **(variant or {}))
            try:
                op = self.graph.create_op(self.op.name, inputs, None, attrs=attrs)
            except (ValueError, TypeError, tf.errors.OpError):
                return None
        if not op.outputs or not op.outputs[0].shape.is_fully_defined():
            return "?"
        return tuple(op.outputs[0].shape.as_list())

    def keeps(self, k: int) -> bool:
        """Whether output 0 had the shape of input k wherever the op could be built.

        Inputs of its type attr have the same shape, others are scalars; where fewer than three
        shapes can be built so, every other input is a scalar.
        """
        group = {j for j, source in enumerate(self.inputs) if source.group == self.inputs[k].group}
        return self.kept(k, group) or (len(group) > 1 and self.kept(k, {k}))

    def kept(self, k: int, group: set[int]) -> bool:
        built = set()
        count = len(self.inputs)
        for shape in (*SHAPES, *ODD_SHAPES):
            same = [shape if j in group else () for j in range(count)]
            for shapes in (same, [shape] * count):
                for variant in self.variants:
                    found = self.shape(shapes, variant)
                    if found not in (None, shape):
                        return False
                    if found is not None and shapes is same:
                        built.add(shape)
        return len(built.intersection(SHAPES)) >= 3

    def broadcasts(self) -> bool:
        """Whether two inputs, (3, 5) and (1, 5) either way round, give (3, 5)."""
        for i, j in combinations(range(len(self.inputs)), 2):
            for rest in ((), (1, 5)):
                one, two = [rest] * len(self.inputs), [rest] * len(self.inputs)
                one[i], one[j], two[i], two[j] = (3, 5), (1, 5), (1, 5), (3, 5)
                if self.shape(one) == self.shape(two) == (3, 5):
                    return True
        return False

    def keeps_beside(self, k: int) -> bool:
        """Whether output 0 has the shape of input k beside inputs of other shapes too."""
        return all(
            self.shape(shapes) in (None, shapes[k])
            for own in ((), (3, 5))
            for other in OTHER_SHAPES
            for shapes in self.mixed(k, own, other)
        )

    def mixed(self, k: int, own: Shape, other: Shape) -> Iterator[list[Shape]]:
        """Shapes with `own` at k and `other` at one place or everywhere else."""
        count = len(self.inputs)
        yield [own if i == k else other for i in range(count)]
        for rest in (own, ()):
            for j in set(range(count)) - {k}:
                yield [own if i == k else other if i == j else rest for i in range(count)]

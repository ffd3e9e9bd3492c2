"""Formulas in all forms give one number: numpy or closed form, FunctionDef, TensorFlow's ops.

Every function of the language on tensors long and short, odd numbers too; the library in the
numbers of its regimes; `forward` and `own`, whose oracle is TensorFlow's own gradient of the op;
and random formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpatch.errors import FormulaError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.functions import FUNCTIONS, OF_THE_OP, OPERATORS
from graphpatch.gradients.interpreter import gradient
from graphpatch.gradients.library import LIBRARY
from graphpatch.gradients.op_gradients import OP_GRADIENTS
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import gradient_function
from graphpatch.runtime.gradient_functions import _RAW_NAMES, formula_gradients
from tests.draws import draws, quick
from tests.gradients import regimes
from tests.gradients.oracle import numpy_gradient
from tests.tf import run_graph, tensorflow1
from tests.tf.function_calls import Calls, dtype_named

tf = pytest.importorskip("tensorflow")

DTYPES = ("float16", "float32", "bfloat16", "float64")


@dataclass(frozen=True)
class Example:
    """A formula on numbers: the dx of each input; by default what the oracle in numpy gives."""

    formula: Formula
    inputs: tuple[Any, ...]
    y: Any
    dy: Any
    limit: float
    dxs: tuple[Any, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    op_type: str = ""
    same_shape: bool = False

    @property
    def expected(self) -> Any:
        return self.dxs or self.numpy

    @cached_property
    def numpy(self) -> list[Any]:
        return numpy_gradient(
            self.formula, self.inputs, [self.y], [self.dy], self.attrs, self.op_type
        )

    def function(self, name: str) -> Any:
        """The FunctionDef."""
        dtypes = [one.dtype.name for one in self.inputs], [self.y.dtype.name]
        op = Signature.of(*dtypes, self.attrs, self.same_shape, op_type=self.op_type)
        return gradient_function(self.formula, op, name)

    def check(self, found: Any, expected: Any) -> None:
        x = [one.ravel()[:9] for one in self.inputs]
        message = (
            f"{self.formula} of {self.op_type} {self.y.dtype} of {x}, dy {self.dy.ravel()[:9]}"
        )
        expected = expected.astype(np.float64)
        np.testing.assert_allclose(found, expected, self.limit, self.limit, err_msg=message)


def check_in_a_session(examples: list[Example], run: Any = run_graph.run, *more: Any) -> None:
    calls, expected = Calls(), []
    for example in examples:
        function = example.function(f"f{len(calls.graph.library.function)}")
        names = calls.add(function, [*example.inputs, example.y, example.dy])
        wanted = [dx for dx in example.expected if dx is not None]
        expected += [(example, *pair) for pair in zip(names, wanted, strict=True)]
    found = run(calls.graph.SerializeToString(), calls.feeds, calls.fetches, *more)
    for example, name, dx in expected:
        example.check(found[name], dx)


def check_by_ops(examples: list[Example]) -> None:
    for one in examples:
        tensors = [list(map(tf.constant, some)) for some in (one.inputs, [one.y], [one.dy])]
        found = formula_gradients(one.formula, *tensors, one.attrs, op_type=one.op_type)
        for dx, wanted, x in zip(found, one.expected, one.inputs, strict=True):
            if wanted is not None:
                assert (dx.dtype.name, dx.shape) == (x.dtype.name, wanted.shape)
                one.check(tf.cast(dx, tf.float64).numpy(), wanted)
            else:
                assert dx is None


# Every function of the language.

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 3e-6, "float64": 1e-12}
ODD = (0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5)
SHAPES = ((), (1,), (3,), (37,), (2, 3, 5))
UNARY = {
    name
    for name, one in FUNCTIONS.items()
    if one.arguments == ("x",) and not one.options and name not in OF_THE_OP
}
CONDITIONS = ("is_finite", "is_nan")
REDUCTIONS = ("sum", "mean", "max", "min", "norm")
ELEMENTWISE = [
    *(f"{name}(x)" for name in sorted(UNARY - {*CONDITIONS, "transpose", "softmax"})),
    *(f"where({name}(x), dy, 7)" for name in CONDITIONS),
    *(
        f"where(x {sign} dy, 1, 2) + where(x {sign} 1, 4, 8)"
        for sign in ("<", "<=", ">", ">=", "==", "!=")
    ),
    *(f"x {sign} dy" for sign in ("+", "-", "*", "/", "**")),
    *("x / 3 + 3 / x", "x ** 2 + 2 ** x + x ** 0.5", "pow(abs(x), dy)", "-x", "maximum(x, nan)"),
    "minimum(x, dy) + minimum(x, 1) + minimum(-1, x)",
    "maximum(x, dy) + maximum(x, 1) + maximum(-1, x)",
    "clip(x, -1, 1.5) + clip(x, dy, 2)",
    "where(x > 0 and dy > 0 or not (x > -1), dy, nan)",
    *("cast_like(x > 0, dy)", "cast_like(3, dy)", "where(x > 0, inf, -0.5)"),
]
SHAPED = [
    *(f"{name}(dy)" for name in REDUCTIONS),
    *(f"x - {name}(x, from_axis=1, keepdims=true)" for name in REDUCTIONS),
    *(f"{name}(dy, axes=[0, -1], keepdims=true) * x" for name in REDUCTIONS),
    *(f"{name}(dy, axes=0) * norm(x)" for name in ("sum", "max")),
    *("reshape_like(reshape_like(x, transpose(x)), dy)", "broadcast_like(sum(x), x)"),
    *("sum_like(x * dy, sum(x, axes=0, keepdims=true)) * x", "transpose(transpose(x))"),
    "transpose(transpose(x, perm=[2, 0, 1]), perm=[1, 2, 0])",
    *(
        f"matmul({factors})"
        for factors in ("matmul(x, dy, transpose_b=true), x", "x, matmul(dy, x, transpose_a=true)")
    ),
    "split(x, 3, 1, axis=1) * dy - split(dy, parts=5, index=4, axis=-1)",
    "split(split(concat(x, dy), 2, 1), 3, 0, axis=-2) + x",
    "split(concat(dy, x, dy, axis=-1), 3, 1, axis=2)",
    "split(concat(x, dy, axis=1), 6, 5, axis=1) * x",
    "softmax(x) * dy + softmax(3 * transpose(dy, perm=[0, 1, 2]))",
    "gather(x, [1, 0]) * gather(dy, [4, 3, 2, 1, 0], axis=-1)",
    "quantile(x, 0.5) * dy + quantile(dy, 0.3, from_axis=1) + quantile(x, q=1, from_axis=2)",
    "let s = sigmoid(x); let t = s * dy; t * t - s",
]


def test_the_formulas_name_every_function() -> None:
    text = " ".join((*ELEMENTWISE, *SHAPED))
    elsewhere = {*OF_THE_OP, "normal_like", "uniform_like"}
    missing = [name for name in FUNCTIONS if f"{name}(" not in text and name not in elsewhere]
    assert not missing
    assert all(sign.removesuffix("x") in text for sign in OPERATORS)


def odd(shape: tuple[int, ...], seed: int) -> Any:
    """Numbers, one in four an odd one."""
    draw = np.random.default_rng(seed)
    values = draw.normal(scale=3, size=shape)
    return np.where(draw.random(shape) < 0.25, draw.choice(ODD, size=shape), values)


@cache
def functions(dtype: str) -> list[Example]:
    def example(text: str, x: Any, dy: Any) -> Example:
        x, dy = (array.astype(dtype_named(dtype)) for array in (x, dy))
        limit = TOLERANCE[dtype] * (10 if "matmul" in text or "sin" in text or "cos" in text else 1)
        return Example(Formula.parse(text), (x,), dy, dy, limit)

    finite = [np.random.default_rng(seed).normal(size=(2, 3, 5)) for seed in (1, 2)]
    return [
        *(
            example(text, odd(shape, place), odd(shape, place + 1000))
            for place, text in enumerate(ELEMENTWISE)
            for shape in SHAPES
        ),
        *(example(text, *finite) for text in SHAPED),
        *(example(f"{name}(x)", odd((37,), 3), odd((37,), 4)) for name in REDUCTIONS),
        example("dy", np.ones(1), np.ones(4096)),
    ]


NOISE = (
    *("normal_like(x, seed=3)", "normal_like(dy, 2147483648) + x"),
    *("uniform_like(x, seed=3)", "uniform_like(dy, 7) + x"),
)


def noise() -> list[Example]:
    """Of the first run of a Session, where it is that of numpy; drawn in float32."""
    x = np.linspace(-1, 1, 30).reshape(2, 3, 5)
    return [
        Example(Formula.parse(text), (one,), one, one, max(TOLERANCE[dtype], 3e-6))
        for dtype in TOLERANCE
        for one in [x.astype(dtype_named(dtype))]
        for text in NOISE
    ]


def test_noise_is_another_in_the_next_run() -> None:
    assert all(one.function("f").signature.is_stateful for one in noise())
    with tf.Graph().as_default() as graph:
        x = [tf.zeros([1000])]
        (found,) = formula_gradients(Formula.parse("normal_like(dy, 0)"), x, x, x)
        sessions = [tf.compat.v1.Session(graph=graph) for _ in range(2)]
        drawn = [[run.run(found) for _ in range(2)] for run in sessions]
    assert drawn[0][0].tolist() == drawn[1][0].tolist() != drawn[0][1].tolist()
    assert drawn[0][1].tolist() == drawn[1][1].tolist()
    assert abs(drawn[0][0].mean()) < 0.1
    assert abs(drawn[0][0].std() - 1) < 0.1


# The library.

# TensorFlow 1.15 has no kernels of these for a CPU: no net holds such an op there.
NOT_IN_1 = {("Sigmoid", "bfloat16"), ("Tanh", "bfloat16")}


@cache
def library(same_shape: bool) -> list[Example]:
    """Each regime, and each gradient of a whole tensor, in each dtype."""
    found = []
    for dtype, limit in regimes.TOLERANCE.items():
        for one in regimes.REGIMES:
            x, dy, dx = (
                np.array(column, float)[:, np.newaxis] for column in zip(*one.rows, strict=True)
            )
            with np.errstate(all="ignore"):
                x, y, dy = (array.astype(dtype_named(dtype)) for array in (x, one.y(x), dy))
            formula, more = LIBRARY[one.name].formula(one.parameters), (one.attrs, one.op_type)
            found.append(Example(formula, (x,), y, dy, limit, (dx,), *more, same_shape))
        for name, parameters, *vectors in regimes.NORMS:
            dy, dx = np.array(vectors, float)
            x, dy = (array.astype(dtype_named(dtype)) for array in (np.full(len(dy), -1.0), dy))
            formula = LIBRARY[name].formula(parameters)
            found.append(Example(formula, (x,), x, dy, limit, (dx,)))
    return found


# `forward` and `own`.


@dataclass(frozen=True)
class OpCase:
    """An op type, its attrs, and the arrays that it reads; the places that have a gradient."""

    op_type: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> list[int]:
        return [place for place, one in enumerate(self.inputs) if one.dtype.kind == "f"]

    def raw(self, *inputs: Any) -> Any:
        """Output 0 of the op, by TensorFlow."""
        from graphpatch.gradients.ops import op_def

        names = [_RAW_NAMES.get(arg.name, arg.name) for arg in op_def(self.op_type).inputs]
        named = dict(zip(names, inputs, strict=True))
        found = getattr(tf.raw_ops, self.op_type)(**named, **self.attrs)
        return found[0] if isinstance(found, tuple) else found

    @property
    def moved(self) -> str:
        """The inputs of the op in a formula, the float ones moved."""
        floats = self.places
        return ", ".join(
            f"0.5 * x{n} + 1" if n in floats else f"x{n}" for n in range(len(self.inputs))
        )

    @cached_property
    def y(self) -> Any:
        return self.raw(*map(tf.constant, self.inputs)).numpy()

    @property
    def dy(self) -> Any:
        return drawn(*self.y.shape, seed=9)

    def example(self, place: int, text: str) -> Example:
        """The formula for one input of the op alone."""
        return self.of([text if n == place else None for n in range(len(self.inputs))])

    def of(self, formula: Any) -> Example:
        formula = formula if isinstance(formula, Formula) else Formula.parse(formula)
        more = (1e-9, (), self.attrs, self.op_type)
        return Example(formula, self.inputs, self.y, self.dy, *more)

    @property
    def written(self) -> list[Example]:
        name = WRITTEN.get(self.op_type)
        return [self.of(LIBRARY[name].formula())] if name else []


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([*shape, seed]).normal(size=shape)


def _case(op_type: str, *shapes: tuple[int, ...], **attrs: Any) -> OpCase:
    return OpCase(op_type, tuple(drawn(*s, seed=n) for n, s in enumerate(shapes)), attrs)


_ONE = {"strides": [1, 1, 1, 1], "padding": "SAME"}
_TWO = {"strides": [1, 2, 2, 1], "padding": "VALID"}
_UNEVEN = {"strides": [1, 2, 1, 1], "explicit_paddings": [0, 0, 1, 2, 0, 1, 0, 0]}
_POOL = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 1, 1]}
_IMAGE, _AXES = (2, 6, 7, 3), np.array([1, 2], np.int32)
_SIZES = np.array([1, 3, 4, 2], np.int32)
# fmt: off
CASES = [
    *(_case("MatMul", *shapes, transpose_a=first, transpose_b=second)
      for shapes, first, second in (
          ([(3, 4), (4, 2)], False, False), ([(4, 3), (2, 4)], True, True),
          ([(4, 3), (4, 2)], True, False), ([(3, 4), (2, 4)], False, True))),
    _case("BatchMatMulV2", (2, 3, 4), (4, 5), adj_x=False, adj_y=False),
    _case("BatchMatMulV2", (2, 4, 3), (2, 5, 4), adj_x=True, adj_y=True),
    _case("Conv2D", _IMAGE, (3, 2, 3, 4), **_ONE), _case("Conv2D", _IMAGE, (3, 2, 3, 4), **_TWO),
    _case("Conv2D", _IMAGE, (3, 2, 3, 4), **_UNEVEN, padding="EXPLICIT"),
    _case("DepthwiseConv2dNative", _IMAGE, (3, 2, 3, 2), **_ONE),
    _case("DepthwiseConv2dNative", _IMAGE, (3, 3, 3, 1), **_TWO | {"padding": "SAME"}),
    OpCase("Conv2DBackpropInput", (_SIZES, drawn(3, 2, 2, 3), drawn(1, 2, 2, 3)),
           _TWO | {"padding": "SAME"}),
    _case("BiasAdd", _IMAGE, (3,)),
    *(_case(f"{name}Pool", _IMAGE, **_POOL, padding=padding)
      for padding in ("SAME", "VALID") for name in ("Avg", "Max")),
    OpCase("Mean", (drawn(*_IMAGE), _AXES)),
    OpCase("Mean", (drawn(*_IMAGE), _AXES), {"keep_dims": True}),
    OpCase("Sum", (drawn(*_IMAGE), _AXES)), _case("LeakyRelu", (2, 5), alpha=0.25),
    *(_case(name, (2, 5)) for name in ("Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign")),
    *(_case(name, (2, 5)) for name in ("Sigmoid", "Tanh", "Softmax", "Identity")),
    *(_case(name, (2, 5), (5,)) for name in ("AddV2", "Sub", "Mul", "RealDiv")),
    *(_case(name, (2, 5), (2, 5)) for name in ("Maximum", "Minimum")),
]
# fmt: on
NOT_HERE = {"SparseMatMul", "Conv3D", "BatchMatMul", "Add", "Div"} | {
    f"FusedBatchNorm{version}" for version in ("", "V2", "V3")
}
# By name what `own(dy * forward(x0))` says, and the windows of another op.
_POOLS = [f"{name}_pool_transpose(dy * {name}_pool(x0), x0)" for name in ("avg", "max")]
NAMED = {
    "Conv2D": ["conv2d_transpose(dy * conv2d(x0, x1), x1, x0)"],
    "DepthwiseConv2dNative": ["depthwise_conv2d_transpose(dy * depthwise_conv2d(x0, x1), x1, x0)"],
    "AvgPool": _POOLS,
    "MaxPool": _POOLS[::-1],
    "BiasAdd": ["dy * bias_add(x0, x1)"],
}
# The op's own gradient, as the library writes it.
WRITTEN = {"MatMul": "matmul", "BatchMatMulV2": "batch_matmul", "Mul": "mul"}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.op_type)


@cache
def ops() -> list[Example]:
    """At each input: the op's own gradient, and that at other inputs of a dy that it gives."""
    found = []
    for case in CASES:
        texts = ("own(dy)", f"let f = forward({case.moved}); own(dy * f, {case.moved})")
        found += [case.example(place, text) for place in case.places for text in texts]
        found += [case.example(0, text) for text in NAMED.get(case.op_type, ())]
        found += case.written
    return found


@each_case
def test_numpy_gives_what_tensorflow_does(case: OpCase) -> None:
    tensors, dy = [tf.constant(one) for one in case.inputs], tf.constant(case.dy)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([tensors[place] for place in case.places])
        value = case.raw(*tensors)
        moved = [0.5 * one + 1 if n in case.places else one for n, one in enumerate(tensors)]
        other = case.raw(*moved)
    again = f"own(dy * forward({case.moved}), {case.moved})"
    for place in case.places:
        # By the chain rule, d other / d x is half of the gradient at the moved inputs.
        for text, expected in (
            ("own(dy)", tape.gradient(value, tensors[place], dy)),
            (again, 2 * tape.gradient(other, tensors[place], dy * other)),
        ):
            example = case.example(place, text)
            example.check(example.numpy[place], expected.numpy())
        for example in case.written:
            example.check(example.numpy[place], tape.gradient(value, tensors[place], dy).numpy())
    for text in NAMED.get(case.op_type, ())[:1]:
        by_op = "dy * forward(x0)" if case.op_type == "BiasAdd" else "own(dy * forward(x0))"
        example = case.example(0, text)
        example.check(example.numpy[0], case.example(0, by_op).numpy[0])


def test_every_op_type_of_the_table_is_here() -> None:
    assert {case.op_type for case in CASES} | NOT_HERE == set(OP_GRADIENTS)


@pytest.mark.parametrize(
    ("op_type", "text", "message"),
    [
        ("", "own(dy)", "a match as one op have none"),
        ("Cumsum", "own(dy)", "own(dy) is known for MatMul, BatchMatMul"),
        ("Relu", "forward(x, x)", "Relu has 1 inputs"),
        ("Relu", "forward(1)", "takes a tensor here"),
        ("Relu", "own(2)", "takes a tensor here"),
        ("RandomStandardNormal", "forward(x)", "has a state"),
    ],
)
def test_what_an_op_does_not_have(op_type: str, text: str, message: str) -> None:
    op = Signature.of(["float32"], ["float32"], op_type=op_type)
    with pytest.raises(FormulaError) as caught:
        gradient_function(Formula.parse(text), op)
    assert message in str(caught.value)


def test_own_of_sparse_matmul_is_tensorflows() -> None:
    # models 9294: SparseMatMul, which knows float32 and bfloat16 alone.
    a, b, dy = (drawn(*shape).astype("float32") for shape in ((4, 3), (2, 4), (3, 2)))
    flags = {"transpose_a": True, "transpose_b": True, "a_is_sparse": True}
    with tf.GradientTape() as tape:
        tensors = [tf.constant(a), tf.constant(b)]
        tape.watch(tensors)
        y = tf.raw_ops.SparseMatMul(a=tensors[0], b=tensors[1], **flags)
    expected = tape.gradient(y, tensors, tf.constant(dy))
    own = Formula.parse(["own(dy)", "own(dy)"])
    found = [
        formula_gradients(own, tensors, [y], [tf.constant(dy)], flags, op_type="SparseMatMul"),
        gradient(own, [a, b], [y.numpy()], [dy], flags, "SparseMatMul"),
    ]
    for dxs in found:
        for dx, wanted in zip(dxs, expected, strict=True):
            np.testing.assert_allclose(dx, wanted, rtol=1e-5)


# All of them.

GROUPS: dict[str, Callable[[], list[Example]]] = {
    **{dtype: partial(functions, dtype) for dtype in DTYPES},
    "the library": partial(library, False),
    "ops": ops,
}
SLOW = {"bfloat16", "float64"}
of_groups = pytest.mark.parametrize("group", quick(GROUPS, lambda group: group not in SLOW))


@of_groups
def test_functions_in_a_session(group: str) -> None:
    check_in_a_session(GROUPS[group]())


@pytest.mark.parametrize(
    "build", [noise, pytest.param(partial(library, True), marks=pytest.mark.slow)]
)
def test_noise_and_known_shapes_in_a_session(build: Callable[[], list[Example]]) -> None:
    check_in_a_session(build())


@pytest.mark.slow
@pytest.mark.parametrize("build", [*GROUPS.values(), noise], ids=[*GROUPS, "noise"])
def test_functions_under_tensorflow_1(build: Callable[[], list[Example]], tmp_path: Path) -> None:
    examples = [one for one in build() if (one.op_type, one.y.dtype.name) not in NOT_IN_1]
    check_in_a_session(examples, tensorflow1.fetch, tmp_path)


@of_groups
def test_tensorflow_ops(group: str) -> None:
    check_by_ops(GROUPS[group]())


# Random formulas, in the three forms. Where each function is exact in every dtype (IEEE 754 says to
# which number it rounds), they agree to the bit, but for the sign of 0. Test values are multiples
# of 1/8, NaN and infinities.

LEAVES = "x0 x1 y dy 0 1 2.5 0.125 attr.alpha slope inf nan".split()
NUMBERS = (
    *("{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / (1 + abs({b}))", "-({a})", "({a}) ** 2"),
    *(f"{name}({{a}})" for name in ("abs", "sign", "floor", "round", "relu", "square", "stop")),
    *("minimum({a}, {b})", "maximum({a}, {b})", "clip({a}, {b}, 3)", "cast_like({c}, dy)"),
    *("where({c}, {a}, {b})", "zeros_like(dy) + {a}", "ones_like(dy) * {a}"),
)
COMPARED = (
    *(f"{{a}} {sign} {{b}}" for sign in ("<", "<=", ">", ">=", "==", "!=")),
    *("is_finite({a} + 0 * dy)", "is_nan({a} + 0 * dy)", "-1 < {a} < 2"),
)
numbers = st.deferred(lambda: st.sampled_from(LEAVES) | combined(NUMBERS))
conditions = st.deferred(
    lambda: (
        combined(COMPARED)
        | st.builds("({}) and ({})".format, conditions, conditions)
        | st.builds("({}) or ({})".format, conditions, conditions)
        | st.builds("not ({})".format, conditions)
    )
)


def combined(templates: tuple[str, ...]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda template, a, b, c: template.format(a=f"({a})", b=f"({b})", c=f"({c})"),
        *(st.sampled_from(templates), numbers, numbers, st.deferred(lambda: conditions)),
    )


BROADCAST = (
    ((3,), (3,), (3,)),
    ((33,), (33,), (33,)),
    ((2, 3), (3,), (2, 3)),
    ((2, 1), (1, 2), (2, 2)),
    ((), (2,), (2,)),
)
"""Those of x0, x1 and y. What is summed down is two numbers, so that the order does not matter."""

elements = st.sampled_from((*(number / 8 for number in range(-24, 25)), np.nan, np.inf, -np.inf))


@st.composite
def arrays(draw: st.DrawFn) -> list[Any]:
    """x0, x1, y and dy: the shape of y is the joint one of x0 and x1."""
    first, second, joint = draw(st.sampled_from(BROADCAST))
    sizes = [(shape, int(np.prod(shape))) for shape in (first, second, joint, joint)]
    return [
        np.array(draw(st.lists(elements, min_size=n, max_size=n))).reshape(shape)
        for shape, n in sizes
    ]


many = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=draws(60), **many)
@given(numbers, arrays())
def test_exact_formulas(text: str, values: list[Any]) -> None:
    """Compare the three forms, in all dtypes, with one Session."""
    formula, examples = Formula.parse(text, {"slope": 0.25}), []
    for dtype in TOLERANCE:
        x0, x1, y, dy = (value.astype(dtype_named(dtype)) for value in values)
        examples.append(Example(formula, (x0, x1), y, dy, 0, (), {"alpha": 0.5}))
    check_in_a_session(examples)
    check_by_ops(examples)

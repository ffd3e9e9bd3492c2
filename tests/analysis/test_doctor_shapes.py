"""Which shapes TensorFlow infers on import, though the file does not tell them."""

from __future__ import annotations

from itertools import pairwise

from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.protos import AttrValue, TensorProto, TensorShapeProto
from tests import graphs
from tests.graphs import const, function, graphdef, main, node

F = {"T": "float32"}
LOOP = (
    node("x", "Placeholder", dtype="float32"),
    const("w"),
    node("enter", "Enter", "x", frame_name=b"f", is_constant=False, **F),
    node("fixed", "Enter", "w", frame_name=b"f", is_constant=True, **F),
    node("merge", "Merge", "enter", "next", N=2, **F),
    node("mul", "MatMul", "merge", "merge", **F),
    node("switch", "Switch", "merge", "cond", **F),
    node("cond", "LoopCond", "less"),
    node("less", "Less", "sum", "fixed", **F),
    node("axes", "Rank", "mul", **F),
    node("sum", "Tanh", "fixed", **F),
    node("next", "NextIteration", "sum", **F),
    node("stack", "StackPushV2", "h", "fixed", **F),
    node("h", "StackV2", elem_type="float32"),
    node("loose", "StackPushV2", "h", "mul", **F),
    node("flow", "TensorArrayWriteV3", "h", "axes", "mul", "fixed", **F),
)
KNOWN = {"w": True, "fixed": True, "enter": False, "merge": False, "merge:1": True, "sum": True,
         "next": True, "stack": True, "loose": False, "axes": True, "flow": True, "cond": True,
         "switch": False, "less": True, "mul": False}  # fmt: skip


def test_shapes_that_are_known() -> None:
    """Whichever is asked first: what comes round a loop is never known to its Merge."""
    wiring = Wiring(main(*LOOP))
    for names in (sorted(KNOWN), sorted(KNOWN, reverse=True)):
        shapes = Shapes(wiring)
        assert {name: shapes.is_known(wiring.tensor(name)) for name in names} == KNOWN


def test_what_a_function_gives_on_has_the_shape_of_the_argument() -> None:
    """As in the functions that carry our gradients."""
    kept, relu = node("k", "PreventGradient", "b", **F), node("r", "Relu", "a", **F)
    body = function("give", ["a", "b"], [kept, relu], {"p": "k:output:0", "q": "r:activations:0"})
    nodes = const("x", 8), const("y", 12), node("call", "give", "x", "y")
    graph = graphs.opened(graphdef(*nodes, functions=[body]))
    wiring = Wiring(graph.main)
    assert [Shapes(wiring).of((wiring.tensor("call")[0], n)) for n in range(2)] == [(3,), None]


def test_ranks_that_no_tensor_has_take_no_memory() -> None:
    """A chain in which each op adds an axis, and lists of 2 ** 40 numbers that would be shapes."""
    zero = TensorProto(dtype="DT_INT32", int_val=[0], tensor_shape=TensorShapeProto())
    axis = node("axis", "Const", dtype="int32", value=AttrValue(tensor=zero))
    chain = [node(f"e{k}", "ExpandDims", f"e{k - 1}" if k else "c", "axis") for k in range(5000)]
    wide = node("wide", "Placeholder", shape=AttrValue(shape={"dim": [{"size": 1 << 40}]}))
    readers = (
        node("fill", "Fill", "wide", "c"),
        node("turned", "Transpose", "c", "wide"),
        node("padded", "Pad", "any", "wide"),
        node("repeated", "Tile", "any", "wide"),
    )
    body = main(const("c"), axis, *chain, node("any", "Placeholder"), wide, *readers)
    wiring = Wiring(body)
    shapes = Shapes(wiring)
    assert len(shapes.of(wiring.tensor("e200")) or ()) == 202
    sizes = TensorProto(
        dtype="DT_INT32", int_val=[-(1 << 31)] * 2, tensor_shape={"dim": [{"size": 2}]}
    )
    below = node("below", "Const", dtype="int32", value=AttrValue(tensor=sizes))
    filled = Wiring(main(axis, below, node("filled", "Fill", "below", "axis")))
    assert Shapes(filled).of(filled.tensor("filled")) == (None, None)
    for name in ("e4999", "fill", "turned", "padded", "repeated"):
        assert len(shapes.of(wiring.tensor(name)) or ()) <= 1, name


def test_what_a_broken_graph_spells_is_not_known() -> None:
    ops = (
        node("s", "StridedSlice", "c", "c"),
        node("p", "Pack"),
        node("g", "GatherV2", "c"),
        node("t", "Transpose", "c", "c"),
        node("v", "SplitV", "c", "c", "c", num_split=2),
        node("m", "Conv2D", "c", "c", strides=[0]),
        node("n", "FusedBatchNormV3", "c"),
    )
    wiring = Wiring(main(const("c", 12), *ops))
    shapes = Shapes(wiring)
    found = {one.name: shapes.of(wiring.tensor(one.name)) for one in ops}
    known = {name: shape for name, shape in found.items() if shape is not None}
    assert known == {"n": (3,)}


def test_shapes_of_wide_and_of_flat_graphs_take_no_longer_by_the_square() -> None:
    """By what is read, counted: outputs of one If, handles behind a chain, sizes of a variable."""
    rank = AttrValue(shape={"dim": [{"size": 1}] * 5000})
    variable = node("v", "VarHandleOp", shape=rank, dtype="float32")
    names = ["v", *(f"i{k}" for k in range(400))]
    chain = [node(one, "Identity", before) for before, one in pairwise(names)]
    reads = [node(f"r{k}", "ReadVariableOp", f"i{k}", dtype="float32") for k in range(400)]
    wiring = Wiring(main(variable, *chain, *reads))
    shapes = Shapes(wiring)
    assert {shapes.of(wiring.tensor(one.name)) for one in reads} == {None}
    assert len(wiring.handle_origins) == 401
    branch = node("if", "If", "c", *["c"] * 300, Tout=["float32"] * 300)
    branch.attr["output_shapes"].list.shape.extend([TensorShapeProto(dim=[{"size": 7}])] * 300)
    wiring = Wiring(main(const("c"), branch))
    shapes = Shapes(wiring)
    assert [shapes.of((1, output)) for output in range(300)] == [(7,)] * 300
    assert len(shapes._shapes) == 300  # none of what it reads

"""Between which tensors a page leads where nobody named any."""

from __future__ import annotations

from typing import Any

import pytest

from graphpatch.analysis.interface import default_targets
from graphpatch.differentiation.wiring import Wiring
from graphpatch.page.ends import ends_of
from graphpatch.protos import AttrValue, TensorShapeProto
from tests.graphs import attr, graph_of, node

F, INTS, S = attr("float32"), attr("int64"), attr("string")
TYPES = attr([F, INTS])
NEXT = node("next", "IteratorGetNext", "it", output_types=TYPES)
IT = node("it", "IteratorFromStringHandle", "handle")
HANDLE = node("handle", "Placeholder", dtype=S)
X, FLAG = node("x", "Placeholder", dtype=F), node("flag", "Placeholder", dtype=attr("bool"))
RATE, IMAGE = (
    node(name, "Placeholder", dtype=F, shape=AttrValue(shape=TensorShapeProto(dim=dims)))
    for name, dims in (("rate", []), ("image", [TensorShapeProto.Dim(size=8)]))
)
WORDS = node("words", "Placeholder", dtype=INTS)
EMBEDDED = node("e", "GatherV2", "v", "words", "axis", Tparams=F, Tindices=INTS, Taxis=INTS)
SCORES = node("scores", "Softmax", "logits", T=F)
BEST = node("best", "ArgMax", "scores", "axis", T=F, output_type=INTS, Tidx=attr("int32"))
AXIS = node("axis", "Const", dtype=attr("int32"))

CASES: dict[str, tuple[list[Any], tuple[str, ...], tuple[str, ...]]] = {
    "what an iterator gives": (
        [HANDLE, IT, NEXT, node("y", "Relu", "next", T=F)], ("next:0",), ("y:0",)
    ),
    "the scores before an ArgMax": (
        [X, FLAG, node("logits", "Relu", "x", T=F), SCORES, AXIS, BEST], ("x:0",), ("scores:0",)
    ),
    "a rate and a flag after tensors": (
        [RATE, IMAGE, node("y", "Mul", "rate", "image", T=F)], ("image:0", "rate:0"), ("y:0",)
    ),
    "a loss before an accuracy, and no slot of an optimizer or second gradient": (
        [RATE, WORDS, EMBEDDED, node("v", "VariableV2", dtype=F), node("adam", "Identity", "v"),
         node("step", "Mul", "rate", "v", T=F), node("train/gradients_1/y_grad", "Exp", "e", T=F),
         node("kind", "ArgMax", "e", "axis", T=F, output_type=INTS, Tidx=attr("int32")), AXIS,
         node("accuracy", "Cast", "kind", SrcT=INTS, DstT=F),
         node("loss", "Tanh", "e", T=F), node("w", "ApplyGradientDescent", "v", "step", "e")],
        ("rate:0", "words:0"), ("loss:0", "accuracy:0")
    ),
    "no placeholder that nobody reads": (
        [X, node("given", "PlaceholderWithDefault", "x", dtype=F), node("y", "Relu", "x", T=F)],
        ("x:0", "given:0"), ("y:0",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ends_that_nobody_named(case: str) -> None:
    nodes, sources, targets = CASES[case]
    graph = graph_of(*nodes)
    found = ends_of(graph, Wiring(graph.main), (), ())
    assert (found.sources, found.targets) == (sources, targets)


def test_the_end_of_a_branch_is_no_output_beside_a_condition() -> None:
    graph = graph_of(
        FLAG, node("branch", "Switch", "flag", "flag", T=attr("bool")),
        node("taken", "Identity", "branch:1", T=attr("bool")), node("off", "LogicalNot", "flag"),
    )  # fmt: skip
    wiring = Wiring(graph.main)
    targets = default_targets(graph, wiring, every=False)
    assert list(map(wiring.spelled, targets)) == ["off:0"]


@pytest.mark.parametrize("is_read", [True, False])
def test_the_last_state_of_a_loop_is_an_output_where_nothing_else_of_it_is(is_read: bool) -> None:
    def state(name: str) -> list[Any]:
        return [
            node(f"{name}/Enter", "Enter", "x", T=F), node(f"{name}/Next", "NextIteration", name),
            node(name, "Merge", f"{name}/Enter", f"{name}/Next", T=F, N=2),
            node(f"{name}/Switch", "Switch", name, "goes_on", T=F),
            node(f"{name}/Exit", "Exit", f"{name}/Switch", T=F),
        ]  # fmt: skip

    last = [node("y", "Relu", "h/Exit", T=F)] if is_read else []
    graph = graph_of(X, *state("h"), *state("c"), node("goes_on", "LoopCond", "flag"), FLAG, *last)
    wiring = Wiring(graph.main)
    targets = list(map(wiring.spelled, default_targets(graph, wiring, every=False)))
    assert targets == (["y:0"] if is_read else ["h/Exit:0", "c/Exit:0"])


def test_an_exit_may_read_what_is_no_loop() -> None:
    graph = graph_of(X, node("end", "Exit", "x", T=F))
    assert default_targets(graph, Wiring(graph.main), every=False) == [(1, 0)]

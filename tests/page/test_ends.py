"""Between which tensors a page leads where nobody named any."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import graphpatch
from graphpatch.analysis.interface import default_targets
from graphpatch.differentiation.wiring import Wiring
from graphpatch.graph.graph import ModelGraph
from graphpatch.page.document import ends_of
from tests import graphs
from tests.graphs import attr, graphdef, node, steps
from tests.patches.one_op import net

X, FLAG = "x:Placeholder", "flag:Placeholder(dtype=bool)"
BEST = "axis:Const(dtype=int32) best:ArgMax({},axis,output_type=int64,Tidx=int32)"

# The graph, and between which tensors its page leads.
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "what an iterator gives": (
        "handle:Placeholder(dtype=string) it:IteratorFromStringHandle(handle)"
        " next:IteratorGetNext(it) y:Relu(next)", ("next:0",), ("y:0",)),
    "the scores before an ArgMax": (
        f"{X} {FLAG} logits:Relu(x) scores:Softmax(logits) {BEST.format('scores')}",
        ("x:0",), ("scores:0",)),
    "a rate and a flag after tensors": (
        "rate:Placeholder image:Placeholder y:Mul(rate,image)", ("image:0", "rate:0"), ("y:0",)),
    "a loss before an accuracy, and no slot of an optimizer or second gradient": (
        "rate:Placeholder words:Placeholder(dtype=int64) v:VariableV2 adam:Identity(v)"
        " e:GatherV2(v,words,axis,Tindices=int64,Taxis=int32) step:Mul(rate,v)"
        f" train/gradients_1/y_grad:Exp(e) {BEST.format('e')}"
        " accuracy:Cast(best,SrcT=int64,DstT=float32) loss:Tanh(e)"
        " w:ApplyGradientDescent(v,step,e)", ("words:0", "rate:0"), ("loss:0", "accuracy:0")),
    "no placeholder that nobody reads": (
        f"{X} given:PlaceholderWithDefault(x) y:Relu(x)", ("x:0", "given:0"), ("y:0",)),
}  # fmt: skip


def graph_of(text: str) -> ModelGraph:
    """The graph of a text: an image has one axis, a rate none; "next" gives two."""
    nodes = {op.name: op for op in net(text)}
    if "rate" in nodes:
        nodes["rate"].attr["shape"].shape.SetInParent()
    if "image" in nodes:
        nodes["image"].attr["shape"].shape.dim.add(size=8)
    if "next" in nodes:
        nodes["next"].attr["output_types"].CopyFrom(attr(["float32", "int64"]))
    return graphs.graph_of(*nodes.values())


def last_tensors(text: str) -> list[str]:
    graph = graph_of(text)
    wiring = Wiring(graph.main)
    return list(map(wiring.spelled, default_targets(graph, wiring, every=False)))


@pytest.mark.parametrize("case", CASES)
def test_ends_that_nobody_named(case: str) -> None:
    text, sources, targets = CASES[case]
    graph = graph_of(text)
    found = ends_of(graph, Wiring(graph.main), (), ())
    assert (found.sources, found.targets) == (sources, targets)


def test_the_end_of_a_branch_is_no_output_beside_a_condition() -> None:
    branch = "branch:Switch(flag,flag,T=bool) taken:Identity(branch:1,T=bool) off:LogicalNot(flag)"
    assert last_tensors(f"{FLAG} {branch}") == ["off:0"]


def test_the_last_state_of_a_loop_is_an_output_where_nothing_else_of_it_is() -> None:
    state = (
        "{0}/Enter:Enter(x) {0}/Next:NextIteration({0}) {0}:Merge({0}/Enter,{0}/Next,N=2)"
        " {0}/Switch:Switch({0},goes_on) {0}/Exit:Exit({0}/Switch)"
    )
    loop = f"{X} {state.format('h')} {state.format('c')} goes_on:LoopCond(flag) {FLAG}"
    assert last_tensors(loop) == ["h/Exit:0", "c/Exit:0"]
    assert last_tensors(f"{loop} y:Relu(h/Exit)") == ["y:0"]


def test_an_exit_may_read_what_is_no_loop() -> None:
    assert last_tensors(f"{X} end:Exit(x)") == ["end:0"]


def test_outputs_of_a_signature_stand_in_the_order_of_their_names(tmp_path: Path) -> None:
    """So the page of a model is the same each time: a map of protobuf has no order."""
    names = [f"y{number}" for number in range(8)]
    nodes = net(" ".join([X, *(f"{name}:Relu(x)" for name in names)]))
    meta = graphs.metagraph(graphs.graphdef(*nodes), "serve")
    for name in reversed(names):
        meta.signature_def["serve"].outputs[name].name = f"{name}:0"
    document = graphpatch.view(graphs.saved_model_folder(tmp_path, meta)).document()
    assert document["graphs"][0]["to"] == [f"{name}:0" for name in names]


def test_pairs_of_very_many_outputs_are_listed_in_linear_time() -> None:
    """Of each output all pairs were gone through: a node of 2 kB took a minute."""

    def shown(outputs: int) -> None:
        unpack = node("u", "Unpack", "x", num=outputs, T=attr("float32"))
        graphpatch.view(graphdef(node("x", "Placeholder", dtype=attr("float32")), unpack))

    assert steps(partial(shown, 800)) < 2.2 * steps(partial(shown, 400))


def test_an_op_that_is_called_like_a_control_input_reads_nothing_more() -> None:
    x, odd = node("x", "Placeholder", dtype=attr("float32")), node("^^x", "NoOp")
    graph = graphdef(x, odd, node("y", "Relu", "x", "^^x", T=attr("float32")))
    assert Wiring(graphpatch.load(graph).graphs[0].main).inputs(2) == [(0, 0)]
    assert "graphs" in graphpatch.view(graph).document()


def test_what_reads_other_outputs_of_a_source_is_not_between_the_ends() -> None:
    """It was shown as an op at which the gradient ends."""
    axis = "axis:Const(dtype=int32) x:Placeholder s:Split(axis,x,num_split=2)"
    split = graphdef(*net(f"{axis} y:Relu(s) z:Tanh(s:1) w:Add(y,z)"))
    document = graphpatch.view(split, sources="s:0", targets="w:0").document()
    assert document["bodies"][0]["names"] == ["w", "y", "s"]

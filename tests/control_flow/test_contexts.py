"""Where the ops of v1 loops and branches are; what cannot be rebuilt is told, with the op."""

from __future__ import annotations

import time

import pytest

from graphpatch.control_flow.contexts import Loop, control_flow
from graphpatch.control_flow.rebuilt import DEEPEST_CONTEXT, with_contexts
from graphpatch.errors import ModelError
from graphpatch.graph.graph import Graph
from graphpatch.protos import MetaGraphDef, NodeDef, WhileContextDef
from tests.graphs import graphdef, node, opened


def op(name: str, kind: str, *inputs: str, frame: str = "") -> NodeDef:
    made = node(name, kind, *inputs)
    if frame:
        made.attr["frame_name"].s = frame.encode()
    return made


def loop(scope: str, start: str) -> list[NodeDef]:
    """A loop of one variable that begins as `start`; its Exit was pruned."""
    return [
        op(f"{scope}/Enter", "Enter", start, frame=f"{scope}/context"),
        op(f"{scope}/Merge", "Merge", f"{scope}/Enter", f"{scope}/NextIteration"),
        op(f"{scope}/Sign", "Sign", f"{scope}/Merge"),
        op(f"{scope}/LoopCond", "LoopCond", f"{scope}/Sign"),
        op(f"{scope}/Switch", "Switch", f"{scope}/Merge", f"{scope}/LoopCond"),
        op(f"{scope}/Identity", "Identity", f"{scope}/Switch:1"),
        op(f"{scope}/NextIteration", "NextIteration", f"{scope}/Identity"),
    ]


X = op("x", "Placeholder")
BROKEN: dict[str, tuple[list[NodeDef], str]] = {
    "two loops at once": (
        [X, *loop("a", "x"), *loop("b", "x"), op("y", "Add", "a/Identity", "b/Identity")],
        r"Add 'y' reads from the v1 loops '\w/context' and '\w/context' at once; an Exit must",
    ),
    "no LoopCond": (
        [X, *[one for one in loop("a", "x") if one.op not in {"LoopCond", "Switch", "Identity"}]],
        r"the v1 loop 'a/context' has no LoopConds, and must have one \(its first Enter is 'a/Ent",
    ),
    "each in the other": (
        [
            *(X, *loop("a", "x"), op("a/E", "Enter", "b/Identity", frame="a/context")),
            *(*loop("b", "x"), op("b/E", "Enter", "a/Identity", frame="b/context")),
        ],
        "the v1 loops 'a/context' and 'b/context' lie in each other, and one must be around",
    ),
    "no frame": ([X, op("a", "Enter", "x")], r"Enter 'a' names no frame \(attr frame_name\)"),
    "both branches at once": (
        [
            *(X, op("p", "Placeholder"), op("f", "Switch", "x", "p"), op("t", "Switch", "x", "p")),
            *(op("y", "Add", "f", "t:1"),),
        ],
        r"Add 'y' reads what is there if 'p' is False and what is there if 'p' is True, of which",
    ),
    "branches the other way round": (
        [
            *(X, op("p", "Placeholder"), op("f", "Switch", "x", "p"), op("t", "Switch", "x", "p")),
            *(op("y", "Merge", "t:1", "f"),),
        ],
        r"Merge 'y' has what is there if 'p' is True as its first input",
    ),
    "branches of two predicates": (
        [
            *(X, op("p", "Placeholder"), op("q", "Placeholder"), op("f", "Switch", "x", "p")),
            *(op("t", "Switch", "x", "q"), op("y", "Merge", "f", "t:1")),
        ],
        r"Merge 'y' joins what is there if 'p' is False and what is there if 'q' is True; it must",
    ),
    "an Enter that reads nothing": (
        [op("a", "Enter", frame="a")],
        r"Enter 'a' must read a tensor, and reads none",
    ),
    "a loop without a Switch": (
        [X, *[one for one in loop("a", "x") if one.op not in {"Switch", "Identity"}]],
        r"the v1 loop 'a/context' has no Switch that reads a Merge",
    ),
    "a Switch without a predicate": (
        [X, op("s", "Switch", "x"), op("y", "Relu", "s:1")],
        r"Switch 's' must read two tensors, and reads 1",
    ),
    "a circle": (
        [
            *(X, op("a", "Enter", "x", frame="a"), op("m", "Merge", "a", "i")),
            *(op("c", "LoopCond", "m"), op("s", "Switch", "m", "c"), op("i", "Identity", "s:1")),
        ],
        r"'.' lies on a circle that no NextIteration closes",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_rebuilt_is_told(case: str) -> None:
    nodes, message = BROKEN[case]
    with pytest.raises(ModelError, match=f"contexts cannot be rebuilt: .*{message}"):
        with_contexts(opened(graphdef(*nodes)))


def test_a_predicate_on_a_circle_has_an_end() -> None:
    switched = (op("s", "Switch", "x", "p"), op("y", "Relu", "s"), op("z", "Relu", "s:1"))
    circle = (op("p", "Identity", "q"), op("q", "Identity", "p"))
    found = control_flow(opened(graphdef(X, *circle, *switched)).main)
    assert [cond.pred for cond in found.shared.values()] == ["p"]


def test_loops_that_share_a_frame_are_told() -> None:
    nodes = [X, *loop("a", "x"), *loop("b", "x")]
    for one in nodes:
        if one.op == "Enter":
            one.attr["frame_name"].s = b"same"
    with pytest.raises(ModelError, match=r"'same' has 2 LoopConds, and must have one"):
        with_contexts(opened(graphdef(*nodes)))


def test_a_graph_without_control_flow_is_left_as_it_is() -> None:
    graph = opened(graphdef(X, op("y", "Relu", "x")))
    assert with_contexts(graph) == (graph, b"")


def test_a_pruned_exit_is_added_by_the_name_it_had() -> None:
    before = opened(graphdef(X, *loop("a", "x")))
    after, fields = with_contexts(before)
    assert [one.name for one in after.main if one.op == "Exit"] == ["a/Exit"]
    assert b"a/Exit:0" in fields
    assert "a/Exit" not in before.main.by_name


def test_where_each_op_is() -> None:
    outer = loop("a", "x")
    inner = loop("b", "a/Identity")
    found = control_flow(opened(graphdef(X, *outer, *inner, op("y", "Exit", "b/Switch"))).main)
    names = found.body.heads.names
    where = {names[i]: one.name for i, one in found.of.items() if isinstance(one, Loop)}
    assert where == {one.name: f"{one.name[0]}/context" for one in (*outer, *inner)} | {
        "y": "b/context"
    }
    assert found.loops["b/context"].outer is found.loops["a/context"]


def chain(count: int) -> Graph:
    """Loops one behind the other, each with a branch behind it."""
    nodes, last = [X, op("p", "Placeholder")], "x"
    for number in range(count):
        scope = f"l{number}"
        nodes += [*loop(scope, last), op(f"{scope}/Exit", "Exit", f"{scope}/Switch")]
        nodes += [
            op(f"{scope}/f", "Switch", f"{scope}/Exit", "p"),
            op(f"{scope}/t", "Switch", f"{scope}/Exit", "p"),
            op(f"{scope}/y", "Merge", f"{scope}/f", f"{scope}/t:1"),
        ]
        last = f"{scope}/y"
    return opened(graphdef(*nodes))


@pytest.mark.slow
def test_the_time_is_linear() -> None:
    def seconds(count: int) -> float:
        graph, times = chain(count), []
        for _ in range(3):
            start = time.process_time()
            with_contexts(graph)
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(8_000) < 8 * seconds(2_000)


def nested_loops(depth: int) -> Graph:
    """Loops of one variable, each in the one before."""
    nodes, reads = [node("x", "Placeholder")], "x"
    for number in range(depth):
        inner = f"{number + 1}/Exit" if number + 1 < depth else f"{number}/Identity"
        one = [made for made in loop(str(number), reads) if made.op != "NextIteration"]
        nodes += [*one, op(f"{number}/NextIteration", "NextIteration", inner)]
        nodes.append(op(f"{number}/Exit", "Exit", f"{number}/Switch"))
        reads = f"{number}/Identity"
    return opened(graphdef(*nodes))


def test_contexts_are_nested_as_deep_as_protobuf_reads_them() -> None:
    _, written = with_contexts(nested_loops(DEEPEST_CONTEXT))
    collections = MetaGraphDef.FromString(written).collection_def
    [raw] = collections["while_context"].bytes_list.value
    read = WhileContextDef.FromString(raw)
    assert read.SerializeToString() == raw


@pytest.mark.parametrize("depth", [DEEPEST_CONTEXT + 1, 1_500])
def test_contexts_that_protobuf_could_not_read_are_refused(depth: int) -> None:
    with pytest.raises(ModelError, match="nested more than 50 deep, and TensorFlow could not read"):
        with_contexts(nested_loops(depth))


def test_branches_in_each_other_take_linear_time() -> None:
    """Each op asked for all branches around it: 3,000 took 20 s."""
    depth, nodes, reads = 3_000, [X, node("p", "Placeholder", dtype="bool")], "x"
    for number in range(depth):
        nodes.append(op(f"s{number}", "Switch", reads, "p"))
        reads = f"s{number}:1"
    for number in reversed(range(depth)):
        nodes.append(op(f"m{number}", "Merge", f"s{number}", reads))
        reads = f"m{number}"
    main = opened(graphdef(*nodes)).main
    before = time.process_time()
    found = control_flow(main)
    assert time.process_time() - before < 2
    inner = {main.by_name[f"{kind}{number}"] for kind in "sm" for number in range(1, depth)}
    assert found.of.keys() == inner


@pytest.mark.parametrize("fed", [[], ["c"]], ids=["of nothing", "of a constant"])
def test_a_next_iteration_behind_no_enter(fed: list[str]) -> None:
    """No loop of TensorFlow's; what lies behind the Switch is in a branch all the same."""
    graph = opened(graphdef(
        *(X, op("c", "Const"), op("m", "Merge", "x", "n"), op("n", "NextIteration", *fed)),
        *(op("p", "IsFinite", "m"), op("s", "Switch", "m", "p"), op("y", "Relu", "s:1")),
    ))  # fmt: skip
    found = control_flow(graph.main)
    assert {graph.main.heads.names[index] for index in found.of} == {"s", "y"}


def test_a_merge_that_gets_its_value_from_outside() -> None:
    """A NextIteration that lies behind no Enter gives a Merge behind one its next value."""
    given = [
        op("a/NextIteration", "NextIteration", "c") if one.op == "NextIteration" else one
        for one in loop("a", "x")
    ]
    graph = opened(graphdef(X, op("c", "Const"), *given))
    found = control_flow(graph.main)
    names = {graph.main.heads.names[index] for index in found.of}
    assert names >= {"a/Enter", "a/Merge", "a/Switch"}

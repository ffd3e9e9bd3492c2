"""Where the ops of v1 loops and branches are; what cannot be rebuilt is told, with the op."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

from graphpatch.control_flow.contexts import Loop, control_flow
from graphpatch.control_flow.rebuilt import DEEPEST_CONTEXT, with_contexts
from graphpatch.errors import ModelError
from graphpatch.graph.graph import Graph
from graphpatch.protos import MetaGraphDef, WhileContextDef
from tests.graphs import graph_of, node
from tests.patches.one_op import net


def loop(scope: str, start: str, *without: str, gives: str = "") -> str:
    """A loop of one variable that begins as `start`; its Exit was pruned, as types `without`."""
    ops = (
        f"Enter({start}, frame_name={scope}/context)",
        f"Merge({scope}/Enter, {scope}/NextIteration)",
        f"Sign({scope}/Merge)",
        f"LoopCond({scope}/Sign)",
        f"Switch({scope}/Merge, {scope}/LoopCond)",
        f"Identity({scope}/Switch:1)",
        f"NextIteration({gives or f'{scope}/Identity'})",
    )
    types = [one.partition("(")[0] for one in ops]
    made = zip(types, ops, strict=True)
    return " ".join(f"{scope}/{op}:{text}" for op, text in made if op not in without)


def graph(text: str) -> Graph:
    return graph_of(*net(f"x:Placeholder {text}"))


A, B = loop("a", "x"), loop("b", "x")
BRANCHES = "p:Placeholder f:Switch(x, p) t:Switch(x, p)"
BROKEN: dict[str, tuple[str, str]] = {
    "two loops at once": (f"{A} {B} y:Add(a/Identity, b/Identity)",
        r"Add 'y' reads from the v1 loops '\w/context' and '\w/context' at once; an Exit must"),
    "no LoopCond": (loop("a", "x", "LoopCond", "Switch", "Identity"),
        r"the v1 loop 'a/context' has no LoopConds, and must have one \(its first Enter is 'a/Ent"),
    "loops that share a frame": (
        f"{A} {B}".replace("/context", "same").replace("=a", "=").replace("=b", "="),
        r"'same' has 2 LoopConds, and must have one"),
    "each in the other": (f"{A} a/E:Enter(b/Identity, frame_name=a/context) {B}"
        " b/E:Enter(a/Identity, frame_name=b/context)",
        "the v1 loops 'a/context' and 'b/context' lie in each other, and one must be around"),
    "no frame": ("a:Enter(x)", r"Enter 'a' names no frame \(attr frame_name\)"),
    "both branches at once": (f"{BRANCHES} y:Add(f, t:1)",
        r"Add 'y' reads what is there if 'p' is False and what is there if 'p' is True, of which"),
    "branches the other way round": (f"{BRANCHES} y:Merge(t:1, f)",
        r"Merge 'y' has what is there if 'p' is True as its first input"),
    "branches of two predicates": (
        "p:Placeholder q:Placeholder f:Switch(x, p) t:Switch(x, q) y:Merge(f, t:1)",
        r"Merge 'y' joins what is there if 'p' is False and what is there if 'q' is True; it must"),
    "an Enter that reads nothing": (
        "a:Enter(frame_name=a)", r"Enter 'a' must read a tensor, and reads none"),
    "a loop without a Switch": (loop("a", "x", "Switch", "Identity"),
        r"the v1 loop 'a/context' has no Switch that reads a Merge"),
    "a Switch without a predicate": (
        "s:Switch(x) y:Relu(s:1)", r"Switch 's' must read two tensors, and reads 1"),
    "a circle": (
        "a:Enter(x, frame_name=a) m:Merge(a, i) c:LoopCond(m) s:Switch(m, c) i:Identity(s:1)",
        r"'.' lies on a circle that no NextIteration closes"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_rebuilt_is_told(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=f"contexts cannot be rebuilt: .*{message}"):
        with_contexts(graph(text))


def test_a_predicate_on_a_circle_has_an_end() -> None:
    found = control_flow(
        graph("p:Identity(q) q:Identity(p) s:Switch(x, p) y:Relu(s) z:Relu(s:1)").main
    )
    assert [cond.pred for cond in found.shared.values()] == ["p"]


def test_a_graph_without_control_flow_is_left_as_it_is() -> None:
    plain = graph("y:Relu(x)")
    assert with_contexts(plain) == (plain, b"")


def test_a_pruned_exit_is_added_by_the_name_it_had() -> None:
    before = graph(A)
    after, fields = with_contexts(before)
    assert [one.name for one in after.main if one.op == "Exit"] == ["a/Exit"]
    assert b"a/Exit:0" in fields
    assert "a/Exit" not in before.main.by_name


def test_where_each_op_is() -> None:
    found = control_flow(graph(f"{A} {loop('b', 'a/Identity')} y:Exit(b/Switch)").main)
    names = found.body.heads.names
    where = {names[i]: one.name for i, one in found.of.items() if isinstance(one, Loop)}
    inside = {name: f"{name[0]}/context" for name in names if "/" in name}
    assert where == inside | {"y": "b/context"}
    assert found.loops["b/context"].outer is found.loops["a/context"]


def calls(work: Callable[[], object]) -> int:
    """How many functions run."""
    with cProfile.Profile() as profile:
        work()
    return sum(entry.callcount for entry in profile.getstats())


def chain(count: int) -> Graph:
    """Loops one behind the other, each with a branch behind it."""
    texts, last = ["p:Placeholder"], "x"
    for scope in (f"l{number}" for number in range(count)):
        texts += [loop(scope, last), f"{scope}/Exit:Exit({scope}/Switch)"]
        texts += [f"{scope}/{end}:Switch({scope}/Exit, p)" for end in "ft"]
        texts.append(f"{scope}/y:Merge({scope}/f, {scope}/t:1)")
        last = f"{scope}/y"
    return graph(" ".join(texts))


def nested_branches(depth: int) -> Graph:
    """Each op asked for all branches around it: 3,000 took 20 s."""
    reads = ["x", *(f"s{number}:1" for number in range(depth))]
    nodes = [node(f"s{number}", "Switch", reads[number], "p") for number in range(depth)]
    last = reads[-1]
    for number in reversed(range(depth)):
        nodes.append(node(f"m{number}", "Merge", f"s{number}", last))
        last = f"m{number}"
    return graph_of(*net("x:Placeholder p:Placeholder(dtype=bool)"), *nodes)


@pytest.mark.parametrize("build", [chain, nested_branches])
def test_the_work_is_linear(build: Callable[[int], Graph]) -> None:
    few, many = (build(count) for count in (50, 200))
    assert calls(lambda: control_flow(many.main)) < 5 * calls(lambda: control_flow(few.main))
    if build is chain:  # of branches in each other, the contexts tell all that are around
        assert calls(lambda: with_contexts(many)) < 5 * calls(lambda: with_contexts(few))


def test_branches_in_each_other() -> None:
    main = nested_branches(20).main
    inner = {main.by_name[f"{kind}{number}"] for kind in "sm" for number in range(1, 20)}
    assert control_flow(main).of.keys() == inner


def nested_loops(depth: int) -> Graph:
    """Loops of one variable, each in the one before."""
    texts, reads = [], "x"
    for number in range(depth):
        scope = f"l{number}"
        inner = f"l{number + 1}/Exit" if number + 1 < depth else ""
        texts += [loop(scope, reads, gives=inner), f"{scope}/Exit:Exit({scope}/Switch)"]
        reads = f"{scope}/Identity"
    return graph(" ".join(texts))


def test_contexts_are_nested_as_deep_as_protobuf_reads_them() -> None:
    _, written = with_contexts(nested_loops(DEEPEST_CONTEXT))
    collections = MetaGraphDef.FromString(written).collection_def
    [raw] = collections["while_context"].bytes_list.value
    assert WhileContextDef.FromString(raw).SerializeToString() == raw


@pytest.mark.parametrize("depth", [DEEPEST_CONTEXT + 1, 1_500])
def test_contexts_that_protobuf_could_not_read_are_refused(depth: int) -> None:
    with pytest.raises(ModelError, match="nested more than 50 deep, and TensorFlow could not read"):
        with_contexts(nested_loops(depth))


@pytest.mark.parametrize("fed", ["", "c"], ids=["of nothing", "of a constant"])
def test_a_next_iteration_behind_no_enter(fed: str) -> None:
    """No loop of TensorFlow's; what lies behind the Switch is in a branch all the same."""
    text = f"c:Const m:Merge(x, n) n:NextIteration({fed}) p:IsFinite(m) s:Switch(m, p) y:Relu(s:1)"
    main = graph(text).main
    assert {main.heads.names[index] for index in control_flow(main).of} == {"s", "y"}


def test_a_merge_that_gets_its_value_from_outside() -> None:
    """A NextIteration that lies behind no Enter gives a Merge behind one its next value."""
    main = graph(f"c:Const {loop('a', 'x', gives='c')}").main
    names = {main.heads.names[index] for index in control_flow(main).of}
    assert names >= {"a/Enter", "a/Merge", "a/Switch"}

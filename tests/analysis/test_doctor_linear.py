"""What `doctor` does grows with the graph, not with its square: counted in calls of functions."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

import graphpatch
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis
from graphpatch.analysis.doctor.survey import survey
from graphpatch.protos import GraphDef, NodeDef
from tests.graphs import function, graphdef, node

X = node("x", "Placeholder", dtype="float32")
GUIDED = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
F = {"T": "float32"}


def chain(count: int, *ops: str) -> GraphDef:
    """`r0`, `r1`, ... one behind the other, of these op types in turn; the last is `y`."""
    names = [*(f"r{k}" for k in range(count - 1)), "y"]
    reads = ["x", *names]
    return graphdef(
        X, *(node(name, ops[k % len(ops)], reads[k], **F) for k, name in enumerate(names))
    )


def wide(count: int) -> GraphDef:
    """So many Relus that all read one tensor."""
    return graphdef(X, *(node(f"r{k}", "Relu", "x", **F) for k in range(count)))


def nested_branches(depth: int) -> GraphDef:
    """An If in an If and so on, both branches of each in one function, each with a Relu."""

    def branch(body: str, condition: str, value: str) -> NodeDef:
        tensors = {"Tcond": "bool", "Tin": ["bool", "float32"], "Tout": ["float32"]}
        made = node("y", "If", condition, condition, value, **tensors)
        for key in ("then_branch", "else_branch"):
            made.attr[key].func.name = body
        return made

    functions = []
    for place in range(depth):
        is_last = place + 1 == depth
        deeper = [] if is_last else [branch(f"f{place + 1}", "p", "r:activations:0")]
        ret = {"o": "r:activations:0" if is_last else "y:output:0"}
        functions.append(function(f"f{place}", ["p", "a"], [node("r", "Relu", "a"), *deeper], ret))
        functions[-1].signature.input_arg[0].type = 10
    condition = node("b", "Placeholder", dtype="bool")
    return graphdef(condition, X, branch("f0", "b", "x"), functions=functions)


def many_outputs(count: int) -> GraphDef:
    """A function of so many outputs, and who reads each."""
    body = [node(f"r{k}", "Relu", "a") for k in range(count)]
    inner = function("f", ["a"], body, {f"b{k}": f"r{k}:activations:0" for k in range(count)})
    readers = [node(f"o{k}", "Relu", f"y:{k}") for k in range(count)]
    return graphdef(X, node("y", "f", "x"), *readers, functions=[inner])


def asked(model: graphpatch.Model, *targets: str) -> list[PairDiagnosis]:
    [seen] = survey(model, ["x"], targets)
    return list(seen.diagnoses)


def calls(work: Callable[[], object]) -> int:
    """How many functions of Python run."""
    with cProfile.Profile() as profile:
        work()
    return sum(entry.callcount for entry in profile.getstats())


def of_y(model: graphpatch.Model) -> object:
    return asked(model, "y")


Work = Callable[[graphpatch.Model], object]
GRAPHS: dict[str, tuple[Callable[[int], GraphDef], int, Work, bool]] = {
    "a chain": (lambda count: chain(count, "Relu"), 50, of_y, False),
    "a patched chain": (lambda count: chain(count, "Relu"), 50, of_y, True),
    "each other op blocks": (lambda count: chain(count, "Round", "Relu"), 50, of_y, False),
    "many outputs of one input": (wide, 100, asked, False),
    "called twice each": (nested_branches, 10, of_y, True),
    "a function of many outputs": (many_outputs, 260, of_y, False),  # from 256 on they are kept
}


@pytest.mark.parametrize("case", GRAPHS)
def test_four_times_the_graph_is_little_more_than_four_times_the_work(case: str) -> None:
    build, count, work, is_patched = GRAPHS[case]

    def counted(size: int) -> int:
        model = graphpatch.load(build(size))
        model = graphpatch.apply([GUIDED], model).model if is_patched else model
        return calls(lambda: work(model))

    counted(2)  # tables are read
    assert counted(4 * count) < 5 * counted(count)


def test_what_is_found_in_large_graphs() -> None:
    assert [pair.verdict for pair in asked(graphpatch.load(wide(400)))] == ["flows"] * 400
    [pair] = asked(graphpatch.load(chain(400, "Round", "Relu")), "y")
    assert len(pair.findings) == 200
    model = graphpatch.apply([GUIDED], graphpatch.load(nested_branches(100))).model
    [pair] = asked(model, "y")  # 2 ** 100 paths lead through them
    assert [finding.kind for finding in pair.findings] == ["carried"]


@pytest.mark.parametrize("named", [(), ("x0",)], ids=["none named", "a source named"])
def test_of_very_many_pairs_some_are_looked_at(
    named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the graph is large go by: each visits much of it."""
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.MOST_VISITED", 50_000)
    count = 300
    sources = [node(f"x{k}", "Placeholder", dtype="float32") for k in range(count)]
    total = node("sum", "AddN", *[f"x{k}" for k in range(count)], N=count, T="float32")
    heads = [node(f"r{k}", "Relu", "sum", T="float32") for k in range(count)]
    [seen] = survey(graphpatch.load(graphdef(*sources, total, *heads)), named)
    assert 20 <= len(seen.diagnoses) < count
    [note] = seen.notes
    pairs = count * (1 if named else count) - len(seen.diagnoses)
    assert note.kind == "left_out"
    assert note.says.startswith(f"{pairs:,} more pairs were not looked at")
    assert "r299:0" in note.ops


def test_named_pairs_are_all_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.PAIRS_AT_LEAST", 1)
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.MOST_VISITED", 0)
    y = node("y", "Placeholder", dtype="float32")
    model = graphpatch.load(graphdef(X, y, node("s", "Add", "x", "y"), node("r", "Relu", "s")))
    for ends, count in (((), 1), (("x", "y"), 4)):
        [seen] = survey(model, ends, ("s", "r") if ends else ())
        assert (len(seen.diagnoses), len(seen.notes)) == (count, int(not ends))


def test_pairs_for_which_hardly_an_op_is_visited_are_looked_at() -> None:
    """30 models side by side in one: 900 pairs, of which 30 are connected."""
    fed = [node(f"x{k}", "Placeholder", dtype="float32") for k in range(30)]
    relus = [node(f"r{k}", "Relu", f"x{k}") for k in range(30)]
    [seen] = survey(graphpatch.load(graphdef(*fed, *relus)))
    assert (len(seen.diagnoses), seen.notes) == (900, [])
    assert [pair.connected for pair in seen.diagnoses].count(True) == 30
    assert [pair.target for pair in seen.diagnoses[:31]] == ["r0:0"] * 30 + ["r1:0"]

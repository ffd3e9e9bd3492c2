"""The document of a page: lines, what flows, findings, rules, functions and loops, as data."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.differentiation.flow import gives
from graphpatch.errors import ModelError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.interpreter import gradient, op_output
from graphpatch.gradients.op_gradients import OP_GRADIENTS
from graphpatch.page.curves import DEFAULTS, plot
from graphpatch.page.events import TAG, write_events
from graphpatch.page.gradient_sizes import pictures
from graphpatch.page.view import as_script, page
from graphpatch.protos import Event, GraphDef
from graphpatch.recipes import recipe_rules
from tests import graphs
from tests.patches.one_op import net

ROOT = Path(__file__).parent.parent.parent
DIGITS, GUIDED = ROOT / "scripts/models/digits.pb", ROOT / "scripts/models/guided.json"
NONE, ZERO, FULL, CHANGED, BLOCKED, ERROR = range(1, 7)


@pytest.fixture(scope="module")
def both() -> dict[str, Any]:
    return graphpatch.view(DIGITS, rules=GUIDED, sources="image", targets="logits").document()


def flows(document: dict[str, Any], side: int, name: str, body: int = 0) -> int:
    found = document["bodies"][body]
    flow: int = found["sides"][side]["flow"][found["names"].index(name)]
    return flow


def test_what_flows_before_and_after(both: dict[str, Any]) -> None:
    expected = {
        "logits": (FULL, FULL),
        "dense/relu": (FULL, CHANGED),
        "block1/relu": (FULL, CHANGED),
        "quantize/Round": (BLOCKED, CHANGED),
        "quantize/mul": (NONE, CHANGED),
        "image": (NONE, CHANGED),
        "dropout/GreaterEqual": (NONE, NONE),
    }
    for name, (before, after) in expected.items():
        if name in both["bodies"][0]["names"]:
            assert (flows(both, 0, name), flows(both, 1, name)) == (before, after), name


def test_each_edge_is_that_of_the_graph(both: dict[str, Any]) -> None:
    """Each line reads the lines that its op reads, on both sides alike."""
    body, main = both["bodies"][0], graphpatch.load(DIGITS).graphs[0].main
    names = body["names"]
    for side in body["sides"]:
        for row, edges in enumerate(side["edges"]):
            read = {names[row] for row in edges[::2]}
            inputs = {text.partition(":")[0] for text in main.node(names[row]).inputs}
            assert read == inputs & set(names)


def test_doctors_words_are_at_the_line(both: dict[str, Any]) -> None:
    body = both["bodies"][0]
    (finding,) = body["findings"][body["names"].index("quantize/Round")]
    told = both["tables"]["findings"][finding]
    assert told["on_path"]
    assert told["rule"]["patch"] == {"straight_through": True}
    (graph,) = both["graphs"]
    assert [side["verdict"] for side in graph["pairs"][0]["sides"]] == ["none", "flows"]
    assert [(end["name"], end["tensor"]) for end in graph["inputs"]] == [
        ("image:0", "float32 [?, 8, 8, 1]"),
        ("dropout_rate:0", "float32 []"),
    ]
    assert [end["name"] for end in graph["outputs"]] == ["logits:0"]


def test_a_shape_is_what_either_side_knows(both: dict[str, Any]) -> None:
    """A rule's nodes may hide a shape that the model has, and a model may be given shapes."""

    def said(document: dict[str, Any]) -> dict[str, str]:
        texts, body = document["tables"]["tensors"], document["bodies"][0]
        return {name: texts[n] for name, n in zip(body["names"], body["tensors"], strict=True)}

    before = said(graphpatch.view(DIGITS, sources="image", targets="logits").document())
    assert "[" in before["block1/pool"]
    now = said(both)
    assert {name: now[name] for name in before} == before


def test_rules_are_at_their_ops(both: dict[str, Any]) -> None:
    body, rules = both["bodies"][0], both["rules"]
    marked = {
        rules[number]["name"]: [
            body["names"][row] for row in body["marks"] if number in body["marks"][row]
        ]
        for number in range(len(rules))
    }
    assert sorted(marked["guided backprop"]) == ["block1/relu", "block2/relu", "dense/relu"]
    assert [rule["ops"] for rule in rules] == [1, 3, 1]
    kinds = [kind for kind, _ in body["carried"][body["names"].index("dense/relu")]]
    assert "StopGradient" in kinds
    assert any(kind.startswith("graphpatch_guided_relu") for kind in kinds)


def test_where_a_tape_alone_ends_is_no_end_of_a_session(tmp_path: Path) -> None:
    """The gradient ends at the Round; through the ReLUs, whose functions a tape drops, it flows."""
    guided = ROOT / "docs/examples/guided.json"
    graphpatch.apply(guided, DIGITS).save(tmp_path / "patched.pb")
    patched = graphpatch.load(tmp_path / "patched.pb")
    document = graphpatch.view(patched, sources="image", targets="logits").document()
    body, (pair,) = document["bodies"][0], document["graphs"][0]["pairs"]
    assert (flows(document, 0, "dense/relu"), flows(document, 1, "dense/relu")) == (FULL, CHANGED)
    assert [body["names"][int(row)] for row in body["findings"]] == ["quantize/Round"]
    assert [one["op"] for one in pair["sides"][1]["findings"]] == ["quantize/Round"]


def test_a_patched_model_stands_beside_its_original(both: dict[str, Any], tmp_path: Path) -> None:
    graphpatch.apply(GUIDED, DIGITS).save(tmp_path / "patched.pb")
    alone = graphpatch.view(tmp_path / "patched.pb", sources="image", targets="logits").document()
    for key in ("names", "sides", "marks"):
        assert alone["bodies"][0][key] == both["bodies"][0][key], key


def titles(page: graphpatch.View) -> list[str]:
    return [one["title"] for one in page.document()["models"]]


def test_each_model_has_a_title(tmp_path: Path) -> None:
    for name in ("a/m.pb", "b/m.pb"):
        (tmp_path / name).parent.mkdir()
        graphpatch.apply(GUIDED, DIGITS).save(tmp_path / name)
    alone = graphpatch.view(tmp_path / "a/m.pb")
    assert titles(alone) == ["m.pb without rules", "with 3 rules"]
    assert "<title>m.pb without rules → with 3 rules: what flows back" in alone.html
    assert repr(alone) == "<View: m.pb without rules -> with 3 rules, 26 lines>"
    assert titles(graphpatch.view(DIGITS)) == ["digits.pb"]
    dry = graphpatch.view(DIGITS, rules=GUIDED)
    assert titles(dry) == ["digits.pb without rules", "with 3 rules"]
    assert titles(graphpatch.view(DIGITS, DIGITS)) == ["digits.pb (1)", "(2)"]
    assert titles(graphpatch.view(DIGITS, tmp_path / "a/m.pb")) == ["digits.pb", "m.pb"]
    two = graphpatch.view(tmp_path / "a/m.pb", tmp_path / "b/m.pb")
    assert titles(two) == ["a/m.pb", "b/m.pb"]


def test_rules_of_a_recipe_that_are_at_no_op_are_left_out() -> None:
    recipe = "@guided_backprop"
    rare = {"name": "rare", "match": {"op": "Cos"}, "patch": {"stop_gradient": True}}
    rules = [rule | {"expect": {"min": 0}} for rule in (*recipe_rules(recipe)["rules"], rare)]
    dry = graphpatch.view(DIGITS, rules=rules)
    assert titles(dry) == ["digits.pb without rules", "with 2 rules"]
    for viewed in (dry, graphpatch.view(graphpatch.apply(rules, DIGITS))):
        document = viewed.document()
        assert [rule["name"] for rule in document["rules"]] == [recipe, "rare"]
        marks = [marked for body in document["bodies"] for marked in body["marks"].values()]
        assert marks == [[0], [0], [0]]


def test_a_pattern_is_marked() -> None:
    found = graphpatch.view(DIGITS, rules={"pattern": "FusedBatchNormV3 -> Relu|Relu6"}).document()
    body = found["bodies"][0]
    assert {body["names"][row] for row in body["marks"]} == {"block2/relu", "block1/relu"}
    assert CHANGED not in body["sides"][0]["flow"]


def drawn(text: str, functions: Any = (), **options: Any) -> dict[str, Any]:
    """The document of a graph that is written as text."""
    graph = graphs.graphdef(*net(text), functions=functions)
    return graphpatch.view(graph, **options).document()


def test_zero_and_error_and_full() -> None:
    text = "x:Placeholder sign:Sign(x) bad:PreventGradient(x) y:AddV2(sign,bad)"
    found = drawn(text, sources="x", targets="y")
    assert [flows(found, 0, name) for name in ("sign", "bad", "y")] == [ZERO, ERROR, FULL]


def test_nothing_flows_on_from_an_op_that_raises() -> None:
    """A string is fed, as in speech commands; the loop below its Exit has no context."""
    read = net("wav:Placeholder(dtype=string) features:DecodeWav(wav) start:Tanh(features)")
    loop = graphs.v1_loop("start", *net("add:AddV2(switch:1,switch:1)"), gives="add")
    nodes = [*read, *loop, *net("y:Tanh(exit)")]
    document = graphpatch.view(GraphDef(node=nodes), sources="start", targets="y").document()
    flowing = {name: flows(document, 0, name) for name in document["bodies"][0]["names"]}
    assert [flowing.pop(name) for name in ("y", "exit")] == [FULL, ERROR]
    assert set(flowing.values()) == {NONE}
    assert [end["name"] for end in document["graphs"][0]["inputs"]] == ["wav:0"]


def test_a_frozen_variable_is_in_view() -> None:
    """Its rule takes it out of the updates; what flows back is as before, and the page says so."""
    update = "train/update_w/ApplyGradientDescent"
    variable = "w:VariableV2(shape=[2]) w/read:Identity(w) rate:Const y:Mul(x,w/read)"
    rule = {"name": "frozen", "match": {"name": "w/read"}, "patch": {"freeze": True}}
    text = f"x:Placeholder {variable} {update}:ApplyGradientDescent(w,rate,y)"
    document = drawn(text, rules=[rule], targets="y")
    (body,), (graph,) = document["bodies"], document["graphs"]
    row = body["names"].index("w/read")
    assert body["marks"] == {row: [0]}
    assert ["RefIdentity", update] in body["carried"][row]
    assert document["tables"]["plots"][body["plots"][row]]["words"] == {"before": "dy"}
    changed = [(pair["from"], pair["changed"]) for pair in graph["pairs"]]
    assert changed == [("x:0", {}), ("w:0", {})]
    assert (flows(document, 0, "w/read"), flows(document, 1, "w/read")) == (FULL, FULL)
    (note,) = graph["notes"]
    assert note.startswith("frozen at w/read")


def test_lines_show_how_far_a_gradient_comes() -> None:
    """tf.gradients asks no op here, as no float leads to the source: it ends at the Cast."""
    text = "n:Placeholder(dtype=int32) cast:Cast(n,SrcT=int32) y:AddV2(cast,cast)"
    found = drawn(text, sources="n", targets="y")
    assert [flows(found, 0, name) for name in ("y", "cast", "n")] == [FULL, BLOCKED, NONE]
    (pair,) = found["graphs"][0]["pairs"]
    assert [side["verdict"] for side in pair["sides"]] == ["none"]


def test_branches_and_loops_open_as_functions_do() -> None:
    """Each has lines for its bodies: what flows in them, and where it ends; v1 loops in line."""
    types = graphs.attr(["float32"])
    branch = graphs.node("branch", "If", "p", "x", Tin=types, Tout=types, Tcond="bool")
    loop = graphs.node("loop", "While", "branch", T=types)
    for node, key, name in (
        (branch, "then_branch", "steps"),
        (branch, "else_branch", "keeps"),
        (loop, "cond", "again"),
        (loop, "body", "keeps"),
    ):
        node.attr[key].func.name = name
    functions = [
        graphs.function(name, ["a"], net(f"step:{op}"), {"y": f"step:{output}:0"})
        for name, op, output in (
            ("steps", "Round(a)", "y"),
            ("keeps", "Tanh(a)", "y"),
            ("again", "Greater(a,a)", "z"),
        )
    ]
    nodes = [*net("x:Placeholder p:Placeholder(dtype=bool)"), branch, loop]
    graph = graphs.graphdef(*nodes, functions=functions)
    found = graphpatch.view(graph, sources="x", targets="loop").document()
    main = found["bodies"][0]
    opened = {main["names"][row]: bodies for row, bodies in main["calls"].items()}
    assert opened.keys() == {"branch", "loop"}
    assert {flows(found, 0, "step", body) for body in opened["branch"]} == {BLOCKED, FULL}
    calling = graphs.graphdef(*net("x:Placeholder call:steps(x)"), functions=functions)
    called = graphpatch.view(calling, sources="x", targets="call").document()
    assert called["bodies"][0]["calls"] == {called["bodies"][0]["names"].index("call"): [1]}
    assert called["bodies"][1]["names"] == ["step", "a"]
    assert flows(called, 0, "step", 1) == BLOCKED
    inline = graphs.v1_loop("x", *net("add:AddV2(switch:1,switch:1)"), gives="add")
    names = graphpatch.view(GraphDef(node=[*nodes, *inline])).document()["bodies"][0]["names"]
    assert {"x", "enter", "merge", "switch", "add"} <= set(names)
    assert len(names) == len(set(names))


def test_tensor_arrays_without_control_flow_v2() -> None:
    array = "n:Const(dtype=int32) h:TensorArrayV3(n,dtype=float32) f:TensorArrayWriteV3(h,n,x,h:1)"
    text = f"x:Placeholder {array} y:TensorArrayReadV3(h,n,f,dtype=float32)"
    for is_v2, verdict, flow, note in (
        (True, "error", NONE, "--no-control-flow-v2 shows what flows after "),
        (False, "flows", FULL, "as after tf.compat.v1."),
    ):
        document = drawn(text, sources="x", targets="y", control_flow_v2=is_v2)
        (graph,) = document["graphs"]
        assert graph["pairs"][0]["sides"][0]["verdict"] == verdict
        assert flows(document, 0, "x") == flow
        assert graph["notes"] == [f"{note}disable_control_flow_v2()"]


def test_a_page_of_nothing_is_refused() -> None:
    says = (
        "no op leads from an input to an output, so the page would be empty; inputs: none; "
        "outputs: none; name other tensors with --from and --to"
    )
    with pytest.raises(ModelError, match=says):
        drawn("w:Const go:NoOp")


def test_a_page_is_never_written_over_a_model(tmp_path: Path) -> None:
    model = tmp_path / "model.pb"
    model.write_bytes(DIGITS.read_bytes())
    with pytest.raises(graphpatch.OutputError, match="is the model itself"):
        graphpatch.view(model).save(model)
    assert model.read_bytes() == DIGITS.read_bytes()


def test_nothing_of_a_document_ends_its_element() -> None:
    hostile = {"</script><!--": "<\u2028>&'\""}
    text = as_script(hostile)
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == hostile
    written = page(hostile, "<title>")
    assert "<title>&lt;title&gt;</title>" in written
    assert "{" + "document}" not in written


def override(formula: Any, **constants: Any) -> dict[str, Any]:
    return {"override_gradient": {"formula": formula, "constants": constants}}


ONE = {"w": [5.0], "v": {"shape": [], "float32": "AAAAQA=="}}  # 2
# A patch, its op, the axis of its plot, from where to where it goes, and how each curve ends.
PLOTS: list[tuple[Any, str, str, tuple[int, int], dict[float | None, float | None]]] = [
    ({"override_gradient": "guided_relu"}, "Relu", "x", (-3, 3), {1.0: 1, -1.0: 0}),
    ({"straight_through": True}, "Round", "dy", (-3, 3), {None: 3}),
    ({"filter_gradient": {"clip": {"min": -1, "max": 1}}}, "MatMul", "dy", (-3, 3), {None: 1}),
    ({"filter_gradient": {"reverse": {"strength": 0.5}}}, "MatMul", "dy", (-3, 3), {None: -1.5}),
    ({"stop_gradient": True}, "Relu", "x", (-3, 3), {1.0: None, -1.0: None}),
    (None, "Tanh", "x", (-3, 3), {}),
    (None, "Relu6", "x", (-3, 8), {}),
    (override("where(abs(x) < 10, dy, 0)"), "Sign", "x", (-3, 12), {1.0: 0, -1.0: 0}),
    (override("dy * v * where(x > w, 1, 0)", **ONE), "Relu", "x", (-3, 7), {1.0: 2, -1.0: -2}),
]


@pytest.mark.parametrize(("patch", "op", "axis", "ends", "last"), PLOTS)
def test_a_curve_goes_as_far_as_its_knees(
    patch: Any, op: str, axis: str, ends: tuple[int, int], last: dict[float | None, float | None]
) -> None:
    found = plot(patch, op)
    assert found is not None
    assert (found["axis"], found["low"], found["high"]) == (axis, *ends)
    after = {one["dy"]: one["points"] for one in found["curves"] if one["side"] == "after"}
    assert {dy: points and points[-1][1] for dy, points in after.items()} == last
    for points in (curve["points"] for curve in found["curves"] if curve["points"]):
        assert [points[0][0], points[-1][0]] == list(ends)


@pytest.mark.parametrize(("op", "text"), DEFAULTS.items())
def test_a_default_gradient_is_that_of_the_op(op: str, text: str | None) -> None:
    """The formula that is shown is what `own(dy)` computes, and the derivative of the op."""
    if text is None:
        assert gives(op) == "none" or op == "StopGradient"
        return
    x = np.concatenate([np.linspace(-2.9, -0.1, 15), np.linspace(0.1, 7.1, 30)])
    dy, attrs, step = np.linspace(-2, 2, len(x)), {"alpha": 0.3}, 1e-6
    y, up, down = (op_output(op, [x + by], attrs) for by in (0, step, -step))
    [shown] = gradient(Formula.parse(text), [x], [y], [dy], attrs)
    np.testing.assert_allclose(shown, dy * (up - down) / (2 * step), atol=1e-5)
    if op in OP_GRADIENTS:
        [own] = gradient(Formula.parse("own(dy)"), [x], [y], [dy], attrs, op)
        np.testing.assert_allclose(shown, own, atol=1e-12)


def test_a_leaky_relu_is_drawn_with_its_own_alpha() -> None:
    document = drawn("x:Placeholder a:LeakyRelu(x) b:LeakyRelu(a,alpha=0.5) y:Relu(b)")
    body, plots = document["bodies"][0], document["tables"]["plots"]
    shown = {body["names"][row]: plots[number] for row, number in body["plots"].items()}
    formula = "where(x > 0, dy, attr.alpha * dy), attr.alpha"
    for name, alpha in ("a", 0.2), ("b", 0.5):
        assert shown[name]["words"] == {"before": f"{formula}={alpha}"}
        assert shown[name]["curves"][0]["points"][0] == [-3, alpha]
    assert plot(None, "LeakyRelu", float("inf")) is None
    (number,) = drawn("x:Placeholder a:LeakyRelu(x,alpha=float32)")["bodies"][0]["plots"].values()
    assert number == 0  # what is no number counts as not there


def test_constants_of_one_element_are_told_as_numbers() -> None:
    drawn = plot(override("dy * v * where(x > w, 1, 0)", **ONE), "Relu")
    assert drawn is not None
    assert drawn["words"]["after"].endswith("v=2, w=5")


NO_CURVE = [
    (None, "Conv2D"),
    (override("dy * w", w=[1.0, 2.0]), "Relu"),  # another curve for each element
    # Computed of the whole tensor:
    (override("concat(split(dy, 2, 0), split(x, 2, 1))"), "Relu"),
    (override("dy / sum(abs(dy))"), "Relu"),
    (override("dy * (x > quantile(x, 0.5))"), "Relu"),
    ({"override_gradient": "guided_elu"}, "Softmax"),
    ({"surrogate_gradient": "x / mean(abs(x))"}, "Sign"),
]


@pytest.mark.parametrize(("patch", "op"), NO_CURVE)
def test_what_has_no_curve(patch: Any, op: str) -> None:
    assert plot(patch, op) is None


def test_a_page_that_starts_before_an_output_says_so() -> None:
    x, scores = graphs.node("x", "Placeholder", dtype="float32"), graphs.node("scores", "Exp", "x")
    graph = GraphDef(node=[x, scores, graphs.node("y", "Greater", "scores", "x", T="float32")])
    [drawn] = graphpatch.view(graph).document()["graphs"]
    assert drawn["notes"] == ["no gradient comes from y:0: shown is that of scores:0"]
    assert graphpatch.view(graph, targets="scores").document()["graphs"][0]["notes"] == []


def test_an_image_is_a_heat_map_and_others_are_histograms() -> None:
    gradient = np.zeros((1, 200, 100, 3), np.float32)
    gradient[0, 150, 20, 1] = -2
    fed, heat = pictures(
        "x:0", np.random.default_rng(0).random((1, 8, 8, 1)), [(2.0, gradient, "")]
    )
    assert fed["kind"] == "heat"
    assert (heat["kind"], heat["height"], heat["width"]) == ("heat", 67, 34)
    assert heat["values"].index(255) == 50 * 34 + 6
    (many,) = pictures("w:0", None, [(1.0, np.arange(64.0).reshape(8, 8), "")])
    assert (many["kind"], sum(many["counts"])) == ("histogram", 64)
    nothing, zero = pictures("x:0", None, [(None, None, ""), (0.0, np.zeros((1, 8, 8, 1)), "")])
    assert (nothing["says"], zero["says"]) == ("None", "zero everywhere")


def events(path: Path) -> list[Event]:
    """The records of an event file: a length, its checksum, the event, its checksum."""
    raw, at, found = path.read_bytes(), 0, []
    while at < len(raw):
        (size,) = struct.unpack_from("<Q", raw, at)
        found.append(Event.FromString(raw[at + 12 : at + 12 + size]))
        at += size + 16
    return found


def test_tensorboard_reads_what_is_written(tmp_path: Path) -> None:
    paths = write_events(graphpatch.view(DIGITS, rules=GUIDED), tmp_path)
    assert [path.parent.name for path in paths] == ["before", "after"]
    version, second = events(paths[1])
    assert version.file_version == "brain.Event:2"
    graph = GraphDef.FromString(second.graph_def)
    devices = {node.name: node.device for node in graph.node}
    assert devices["dense/relu"] == devices["dense/relu/stop"] == "/rule: guided backprop"
    assert devices["logits"] == ""
    assert paths[1].stat().st_size < 50_000


def scalars(path: Path) -> dict[int, float]:
    """The sizes in an event file, by the line that they are of."""
    found = [event for event in events(path) if event.HasField("summary")]
    assert {event.summary.value[0].tag for event in found} <= {TAG}
    return {event.step: event.summary.value[0].simple_value for event in found}


def test_tensorboard_reads_sizes_of_each_model(tmp_path: Path) -> None:
    view = graphpatch.view(DIGITS, rules=GUIDED)
    lines = {0: [1.0, 2.0], 3: [None, "NaN"], 5: [None, 0.25]}
    sizes = {"lines": lines, "least": 0.25, "most": 2.0}
    view.document()["run"] = {"graphs": [{"note": "", "sizes": sizes, "sources": []}]}
    before, after = write_events(view, tmp_path)
    assert scalars(before) == {0: 1.0}
    assert scalars(after) == {0: 2.0, 5: 0.25}


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("")
    with pytest.raises(graphpatch.OutputError, match="is a file, and TensorBoard reads folders"):
        write_events(graphpatch.view(DIGITS), tmp_path)


@pytest.mark.slow
def test_sizes_of_gradients_are_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    found = graphpatch.view(DIGITS, rules=GUIDED, sources="image", targets="logits", run=True)
    (run,) = found.document()["run"]["graphs"]
    names = found.document()["bodies"][0]["names"]
    sizes = {names[row]: both for row, both in run["sizes"]["lines"].items()}
    assert sizes["logits"] == [1.0, 1.0]
    assert sizes["image"][0] is None
    assert sizes["image"][1] > 0
    assert sizes["block2/pool"][1] <= 0.1 + 1e-6 < sizes["block2/pool"][0]
    before, after = map(scalars, write_events(found, tmp_path))
    assert after[names.index("image")] == pytest.approx(sizes["image"][1])
    assert names.index("image") not in before
    (source,) = run["sources"]
    assert [one["kind"] for one in source["pictures"]] == ["heat", "nothing", "heat"]


def test_models_the_wrong_way_round_or_of_two_kinds_are_refused(tmp_path: Path) -> None:
    patched = graphpatch.apply(GUIDED, DIGITS).model
    patched.save(tmp_path / "patched.pb")
    with pytest.raises(ModelError, match=r"patched.pb carries rules and .*: the original comes"):
        graphpatch.view(tmp_path / "patched.pb", DIGITS)
    numerals = ROOT / "scripts/models/numerals.pb"
    with pytest.raises(
        ModelError, match=r"numerals.pb is another model: it has \d+ of the \d+ ops"
    ):
        graphpatch.view(DIGITS, numerals)


def two_outputs(second: str) -> GraphDef:
    """A call of a function of two outputs: a Relu, and this op."""
    gives = "output" if second.startswith("StopGradient") else "y"
    returned = {"b": "kept:activations:0", "c": f"second:{gives}:0"}
    f = graphs.function("f", ["a"], net(f"kept:Relu(a) second:{second}"), returned)
    nodes = net("x:Placeholder y:f(x) o0:Identity(y) o1:Identity(y:1)")
    return graphs.graphdef(*nodes, functions=[f])


def test_each_output_of_a_call_has_the_rules_on_its_own_path() -> None:
    """A rule at one output of a function was said to change the others, which share the call."""
    graph = two_outputs("Tanh(a)")
    for rule in ("stop_gradient", "straight_through"):
        patched = graphpatch.apply([{"match": {"op": "Tanh"}, "patch": {rule: True}}], graph).model
        document = graphpatch.view(graph, patched, sources="x", targets=["o0", "o1"]).document()
        pairs = document["graphs"][0]["pairs"]
        assert [pair["changed"] for pair in pairs] == [{}, {"rule 1": 1}]


def test_a_stop_at_one_output_of_a_function_ends_that_gradient_alone() -> None:
    graph = two_outputs("StopGradient(kept:activations:0)")
    first, second = graphpatch.diagnose(graph, "x", ["o0", "o1"]).pairs
    assert [first.verdict, second.verdict] == ["flows", "zero"]
    assert [finding.node.name for finding in second.findings] == ["second"]

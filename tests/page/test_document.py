"""The document of a page: lines, what flows, findings, rules, functions and loops, as data."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphpatch
from graphpatch.errors import ModelError
from graphpatch.page.curves import plot
from graphpatch.page.events import TAG, write_events
from graphpatch.page.gradient_sizes import pictures
from graphpatch.page.view import as_script, page
from graphpatch.protos import Event, GraphDef
from graphpatch.recipes import recipe_rules
from tests import graphs

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
    (pair,) = both["graphs"][0]["pairs"]
    assert [side["verdict"] for side in pair["sides"]] == ["none", "flows"]


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
    assert [one["op"] for one in pair["sides"][1]["on_tape"]] == ["dense/relu"]


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


@pytest.mark.parametrize("given", ["dry run", "patched"])
def test_rules_of_a_recipe_that_are_at_no_op_are_left_out(given: str) -> None:
    recipe = "@guided_backprop"
    rare = {"name": "rare", "match": {"op": "Cos"}, "patch": {"stop_gradient": True}}
    rules = [rule | {"expect": {"min": 0}} for rule in (*recipe_rules(recipe)["rules"], rare)]
    if given == "patched":
        viewed = graphpatch.view(graphpatch.apply(rules, DIGITS))
    else:
        viewed = graphpatch.view(DIGITS, rules=rules)
        assert titles(viewed) == ["digits.pb without rules", "with 2 rules"]
    document = viewed.document()
    assert [rule["name"] for rule in document["rules"]] == [recipe, "rare"]
    marks = [marked for body in document["bodies"] for marked in body["marks"].values()]
    assert marks == [[0], [0], [0]]


def test_a_pattern_is_marked() -> None:
    found = graphpatch.view(DIGITS, rules={"pattern": "FusedBatchNormV3 -> Relu|Relu6"}).document()
    body = found["bodies"][0]
    assert {body["names"][row] for row in body["marks"]} == {"block2/relu", "block1/relu"}
    assert CHANGED not in body["sides"][0]["flow"]


X = graphs.node("x", "Placeholder", dtype="float32")


def test_zero_and_error_and_none() -> None:
    graph = GraphDef(
        node=[
            X,
            graphs.node("sign", "Sign", "x"),
            graphs.node("bad", "PreventGradient", "x"),
            graphs.node("y", "AddV2", "sign", "bad"),
        ]
    )
    found = graphpatch.view(graph, sources="x", targets="y").document()
    assert flows(found, 0, "sign") == ZERO
    assert flows(found, 0, "bad") == ERROR
    assert flows(found, 0, "y") == FULL


def test_nothing_flows_on_from_an_op_that_raises() -> None:
    """A string is fed, as in speech commands; the loop below its Exit has no context."""
    read = [
        graphs.node("wav", "Placeholder", dtype="string"),
        graphs.node("features", "DecodeWav", "wav"),
        graphs.node("start", "Tanh", "features", T="float32"),
    ]
    loop = graphs.v1_loop("start", graphs.node("add", "AddV2", "switch:1", "switch:1"), gives="add")
    end = graphs.node("y", "Tanh", "exit", T="float32")
    document = graphpatch.view(
        GraphDef(node=[*read, *loop, end]), sources="start", targets="y"
    ).document()
    flowing = {name: flows(document, 0, name) for name in document["bodies"][0]["names"]}
    assert [flowing.pop(name) for name in ("y", "exit")] == [FULL, ERROR]
    assert set(flowing.values()) == {NONE}
    assert [end["name"] for end in document["graphs"][0]["inputs"]] == ["wav:0"]


def test_a_frozen_variable_is_in_view(tmp_path: Path) -> None:
    """Its rule takes it out of the updates; what flows back is as before, and the page says so."""
    variables = [
        graphs.node("w", "VariableV2", dtype="float32", shape=graphs.attr([2])),
        graphs.node("w/read", "Identity", "w", T="float32"),
        graphs.node("rate", "Const", dtype="float32"),
    ]
    update = graphs.node(
        "train/update_w/ApplyGradientDescent", "ApplyGradientDescent", "w", "rate", "y", T="float32"
    )
    graph = GraphDef(node=[X, *variables, graphs.node("y", "Mul", "x", "w/read"), update])
    rule = {"name": "frozen", "match": {"name": "w/read"}, "patch": {"freeze": True}}
    document = graphpatch.view(graph, rules=[rule], targets="y").document()
    (body,), (drawn,) = document["bodies"], document["graphs"]
    row = body["names"].index("w/read")
    assert body["marks"] == {row: [0]}
    assert ["RefIdentity", update.name] in body["carried"][row]
    assert document["tables"]["plots"][body["plots"][row]]["words"] == {"before": "dy"}
    changed = [(pair["from"], pair["changed"]) for pair in drawn["pairs"]]
    assert changed == [("x:0", {}), ("w:0", {})]
    assert (flows(document, 0, "w/read"), flows(document, 1, "w/read")) == (FULL, FULL)
    (note,) = drawn["notes"]
    assert note.startswith("frozen at w/read")


def test_lines_show_how_far_a_gradient_comes() -> None:
    """tf.gradients asks no op here, as no float leads to the source: it ends at the Cast."""
    cast = graphs.node("cast", "Cast", "n", SrcT="int32", DstT="float32")
    graph = GraphDef(
        node=[
            graphs.node("n", "Placeholder", dtype="int32"),
            cast,
            graphs.node("y", "AddV2", "cast", "cast"),
        ]
    )
    found = graphpatch.view(graph, sources="n", targets="y").document()
    assert [flows(found, 0, name) for name in ("y", "cast", "n")] == [FULL, BLOCKED, NONE]
    (pair,) = found["graphs"][0]["pairs"]
    assert [side["verdict"] for side in pair["sides"]] == ["none"]


def test_the_body_of_a_function_has_lines() -> None:
    inside = [graphs.node("step", "Round", "a", T="float32")]
    function = graphs.function("inner", ["a"], inside, {"y": "step:y:0"})
    graph = GraphDef(node=[X, graphs.node("call", "inner", "x")])
    graph.library.function.append(function)
    found = graphpatch.view(graph, sources="x", targets="call").document()
    main, inner = found["bodies"]
    assert main["calls"] == {main["names"].index("call"): [1]}
    assert inner["names"] == ["step", "a"]
    assert flows(found, 0, "step", 1) == BLOCKED


def test_branches_and_loops_open_as_functions_do() -> None:
    """Each has lines for its bodies: what flows in them, and where it ends."""
    bodies = {
        "steps": [graphs.node("step", "Round", "a", T="float32")],
        "keeps": [graphs.node("step", "Tanh", "a", T="float32")],
        "again": [graphs.node("step", "Greater", "a", "a", T="float32")],
    }
    kept = {"T": ["float32"]}
    graph = GraphDef(node=[
        X,
        graphs.node("p", "Placeholder", dtype="bool"),
        graphs.node("branch", "If", "p", "x", Tin=kept["T"], Tout=kept["T"], Tcond="bool"),
        graphs.node("loop", "While", "branch", T=kept["T"]),
    ])  # fmt: skip
    for place, key, name in (
        (2, "then_branch", "steps"),
        (2, "else_branch", "keeps"),
        (3, "cond", "again"),
        (3, "body", "keeps"),
    ):
        graph.node[place].attr[key].func.name = name
    graph.library.function.extend(
        graphs.function(name, ["a"], inside, {"y": f"step:{'z' if name == 'again' else 'y'}:0"})
        for name, inside in bodies.items()
    )
    found = graphpatch.view(graph, sources="x", targets="loop").document()
    main = found["bodies"][0]
    opened = {
        main["names"][row]: [found["bodies"][body]["names"][0] for body in opens]
        for row, opens in main["calls"].items()
    }
    assert opened.keys() == {"branch", "loop"}
    assert set(opened["branch"]) == {"step"}
    flowing = [
        flows(found, 0, "step", body) for body in main["calls"][main["names"].index("branch")]
    ]
    assert set(flowing) == {BLOCKED, FULL}


def test_a_v1_loop_has_a_line_for_each_op() -> None:
    add = graphs.node("add", "AddV2", "switch:1", "switch:1")
    loop = graphs.v1_loop("x", add, gives="add")
    graph = GraphDef(node=[X, *loop])
    found = graphpatch.view(graph).document()
    names = found["bodies"][0]["names"]
    assert {"x", "enter", "merge", "switch", "add"} <= set(names)
    assert len(names) == len(set(names))


def test_tensor_arrays_without_control_flow_v2() -> None:
    n = graphs.node("n", "Const", dtype="int32")
    h = graphs.node("h", "TensorArrayV3", "n", dtype="float32")
    write = graphs.node("f", "TensorArrayWriteV3", "h", "n", "x", "h:1")
    read = graphs.node("y", "TensorArrayReadV3", "h", "n", "f", dtype="float32")
    graph, ends = GraphDef(node=[X, n, h, write, read]), {"sources": "x", "targets": "y"}
    for is_v2, verdict, flow, note in (
        (True, "error", NONE, "--no-control-flow-v2 shows what flows after "),
        (False, "flows", FULL, "as after tf.compat.v1."),
    ):
        document = graphpatch.view(graph, **ends, control_flow_v2=is_v2).document()
        (drawn,) = document["graphs"]
        assert drawn["pairs"][0]["sides"][0]["verdict"] == verdict
        assert flows(document, 0, "x") == flow
        assert drawn["notes"] == [f"{note}disable_control_flow_v2()"]


def test_a_page_of_nothing_is_refused() -> None:
    graph = GraphDef(node=[graphs.node("w", "Const", dtype="float32"), graphs.node("go", "NoOp")])
    says = (
        "no op leads from an input to an output, so the page would be empty; inputs: none; "
        "outputs: none; name other tensors with --from and --to"
    )
    with pytest.raises(graphpatch.ModelError, match=says):
        graphpatch.view(graph)


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


PLOTS = {
    "guided": ({"override_gradient": "guided_relu"}, "Relu", "x", {1.0: 1, -1.0: 0}),
    "straight through": ({"straight_through": True}, "Round", "dy", {None: 3}),
    "clip": ({"filter_gradient": {"clip": {"min": -1, "max": 1}}}, "MatMul", "dy", {None: 1}),
    "reverse": ({"filter_gradient": {"reverse": {"strength": 0.5}}}, "MatMul", "dy", {None: -1.5}),
    "stop": ({"stop_gradient": True}, "Relu", "x", {1.0: None, -1.0: None}),
    "default": (None, "Tanh", "x", {}),
}


@pytest.mark.parametrize("name", PLOTS)
def test_the_last_point_of_a_curve(name: str) -> None:
    patch, op, axis, ends = PLOTS[name]
    found = plot(patch, op)
    assert found is not None
    assert found["axis"] == axis
    after = {one["dy"]: one["points"] for one in found["curves"] if one["side"] == "after"}
    assert {dy: points and points[-1][1] for dy, points in after.items()} == ends


@pytest.mark.parametrize(("patch", "op", "ends"), [
    (None, "Relu6", (-3, 8)),
    ({"override_gradient": {"formula": "where(abs(x) < 10, dy, 0)"}}, "Sign", (-3, 12)),
    ({"filter_gradient": {"clip": {"min": -0.1, "max": 0.1}}}, "MatMul", (-3, 3)),
])  # fmt: skip
def test_a_curve_goes_as_far_as_its_knees(patch: Any, op: str, ends: tuple[int, int]) -> None:
    found = plot(patch, op)
    assert found is not None
    assert (found["low"], found["high"]) == ends
    (points,) = [one["points"] for one in found["curves"]][-1:]
    assert [points[0][0], points[-1][0]] == list(ends)


def test_a_page_tells_the_inputs_and_outputs(both: dict[str, Any]) -> None:
    (graph,) = both["graphs"]
    assert [(end["name"], end["tensor"]) for end in graph["inputs"]] == [
        ("image:0", "float32 [?, 8, 8, 1]"),
        ("dropout_rate:0", "float32 []"),
    ]
    assert [end["name"] for end in graph["outputs"]] == ["logits:0"]


@pytest.mark.parametrize(("patch", "op"), [
    (None, "Conv2D"),
    ({"override_gradient": {"formula": ["dy * x1", None]}}, "Mul"),
    # Another curve for each element:
    ({"override_gradient": {"formula": "dy * w", "constants": {"w": [1.0, 2.0]}}}, "Relu"),
    # Computed of the whole tensor:
    ({"override_gradient": {"formula": "concat(split(dy, 2, 0), split(x, 2, 1))"}}, "Relu"),
    ({"override_gradient": {"formula": "dy / sum(abs(dy))"}}, "Relu"),
    ({"override_gradient": {"formula": "dy * (x > quantile(x, 0.5))"}}, "Relu"),
    ({"override_gradient": "rectified_gradient"}, "Relu"),
    ({"override_gradient": "guided_elu"}, "Softmax"),
    ({"surrogate_gradient": "x / mean(abs(x))"}, "Sign"),
])  # fmt: skip
def test_what_has_no_curve(patch: Any, op: str) -> None:
    assert plot(patch, op) is None


def test_a_constant_of_one_element_is_drawn_as_its_number() -> None:
    constants = {"w": [5.0], "v": {"shape": [], "float32": "AAAAQA=="}}
    formula = {"formula": "dy * v * where(x > w, 1, 0)", "constants": constants}
    drawn = plot({"override_gradient": formula}, "Relu")
    assert drawn is not None
    assert drawn["words"]["after"].endswith("v=2, w=5")
    assert drawn["high"] == 7
    (points,) = (
        curve["points"]
        for curve in drawn["curves"]
        if (curve["side"], curve["dy"]) == ("after", 1.0)
    )
    assert points[-1] == [7, 2]


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


def two_outputs(op: str, read: str, gives: str) -> GraphDef:
    """A call of a function of two outputs: a Relu, and this op that reads `read`."""
    body = [
        graphs.node("kept", "Relu", "a", T="float32"),
        graphs.node("second", op, read, T="float32"),
    ]
    returned = {"b": "kept:activations:0", "c": f"second:{gives}:0"}
    return graphs.graphdef(
        graphs.node("x", "Placeholder", dtype="float32"),
        graphs.node("y", "f", "x"),
        *(graphs.node(f"o{n}", "Identity", f"y:{n}", T="float32") for n in (0, 1)),
        functions=[graphs.function("f", ["a"], body, returned)],
    )


def test_each_output_of_a_call_has_the_rules_on_its_own_path() -> None:
    """A rule at one output of a function was said to change the others, which share the call."""
    graph = two_outputs("Tanh", "a", "y")
    for rule in ("stop_gradient", "straight_through"):
        patched = graphpatch.apply([{"match": {"op": "Tanh"}, "patch": {rule: True}}], graph).model
        document = graphpatch.view(graph, patched, sources="x", targets=["o0", "o1"]).document()
        pairs = document["graphs"][0]["pairs"]
        assert [pair["changed"] for pair in pairs] == [{}, {"rule 1": 1}]


def test_a_stop_at_one_output_of_a_function_ends_that_gradient_alone() -> None:
    graph = two_outputs("StopGradient", "kept:activations:0", "output")
    first, second = graphpatch.diagnose(graph, "x", ["o0", "o1"]).pairs
    assert [first.verdict, second.verdict] == ["flows", "zero"]
    assert [finding.node.name for finding in second.findings] == ["second"]

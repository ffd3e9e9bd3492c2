"""Why a gradient is None, zero or an error: one graph a cause, and what fixes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import graphpatch
from graphpatch.analysis.doctor import causes
from graphpatch.analysis.doctor.diagnosis import PairDiagnosis, doctors
from graphpatch.analysis.doctor.survey import GraphDiagnosis, fix, missing_end, survey
from graphpatch.errors import ModelError, PatchError
from graphpatch.protos import NodeDef
from tests import graphs
from tests.graphs import const, graphdef, metagraph, node, saved_model_folder
from tests.patches.one_op import net

X = node("x", "Placeholder")


def model(*nodes: NodeDef, functions: Sequence[Any] = ()) -> graphpatch.Model:
    return graphpatch.load(graphdef(*nodes, functions=functions))


def seen(model: graphpatch.Model, **more: Any) -> GraphDiagnosis:
    [found] = survey(model, ["x"], ["y"], **more)
    return found


def one(model: graphpatch.Model, **more: Any) -> PairDiagnosis:
    [found] = seen(model, **more).diagnoses
    return found


def cast(name: str, read: str, source: str, target: str) -> NodeDef:
    return node(name, "Cast", read, SrcT=source, DstT=target)


# fmt: off
F = {"T": "float32"}
I32 = {"dtype": "int32"}
C, ROUND, Y = const("c"), node("a", "Round", "x"), node("y", "Tanh", "a")
KEYED = {"T": ["float32", "float32"], "_gradient_op_type": "CustomGradient-7"}
NORM = node("n", "FusedBatchNormV3", "x", "c", "c", "c", "c", T="float32", U="float32")
# Of each cause: the ops between x and y, the verdict, the findings, and whether rules fix it.
CAUSES: dict[str, tuple[list[NodeDef], str, list[tuple[str, str]], bool]] = {
    "nothing": ([node("y", "Tanh", "x")], "flows", [], False),
    "not connected": ([C, node("y", "Tanh", "c", "^x")], "none", [], False),
    "step": ([ROUND, Y], "none", [("step", "a")], True),
    **{f"{dtype} is no loss": (
        [node("p", "Placeholder", dtype=dtype), node("s", "Shape", "x"),
         node("y", "Fill", "s", "p", T=dtype)],
        "error", [("target", "y"), ("shape", "s")], False) for dtype in ("string", "complex64")},
    "zero": ([node("a", "Sign", "x"), Y], "zero", [("zero", "a")], True),
    "stop": ([node("a", "StopGradient", "x"), Y], "none", [("stop_gradient", "a")], True),
    "prevent": ([node("a", "PreventGradient", "x"), Y], "error", [("prevent", "a")], True),
    "the gradient of a cell": (
        [node("a", "LSTMBlockCellGrad", *["x"] * 16), Y], "error", [("second", "a")], False),
    "missing, and no identity": (
        [node("a", "Mfcc", "x", "rate"), node("rate", "Const", **I32), Y],
        "error", [("missing", "a")], False),
    "argmax": ([node("y", "ArgMax", "x", "c"), C], "none", [("argmax", "y")], False),
    "comparison": (  # both sides are the same tensor
        [node("a", "Greater", "x", "x"), cast("y", "a", "bool", "float32")],
        "none", [("comparison", "a")], False),
    "a cast alone": ([cast("y", "x", "float32", "int32")], "none", [("cast", "y")], False),
    "shape": (
        [node("a", "Shape", "x"), cast("y", "a", "int32", "float32")],
        "none", [("shape", "a")], False),
    "slot": (
        [C, node("y", "PadV2", "c", "p", "x"), node("p", "Const", **I32)],
        "none", [("slot", "y")], False),
    "swish": (
        [node("s", "Sigmoid", "x"), node("m", "Mul", "x", "s"),
         node("a", "IdentityN", "m", "x", **KEYED), Y],
        "error", [("swish", "a")], True),
    "custom gradient": (
        [node("s", "Sigmoid", "x"), node("m", "Tanh", "s"),
         node("a", "IdentityN", "m", "x", **KEYED), Y],
        "error", [("custom_gradient", "a")], False),
    "a key of nobody": (
        [node("a", "Relu", "x", _gradient_op_type="Mine"), Y], "error", [("key", "a")], True),
    "the first blocker first": (
        [ROUND, node("b", "StopGradient", "a"), node("y", "Tanh", "b")],
        "none", [("stop_gradient", "b"), ("step", "a")], True),
    "another way around": (
        [ROUND, node("b", "Exp", "x"), node("y", "Mul", "a", "b")], "flows", [], False),
    "an error beside the way": (
        [node("a", "MatrixExponential", "x"), node("b", "Exp", "x"), node("y", "Mul", "a", "b")],
        "error", [("missing", "a")], True),
    "a gradient without a gradient beside the way": (
        [node("a", "UnbatchGrad", "x", "n", "x", "n"), node("n", "Const", dtype="int64"),
         node("b", "Exp", "x"), node("y", "Mul", "a", "b")],
        "error", [("missing", "a")], False),
    "second": (
        [node("y", "ResizeNearestNeighborGrad", "x", "n"), node("n", "Const", **I32)],
        "error", [("second", "y")], True),
    "TensorArray": (
        [node("h", "TensorArrayV3", "n", dtype="float32"), node("n", "Const", **I32),
         node("f", "TensorArrayWriteV3", "h", "n", "x", "h:1"),
         node("y", "TensorArrayReadV3", "h", "n", "f", dtype="float32")],
        "error", [("tensor_array", "y"), ("tensor_array", "f")], False),
    "the features of a ReluGrad": (
        [C, node("y", "ReluGrad", "c", "x", **F)], "zero", [("zero_slot", "y")], True),
    "the gradients of a ReluGrad": ([C, node("y", "ReluGrad", "x", "c", **F)], "flows", [], False),
    "the image of a batch norm": ([C, NORM, node("y", "Neg", "n", **F)], "flows", [], False),
    "the mean of a batch norm": (
        [C, NORM, node("y", "Neg", "n:1", **F)], "zero", [("zero_slot", "n")], False),
}
# fmt: on


@pytest.mark.parametrize("case", CAUSES)
def test_each_cause_is_named_and_its_rules_fix_it(case: str) -> None:
    nodes, verdict, expected, is_fixed = CAUSES[case]
    before = model(X, *nodes)
    found = one(before)
    assert (found.verdict, found.connected) == (verdict, case != "not connected")
    assert [(finding.kind, finding.node.name) for finding in found.findings] == expected
    assert all(f.what and f.consequence and f.remedy for f in found.findings)
    fixed = fix(before, ["x"], ["y"])
    assert (len(fixed.rules) > 0, len(fixed.flowing)) == (is_fixed, is_fixed)
    assert len(fixed.left) == (found.connected and verdict != "flows" and not is_fixed)
    if is_fixed:
        assert one(graphpatch.apply(fixed.rules, before).model).verdict == "flows"
    if case == "TensorArray":
        assert one(before, control_flow_v2=False).verdict == "flows"


def test_the_rules_for_ops_of_one_name_in_two_functions_have_two_names() -> None:
    bodies = [
        graphs.function(name, ["a"], [node("r", "Round", "a")], {"b": "r:y:0"}) for name in "fg"
    ]
    calls = calling("PartitionedCall"), calling("PartitionedCall")
    second = calls[1][1]
    second.name, second.input[0], second.attr["f"].func.name = "z", "y", "g"
    fixed = fix(model(*calls[0], second, functions=bodies), ["x"], ["z"])
    assert [rule["name"][18:] for rule in fixed.rules] == ["r in g", "r in f"]
    graphpatch.apply(fixed.rules, model(*calls[0], second, functions=bodies))


def calling(op: str, **attrs: Any) -> list[NodeDef]:
    from graphpatch.protos import AttrValue, NameAttrList

    call = node("y", op, "x", Tin=["float32"], Tout=["float32"], **attrs)
    call.attr["f"].CopyFrom(AttrValue(func=NameAttrList(name="f")))
    return [X, call]


def test_a_function_gives_zeros_where_nothing_comes_back() -> None:
    inner = graphs.function("f", ["a"], [node("r", "Round", "a")], {"b": "r:y:0"})
    given = model(*calling("PartitionedCall"), functions=[inner])
    found = one(given)
    assert (found.verdict, found.tape) == ("zero", "zero")
    assert "zeros" in found.says
    [finding] = found.findings
    assert (finding.kind, finding.node.name, finding.node.body.label) == ("step", "r", "f")
    fixed = fix(given, ["x"], ["y"])
    assert [rule["match"] for rule in fixed.rules] == [{"name": "r", "body": "f"}]
    assert len(fixed.flowing) == 1


def loop(exits: bool = True) -> list[NodeDef]:
    """while x < 1: x = 2 * x, as freezing leaves it: with no context, perhaps with no Exit."""
    end = "out:Exit(switch) y:Tanh(out)" if exits else "y:Identity(merge)"
    inside = "cond:LoopCond(less) switch:Switch(merge, cond) twice:Add(switch:1, switch:1)"
    return net(f"""x:Placeholder enter:Enter(x, frame_name=loop) merge:Merge(enter, next) one:Const
        less:Less(merge, one) {inside} next:NextIteration(twice) {end}""")


def test_a_loop_without_its_context_raises() -> None:
    found = one(model(*loop()))
    assert found.says == "AttributeError: 'NoneType' object has no attribute 'outer_context'"
    [finding] = found.findings
    assert (finding.kind, finding.node.name) == ("loop", "out")
    assert "-o model.meta" in finding.remedy


def test_a_loop_without_exits_is_never_visited() -> None:
    found = one(model(*loop(exits=False)))
    assert (found.verdict, [finding.kind for finding in found.findings]) == ("none", ["loop"])


ARRAY, WAV = CAUSES["TensorArray"][0], "s:Placeholder(dtype=string) x:DecodeWav(s)"
SOURCES: dict[str, tuple[list[NodeDef], str, list[str]]] = {
    "text": ([*net(WAV), *ARRAY], "none", ["x"]),
    "text, and a target that is none": (
        net(f"{WAV} a:Round(x) y:AsString(a, T=float32)"), "error", ["y", "x", "a", "y"]),
    "ints": ([node("s", "Placeholder", **I32), cast("x", "s", "int32", "float32"), ROUND, Y],
             "none", ["x", "a"]),
    "a variable, to which gradients come": (
        [*net("s:VarHandleOp x:ReadVariableOp(s, dtype=float32)"), *ARRAY], "error", ["y", "f"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SOURCES)
def test_a_source_without_gradients_is_told_first_and_nothing_that_is_no_matter(case: str) -> None:
    """No gradient is asked of text, so what control flow v2 refuses after it is no matter."""
    nodes, verdict, names = SOURCES[case]
    [found] = survey(model(*nodes), ["s"], ["y"])[0].diagnoses
    assert (found.verdict, [finding.node.name for finding in found.findings]) == (verdict, names)
    texts = " ".join(finding.what for finding in found.findings)
    assert ("input 0, which is string" in texts) == case.startswith("text")


def test_of_an_op_that_raises_beside_the_path_no_input_is_named() -> None:
    poisson = "a:RandomPoissonV2(n, x, S=int32, R=float32, dtype=float32)"
    nodes = net(f"x:Placeholder n:Const(dtype=int32) {poisson} b:Exp(x) y:Mul(a, b)")
    [finding] = one(model(*nodes)).document()["findings"]
    assert (finding["slot"], finding["tried"]) == (None, True)
    assert finding["what"] == "RandomPoissonV2 has no gradient registered"
    assert finding["rule"]["patch"] == causes.STAND_INS["RandomPoissonV2"]


def test_each_input_of_an_op_is_offered_a_rule_that_was_tried_for_it() -> None:
    between = "a:IgammaGradA(x, z, T=float32) r:Round(a) y:Tanh(r)"
    before = model(*net(f"x:Placeholder z:Placeholder {between}"))
    [seen] = survey(before, ["x", "z"], ["y"])
    for slot, pair in enumerate(seen.diagnoses):
        rules = [finding.rule for finding in pair.findings if finding.is_tried]
        assert rules[1]["name"] == f"passes gradients to input {slot}: a"
        [after] = survey(graphpatch.apply(rules, before).model, [pair.source], ["y"])
        assert [pair.verdict for pair in after.diagnoses] == ["flows"]


def test_notes_on_the_way() -> None:
    nodes = net("""x:Placeholder s:Const bn:FusedBatchNormV3(x, s, s, s, s, U=float32)
        relu:Relu6(bn) key:Relu(relu, _gradient_op_type=Mine) stop:StopGradient(key)
        sum:Add(key, stop) sigmoid:Sigmoid(sum) y:Mul(sum, sigmoid)
        aside:Relu(s, _gradient_op_type=Relu6)""")
    found = seen(model(*nodes))
    assert {note.kind: note.ops for note in found.notes} == {
        **{"activations": ["Relu6 relu"], "activation_patterns": ["Mul y"]},
        **{"training_batch_norm": ["FusedBatchNormV3 bn"], "unregistered_key": ["Relu key"]},
        **{"idle_override": ["Relu aside"], "stripped": ["StopGradient stop"]},
    }


def test_overrides_that_a_call_makes_tensorflow_ignore() -> None:
    body = [node("r", "Relu", "a", _gradient_op_type="Relu6")]
    inner = graphs.function("f", ["a"], body, {"b": "r:activations:0"})
    found = seen(model(*calling("PartitionedCall"), functions=[inner]))
    told = {note.kind: note.ops for note in found.notes}
    assert told["ignored_override"] == ["Relu r in f"]
    assert told["function"] == ["PartitionedCall y"]


JPEG = (
    node("q", "Cast", "x", SrcT="float32", DstT="uint8"),
    node("e", "EncodeJpeg", "q"),
    node("d", "DecodeJpeg", "e"),
    node("y", "Cast", "d", SrcT="uint8", DstT="float32"),
)
GIVEN_TEXT = node("x", "Placeholder", dtype="string")


RUNS: dict[str, tuple[tuple[NodeDef, ...], set[str], str]] = {
    "a quantized Relu stays one": (
        (node("low", "Const"), node("high", "Const"),
         node("q", "QuantizeV2", "x", "low", "high", T="quint8"),
         node("r", "QuantizedRelu", "q", "q:1", "q:2", Tinput="quint8", out_type="quint8"),
         node("y", "Dequantize", "r", "r:1", "r:2", T="quint8")), {"q", "r", "y"}, "relu(x0)"),
    "an image codec": (JPEG, {"d", "e", "q"}, "x"),
    "text": ((node("s", "AsString", "x", **F), node("y", "StringToNumber", "s")), {"s"}, "x"),
    "what is computed is not known": (
        (cast("q", "x", "float32", "int32"), node("n", "Const", dtype="int32"),
         node("m", "Mul", "n", "q", T="int32"), cast("y", "m", "int32", "float32")), {"q"}, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", RUNS)
def test_ops_between_floats_are_advised_to_count_as_one(case: str) -> None:
    nodes, blocked, formula = RUNS[case]
    before = model(X, *nodes)
    found = {finding.node.name: finding.remedy for finding in one(before).findings}
    assert found.keys() == blocked
    [remedy] = set(found.values())
    fixed = fix(before, ["x"], ["y"])
    formulas = [rule["patch"]["surrogate_gradient"] for rule in fixed.rules]
    assert (formulas, len(fixed.flowing)) == ([formula] * bool(formula), bool(formula))
    first = min(n.name for n in nodes if "x" in n.input)
    assert remedy.startswith(f"match the ops from {first} to y as one pattern")
    if not formula:
        assert "a surrogate_gradient that you know" in remedy
        return
    _, pattern, rest = remedy.split('"', 2)
    patch = json.loads(rest[rest.index("{") : rest.index("}") + 1])
    rules = [{"match": {"pattern": pattern}, "patch": patch}]
    assert one(graphpatch.apply(rules, before).model).verdict == "flows"


def test_in_a_function_no_tensor_is_named_to_differentiate_by() -> None:
    """The int32 argument is read to look up rows, or not at all."""
    call, remedies = calling("PartitionedCall")[1], []
    for read in "ac":
        lookup = node("r", "Gather", "c", read, Tindices="int32", Tparams="float32")
        inner = graphs.function("f", ["a"], [const("c"), lookup], {"b": "r:output:0"})
        inner.signature.input_arg[0].type = 3
        [finding] = one(model(node("x", "Placeholder", **I32), call, functions=[inner])).findings
        remedies.append((finding.kind, finding.remedy.rpartition(" with respect to ")[2]))
    outside = "a tensor downstream of the call of its function", "y:0, downstream of it"
    assert remedies == [("dtype", remedy) for remedy in outside]


ALSO_READ = (*JPEG, node("more", "Identity", "d", T="uint8"))
EMBEDDING = net("""x:Placeholder(dtype=int32) c:Const size:Shape(x, T=int32)
    emb:Gather(c, x, Tindices=int32, Tparams=float32) zeros:Fill(size, c) y:Add(emb, zeros)""")
IN_BRANCHES = (
    *net("x:Placeholder(dtype=int32) p:Placeholder(dtype=bool) s:Switch(x, p, T=int32)"),
    *(cast(name, read, "int32", "float32") for name, read in (("f", "s"), ("t", "s:1"))),
    *net("m:Merge(f, t) y:Neg(m)"),
)
TEXTS = (
    *(node("x", "Placeholder", dtype="string"), node("n", "Const", dtype="int32")),
    *(node("a", "TensorArrayV3", "n", dtype="string"), cast("y", "d", "uint8", "float32")),
    node("w", "TensorArrayWriteV3", "a", "n", "x", "a:1", T="string"),
    *(node("r", "TensorArrayReadV3", "a", "n", "w", dtype="string"), node("d", "DecodeJpeg", "r")),
)


@pytest.mark.parametrize(
    ("nodes", "blocked", "remedy"),
    [
        (IN_BRANCHES, {"s"}, "differentiate with respect to m:0, downstream of it"),
        (TEXTS, {"d"}, "differentiate with respect to y:0, downstream of it"),
        (EMBEDDING, {"emb"}, "differentiate with respect to emb:0, downstream of it"),
        ((X, *ALSO_READ), {"d", "e", "q"}, "differentiate with respect to y:0, downstream of it"),
        ((GIVEN_TEXT, node("y", "DecodeWav", "x")), {"y"}, "with respect to y:0, downstream of it"),
        ((X, cast("y", "x", "float32", "int32")), {"y"}, "take x:0, before it, as the loss"),
        ((X, C, node("y", "Greater", "x", "c")), {"y"}, "nothing downstream of it is float again"),
    ],
)
def test_ops_that_cannot_count_as_one_are_not_advised_to(
    nodes: Any, blocked: set[str], remedy: str
) -> None:
    findings = {finding.node.name: finding for finding in one(model(*nodes)).findings}
    assert findings.keys() == blocked
    for finding in findings.values():
        assert remedy in finding.remedy
        assert "pattern" not in finding.remedy
        is_asked = finding.op_type == "DecodeWav"  # the others give texts, ints or bools
        assert (finding.consequence != causes.NONE) == is_asked


def test_a_path_that_carries_values_comes_before_one_through_a_shape() -> None:
    """Though more ops block it: a JPEG codec beside the shape of the image."""
    codec = [*JPEG[:-1], cast("f", "d", "uint8", "float32")]
    shape = node("shape", "Shape", "x", T="float32")
    before = model(X, *codec, shape, node("y", "Reshape", "f", "shape", T="float32"))
    assert "shape" not in {finding.node.name for finding in one(before).findings}
    fixed = fix(before, ["x"], ["y"])
    assert len(fixed.rules) == len(fixed.flowing) == 1
    alone = model(X, shape, node("c", "Const"), node("y", "Fill", "shape", "c"))
    assert [finding.kind for finding in one(alone).findings] == ["shape"]


WORKS = {"straight_through": True}


@pytest.mark.parametrize("first", ["default", "zero"])
def test_a_rule_is_tried_before_it_is_offered(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply` refuses the one, and with the other no gradient flows: the next rule is offered."""
    monkeypatch.setitem(causes.STAND_INS, "Sign", {"override_gradient": first})
    graph = model(X, node("s", "Sign", "x"), node("y", "Tanh", "s"))
    [finding] = one(graph).findings
    assert [rule["patch"] for rule in finding.rules] == [WORKS]
    assert finding.document()["tried"]
    [shown] = graphpatch.view(graph).document()["tables"]["findings"]
    assert (shown["rule"]["patch"], shown["tried"]) == (WORKS, True)
    assert [rule["patch"] for rule in fix(graph, ["x"], ["y"]).rules] == [WORKS]


def test_a_rule_that_fails_alone_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(causes.TRUE_GRADIENTS, "LinSpace", {"override_gradient": "default"})
    count = node("n", "Const", dtype="int32")
    ops = count, node("s", "LinSpace", "x", "x", "n"), node("r", "Round", "s")
    graph = model(X, *ops, node("y", "Tanh", "r"))
    shown = graphpatch.view(graph).document()["tables"]["findings"]
    for findings in (one(graph).document()["findings"], shown):
        said = {item["op"]: item for item in findings}
        assert said["r"]["rule"]["patch"] == WORKS
        assert said["s"]["rule"] is None
        assert said["s"]["remedy"].startswith("none: its rule was tried here, and ")
        assert "LinSpace 's' has no override to take off" in said["s"]["remedy"]


def test_in_a_large_model_no_rule_is_tried_as_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphpatch.analysis.doctor.survey.MOST_TRIED", 2)
    graph = model(X, node("s", "Sign", "x"), node("y", "Tanh", "s"))
    [finding] = one(graph).document()["findings"]
    assert (finding["tried"], finding["rule"]["patch"]) == (False, causes.STAND_INS["Sign"])
    assert finding["remedy"].endswith("; not tried, as the model is large: doctor --fix tries it")
    assert len(fix(graph, ["x"], ["y"]).flowing) == 1


@pytest.mark.parametrize("patch", [{"formula": "dy * where(x > 0, 1, 0.1)"}, {"registered": "Up"}])
def test_what_an_unknown_op_is_offered_apply_takes(patch: Any) -> None:
    """DeePMD's ProdEnvMatA: its attrs tell no dtype of its outputs."""
    of_library = node("e", "ProdEnvMatA", "x")
    graph = model(X, of_library, const("c"), node("y", "MatMul", "e", "c"))
    [finding] = one(graph).findings
    assert finding.remedy == (
        "register one where its library is loaded (tf.RegisterGradient), give it one by a formula "
        "(override_gradient), or differentiate with respect to y:0, downstream of it"
    )
    rules = [{"match": {"op": "ProdEnvMatA"}, "patch": {"override_gradient": patch}}]
    result = graphpatch.apply(rules, graph)
    assert [rule["emit"] for rule in result.report["rules"]] == ["attr"]
    rules = [{"match": {"op": "ProdEnvMatA"}, "patch": {"stop_gradient": True}}]
    with pytest.raises(PatchError, match="its outputs are not known; only override_gradient by a"):
        graphpatch.apply(rules, graph)


def test_what_cannot_be_an_end_is_named_with_what_can() -> None:
    graph = model(X, node("y", "Tanh", "x"))
    with pytest.raises(ModelError, match="inputs: x:0"):
        graphpatch.diagnose(graph, "input:0")
    with pytest.raises(ModelError, match=r"no tensor .* named 'Y'; nearest: y"):
        survey(graph, ["x"], ["Y"])
    of_constants = [const("x"), *loop()[1:], node("array", "TensorArrayV3", "one")]
    for nodes in ([const("c"), node("y", "Tanh", "c")], of_constants):
        says = missing_end(model(*nodes).graphs[0])
        assert says.endswith("name a source with --from, for example y:0")
    used = net("""n:Const c:Const zeros:Fill(n, c) w:VariableV2(dtype=float32) as:Assign(w, zeros)
        y:Mul(w, r) r:Real(o) o:_Arg(T=float32)""")
    says = missing_end(model(*used).graphs[0])
    assert says.endswith("for example o:0, w:0, y:0, r:0, zeros:0")


def test_what_a_signature_gives_is_asked_for_though_it_is_read(tmp_path: Path) -> None:
    """As an estimator's scores are, whose shape an op reads for another output."""
    y = node("y", "Relu", "x", T="float32")
    meta = metagraph(graphdef(node("x", "Placeholder", dtype="float32"), y), "serve")
    meta.graph_def.node.append(node("shape", "Shape", "y", T="float32"))
    meta.signature_def["predict"].outputs["scores"].name = "y:0"
    found = graphpatch.diagnose(saved_model_folder(tmp_path, meta))
    pairs = found.document()["graphs"][0]["pairs"]
    assert [(one["to"], one["verdict"]) for one in pairs] == [("shape:0", "none"), ("y:0", "flows")]


LOOSE = [node("s", "Switch", "x"), node("e", "Exit", "s"), node("y", "AddV2", "e", "s:1")]
ODD = ("MatMul x", "MatMul x x x", "Conv2D x", "Reshape x", "Mean x")
BROKEN: dict[str, list[NodeDef]] = {
    "a call of no function": [node("call", "PartitionedCall", "x"), node("y", "Relu", "call")],
    "a Switch that nothing decides": LOOSE,
    **{text: [node("odd", *text.split()), node("y", "Relu", "odd")] for text in ODD},
    **{
        op: [node("odd", op, is_constant=True, frame_name="f"), *net("s:AddV2(odd, x) y:Relu(s)")]
        for op in ("Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "Exit")
    },
}


@pytest.mark.parametrize("case", BROKEN)
def test_of_broken_graphs_it_is_said_what_can_be(case: str) -> None:
    broken = model(X, *BROKEN[case])
    assert graphpatch.diagnose(broken).document()["graphs"]
    assert graphpatch.view(broken).document()["graphs"]


def test_a_name_that_no_tensor_can_have() -> None:
    with pytest.raises(ModelError, match="'a:b'"):
        graphpatch.diagnose(model(X, node("a:b", "Relu", "x"), node("y", "Relu", "a:b")))


@pytest.mark.parametrize("op", ["f", "PartitionedCall"])
def test_a_call_that_gives_more_than_the_function_takes(op: str) -> None:
    """`doctor` and `view` looked for the argument, and raised IndexError."""
    call = node("call", op, "x", "x")
    if op != "f":
        call.attr["f"].func.name = "f"
    body = graphs.function("f", [], [node("r", "Round")], {"b": "r:y:0"})
    broken = model(X, call, node("y", "Relu", "call"), functions=[body])
    assert all(ask(broken).document()["graphs"] for ask in (graphpatch.diagnose, graphpatch.view))


SIGN = {"name": "signs", "match": {"op": "Sign"}, "patch": {"straight_through": True}}
HALF = {"override_gradient": {"formula": "dy * 0.5"}}
TANH = {"name": "halves", "match": {"op": "Tanh"}, "patch": HALF}
CARRIED, KEYED = {**TANH, "emit": "function"}, {**TANH, "emit": "attr"}
STOP = {"name": "bad", "match": {"op": ["Exp", "Relu"]}, "patch": {"stop_gradient": True}}
ONE_SIDE = {
    "name": "bad",
    "match": {"op": "FloorDiv"},
    "patch": {"override_gradient": {"formula": ["dy", None]}},
}


def patched_and_read(folder: Path, rules: list[Any], *nodes: Any) -> graphpatch.Model:
    """The model with the rules, as it is read from its file."""
    inner = graphs.function("f", ["a"], [node("r", "Relu", "a")], {"b": "r:activations:0"})
    original = graphs.graphdef(node("x", "Placeholder"), const("w"), *nodes, functions=[inner])
    graphpatch.apply(rules, original).save(folder / "patched.pb")
    return graphpatch.load(folder / "patched.pb")


# Rules, ops, what a Session and a tape give, what is found, and what is said.
A = node("a", "Tanh", "x")
PATCHED: dict[str, tuple[list[Any], list[Any], str, str, list[str], list[str]]] = {
    "a tape drops what a function carries": (
        [CARRIED], [A, Y], "flows", "error", ["carried"],
        ["rule 'halves' carries its gradient in a function", "register_gradients"]),
    "a key of ours": (
        [KEYED], [node("y", "Tanh", "x")], "error", "error", ["our_key"],
        ["graphpatch.register_gradients(FILE)"]),
    "a Sign that counts as the identity": (
        [SIGN], [node("a", "Sign", "x"), Y], "flows", "flows", [], []),
    "beside another rule": (
        [SIGN, CARRIED], [node("a", "Sign", "x"), Y], "flows", "error", ["carried"], []),
    "stop_gradient": (
        [STOP], [node("a", "Exp", "x"), node("y", "Sin", "a")], "none", "none", ["our_rule"],
        ["rule 'bad' stops it here", "graphpatch revert FILE --rule 'bad'"]),
    "null": (
        [ONE_SIDE], [node("a", "FloorDiv", "w", "x"), node("y", "Sin", "a")], "none", "none",
        ["our_rule"], ["rule 'bad' stops it here", "graphpatch revert FILE --rule 'bad'"]),
    "stop_gradient in a function": (
        [STOP], [node("y", "f", "x")], "zero", "error", ["our_rule", "carried"],
        ["rule 'bad' stops it here"]),
}  # fmt: skip


@pytest.mark.parametrize("case", PATCHED)
def test_what_rules_did_is_told(case: str, tmp_path: Path) -> None:
    rules, nodes, verdict, tape, kinds, said = PATCHED[case]
    model = patched_and_read(tmp_path, rules, *nodes)
    found = one(model)
    assert (found.verdict, found.tape) == (verdict, tape)
    assert [finding.kind for finding in found.findings] == kinds
    texts = " ".join(f"{finding.what} {finding.remedy}" for finding in found.findings)
    assert all(text in texts for text in said)
    fixed = fix(model, ["x"], ["y"])
    assert (fixed.rules, len(fixed.left)) == ([], verdict != "flows")


def test_rules_that_stop_gradients_are_not_about_activations(tmp_path: Path) -> None:
    """Whoever freezes a tower has not forgotten its ReLUs; whoever overrides one may have."""
    nodes = net("a:Relu(x) b:Elu(a) e:Exp(b) y:Identity(e)")
    half = {"match": {"op": "Relu"}, "patch": HALF}
    stop_relu = {"match": {"op": "Relu"}, "patch": {"stop_gradient": True}}
    for rules, told in (([STOP], False), ([stop_relu], False), ([half], True)):
        model = patched_and_read(tmp_path, rules, *nodes)
        [graph] = graphpatch.diagnose(model, "x", "y").document()["graphs"]
        kinds = {note["kind"] for note in graph["notes"]}
        assert ("activations" in kinds) is told, rules


def test_what_a_tape_alone_drops_is_told_apart(run_cli: Any, tmp_path: Path) -> None:
    """A Session ends at the Round alone; that a tape drops a function is not why it is None."""
    nodes = node("r", "Round", "x"), node("a", "Tanh", "r"), node("y", "Tanh", "a")
    model = patched_and_read(tmp_path, [CARRIED], *nodes)
    found = one(model)
    assert (found.verdict, found.tape) == ("none", "none")
    told = {finding["kind"]: finding["tape_only"] for finding in found.document()["findings"]}
    assert told == {"step": False, "carried": True}
    assert [finding.kind for finding in found.of_session] == ["step"]
    done = run_cli("doctor", model.path, "--from", "x", "--to", "y")
    lines = [line for line in done.stdout.splitlines() if line.startswith(("  blocked", "  on a"))]
    assert lines[:2] == [
        "  blocked  Round r, input 0",
        "  on a tape: the gradient is None too, and besides:",
    ]
    assert len(lines) == 3


def test_a_session_and_a_tape_number_forms_of_ops_together() -> None:
    """What is known of one form was told of another, and a gradient that flows was zero."""
    [doctor] = doctors(graphpatch.load(graphs.sample()))
    main = doctor.session.graph.main
    assert doctor.session.wiring(main) is doctor.tape.wiring(main)

from __future__ import annotations

from pathlib import Path

import pytest

import graphpatch
from graphpatch.analysis import ops
from graphpatch.formats import load
from graphpatch.protos import GraphDef
from tests import graphs
from tests.conftest import Run
from tests.graphs import node, saved
from tests.patches.one_op import net


def types(lines: list[str]) -> list[str]:
    """The lines of op types: those that begin with a count."""
    return [line for line in lines if line.split()[0].isdigit()]


def test_op_types_with_their_counts(run_cli: Run, model_file: Path) -> None:
    done = run_cli("ops", model_file)
    assert (done.code, done.stderr) == (0, "")
    first, *lines = done.stdout.splitlines()
    assert first == f"{model_file}: GraphDef, 11 ops, 1 functions"
    lines = types(lines)
    assert [" ".join(line.split()[:2]) for line in lines] == [
        *("2 Identity", "2 Relu", "1 Const", "1 Mul", "1 NoOp", "1 Placeholder"),
        *("1 Relu6", "1 Round", "1 f"),
    ]
    gradients = {line.split()[1]: line.split(maxsplit=2)[2] for line in lines}
    assert gradients["Relu"] == "default"
    assert gradients["Const"] == "none: TensorFlow registers it as not differentiable"
    assert gradients["Placeholder"] == "none: TensorFlow has no gradient for it (LookupError)"
    assert gradients["f"] == "that of the function it calls"


def test_inputs_and_outputs_come_first(run_cli: Run, tmp_path: Path) -> None:
    nodes = net("""image:Placeholder(dtype=float32) v:VariableV2(dtype=float32)
        y:Relu(image, T=float32) z:Shape(image, T=float32, out_type=int32)""")
    for size in (-1, 8):
        nodes[0].attr["shape"].shape.dim.add(size=size)
    meta = graphs.metagraph(graphs.graphdef(*nodes), "serve")
    signature = meta.signature_def["serving_default"]
    signature.inputs["pixels"].name, signature.outputs["scores"].name = "image:0", "y:0"
    path = tmp_path / "m.pbtxt"
    path.write_text(str(meta))
    assert run_cli("ops", path).stdout.splitlines()[1:4] == [
        "  inputs    image:0  float32  [?, 8]  serving_default: pixels",
        "  outputs   y:0      float32  [?, 8]  serving_default: scores",
        "  weights   1 variable",
    ]
    [graph] = run_cli("ops", path, "--json").json["graphs"]
    assert (graph["tags"], graph["variables"]) == ("serve", 1)
    assert [tensor["signatures"] for tensor in graph["outputs"]] == [["serving_default: scores"]]


def test_of_many_outputs_the_first_are_listed(run_cli: Run, tmp_path: Path) -> None:
    heads = [node(f"y{number}", "Relu", "x") for number in range(23)]
    path = saved(tmp_path, node("x", "Placeholder"), *heads)
    lines = run_cli("ops", path).stdout.splitlines()
    assert lines[2].split()[:2] == ["outputs", "y0:0"]
    assert lines[22].strip() == "and 3 more; --json lists all"
    assert len(run_cli("ops", path, "--json").json["graphs"][0]["outputs"]) == 23


def test_each_graph_of_a_model_has_its_own(run_cli: Run, tmp_path: Path) -> None:
    metas = [graphs.metagraph(graphs.sample(), tag) for tag in ("serve", "train")]
    said = run_cli("ops", graphs.saved_model_folder(tmp_path / "saved", *metas)).stdout
    assert [tag in said for tag in ("  graph     serve\n", "  graph     train\n")] == [True] * 2
    assert said.count("\n  inputs ") == 2


def test_a_name_tells_type_and_inputs(run_cli: Run, model_file: Path) -> None:
    """What users of gradient_override_map must find out first: `Multiply` is of type Mul."""
    lines = run_cli("ops", model_file, "Multiply").stdout.splitlines()
    assert lines[1:4] == ["  type      Mul", "  inputs    x", "            w/read"]


NAMES = {
    "round": "round",
    "round:0": "round",
    "^round": "round",
    "relu": "relu f:relu",
    "tower/*": "tower/relu6",
    "**relu*": "relu tower/relu6 f:relu",
    "x w/*": "x w/read",
    "--all": "x w w/read Multiply relu tower/relu6 round call out done f:relu",
}


@pytest.mark.parametrize("typed", NAMES)
def test_ops_by_name(run_cli: Run, model_file: Path, typed: str) -> None:
    args, names = typed.split(), NAMES[typed].split()
    done = run_cli("ops", model_file, *args, "--json")
    assert (done.code, done.stderr) == (0, "")
    bodies = [(op["body"], op["name"]) for op in done.json["ops"]]
    assert [name if body == "main" else f"{body}:{name}" for body, name in bodies] == names
    assert run_cli("ops", model_file, *args).stdout.count("  gradient  ") == len(names)


GRADIENTS = {
    "default": ("n:Relu(x)", "default"),
    "default error": ("n:PreventGradient(x)", "default, which is always an error"),
    "none": ("n:Shape(x)", "none: TensorFlow registers it as not differentiable"),
    "missing": ("n:Mfcc(x, x)", "none: TensorFlow has no gradient for it (LookupError)"),
    "overridden": ("n:Relu(x, _gradient_op_type=GuidedRelu)", "overridden by GuidedRelu"),
    "unknown": ("n:ZeroOut(x)", "unknown: the op type is not TensorFlow's"),
}


@pytest.mark.parametrize("state", GRADIENTS)
def test_what_the_gradient_of_an_op_is(run_cli: Run, tmp_path: Path, state: str) -> None:
    text, words = GRADIENTS[state]
    path = saved(tmp_path, *net(f"x:Placeholder {text}"))
    assert run_cli("ops", path, "n").stdout.splitlines()[-1] == f"  gradient  {words}"
    [op] = run_cli("ops", path, "n", "--json").json["ops"]
    gradient = op["gradient"]
    assert [gradient["state"], gradient.get("gives", "")] == [*state.split(), ""][:2]
    assert gradient.get("key") == ("GuidedRelu" if state == "overridden" else None)


def test_a_name_that_is_not_there_gets_the_nearest(run_cli: Run, model_file: Path) -> None:
    done = run_cli("ops", model_file, "Multipyl", "relu")
    assert (done.code, done.stdout.splitlines()[0]) == (1, "relu")
    said = f"graphpatch: {model_file}: no op is named 'Multipyl'; nearest: Multiply\n"
    assert done.stderr == said
    done = run_cli("ops", model_file, "relu:1")
    assert done.stderr.endswith("'relu:1': Relu 'relu' has 1 output, counted from 0\n")


def test_a_broken_graph_is_shown_with_a_note(run_cli: Run, tmp_path: Path) -> None:
    path = saved(tmp_path, *net("a:ZeroOut(gone) a:NoOp"))
    done = run_cli("ops", path, "--json")
    assert (done.code, done.json["types"]) == (0, {"NoOp": 1, "ZeroOut": 1})
    assert done.json["graphs"] == []
    assert done.stderr.splitlines() == [
        f"note: {path}: the main graph: 1 names are not unique: 'a'",
        "note: TensorFlow does not know op type ZeroOut ('a'): it needs its library",
    ]


def test_long_values_are_cut_in_words_and_whole_in_json(run_cli: Run, tmp_path: Path) -> None:
    path = saved(tmp_path, node("n", "NoOp", _note=b"x" * 500))
    [line] = [line for line in run_cli("ops", path, "n").stdout.splitlines() if "_note" in line]
    assert line.endswith("xxx...")
    assert len(line) < 110
    assert run_cli("ops", path, "n", "--json").json["ops"][0]["attrs"]["_note"] == "x" * 500


def test_op_types_tell_which_ops_have_another_gradient(run_cli: Run, tmp_path: Path) -> None:
    patched = tmp_path / "p.pb"
    keys = {"flip": "Neg", "other": "Mine", "half": "Half", "third": "Third", "fourth": "Fourth"}
    more = " ".join(f"{name}:Identity(x, _gradient_op_type={key})" for name, key in keys.items())
    path = saved(
        tmp_path,
        *net(f"""x:Placeholder plain:Identity(x) {more}
        again:Identity(x, _gradient_op_type=Neg) one:Sign(x, _gradient_op_type=Mine)
        two:Sign(x, _gradient_op_type=Mine) round:Round(x)"""),
    )
    rule = {"name": "pass", "match": {"op": "Round"}, "patch": {"straight_through": True}}
    graphpatch.apply([rule], path).save(patched)
    lines = types(run_cli("ops", patched).stdout.splitlines())
    words = {line.split()[1]: line.split(maxsplit=2)[2] for line in lines}
    assert words == {
        "Identity": "default; 2 overridden by Neg, 1 overridden by Mine, 1 overridden by Half"
        " and 2 more",
        "Sign": "overridden by Mine",
        "Round": "straight_through, by rule 'pass'",
        "Placeholder": "none: TensorFlow has no gradient for it (LookupError)",
    }


def test_op_types_of_a_patched_model_are_those_of_the_model(run_cli: Run, tmp_path: Path) -> None:
    """Rules put calls in the place of ops, and functions beside them: none of these counts."""
    patched = tmp_path / "p.pb"
    path = saved(tmp_path, *net("x:Placeholder relu:Relu(x) last:Relu(relu) y:Tanh(last)"))
    guided, clip = {"override_gradient": "guided_relu"}, {"clip": {"min": -1, "max": 1}}
    rules = [
        {"name": "guided", "match": {"name": "relu"}, "patch": guided},
        {"name": "clip", "match": {"op": "Tanh"}, "patch": {"filter_gradient": clip}},
    ]
    graphpatch.apply(rules, path).save(patched)
    counted = ops.count_model_ops(load(patched))
    assert counted.types == {"Relu": 2, "Placeholder": 1, "Tanh": 1}
    assert counted.by_rules == load(patched).node_count - 4
    assert counted.patched == {
        "Relu": {"guided_relu, by rule 'guided'": 1},
        "Tanh": {"filter_gradient clip(min=-1, max=1), by rule 'clip'": 1},
    }
    lines = types(run_cli("ops", patched).stdout.splitlines())
    assert lines[0].split(maxsplit=2)[2] == "default; 1 guided_relu, by rule 'guided'"
    added = f"{counted.by_rules}  of the ops were added by rules; `graphpatch diff` lists them"
    assert lines[-1].strip() == added
    assert ops.count_model_ops(load(path)).types == counted.types


def test_an_override_whose_function_is_gone_is_none(run_cli: Run, tmp_path: Path) -> None:
    rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
    path = tmp_path / "patched.pb"
    graphpatch.apply([rule], saved(tmp_path, *net("x:Placeholder n:Relu(x)"))).model.save(path)
    message = GraphDef.FromString(path.read_bytes())
    message.library.Clear()
    path.write_bytes(message.SerializeToString())
    lines = run_cli("ops", path, "n").stdout.splitlines()
    assert "  gradient  unknown: the op type is not TensorFlow's" in lines

"""The models and rules that are mutated: small ones of every kind."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import graphpatch
from graphpatch.formats.load import opened
from graphpatch.graph.attrs import DTYPE_NUMBERS
from graphpatch.names import op_of
from graphpatch.protos import GraphDef, NodeDef
from tests import graphs
from tests.graphs import function, graphdef, node

ROOT = Path(__file__).parents[2]
LARGEST = 40_000  # bytes of a real model that is mutated

RULES: list[dict[str, Any]] = [
    {"match": {"op": ["Relu", "Relu6"]}, "patch": {"override_gradient": "guided_relu"}},
    {"match": {"op": "*Relu*"}, "patch": {"override_gradient": "zero"}, "emit": "attr"},
    {"match": {"name": "**"}, "patch": {"stop_gradient": True}},
    {"match": {"op": "Mul"}, "patch": {"filter_gradient": {"reverse": {"strength": 0.3}},
        "at": "inputs"}},
    {"match": {"name_regex": ".*(relu|round|add).*"}, "patch": {"straight_through": True}},
    {"match": {"op": ["Mul", "Add", "AddV2", "Sub"]},
     "patch": {"override_gradient": {"formula": ["dy * x1", None]}}},
    {"match": {"any": [{"op": "Relu"}, {"op": "Tanh"}]},
        "patch": {"surrogate_gradient": "tanh(4 * x)"}},
    {"match": {"op": "Relu"}, "patch": {"backward_as": {"input": 0}}},
    {"match": {"pattern": "Conv2D|MatMul|Mul -> act:Relu|Relu6"},
     "patch": {"stop_gradient": True, "on": "act"}},
    {"match": {"pattern": "a:Mul -> b:Relu", "body": "main"},
     "patch": {"override_gradient": {"formula": "dy"}, "on": "match"}},
    {"match": {"value": {"near": 1, "tolerance": 0.5}}, "patch": {"stop_gradient": True}},
    {"match": {"op": "*", "inputs": {"any": {"op": "Placeholder"}}, "dtype": "float32"},
     "patch": {"filter_gradient": {"clip": {"min": -1, "max": 1}}}},
    {"match": {"between": {"from": "x", "to": ["out", "relu"]}, "op": "Relu*"},
     "patch": {"filter_gradient": {"clip_by_norm": {"norm": 2}}}},
    {"match": {"body": "*", "op": "Relu"}, "patch": {"override_gradient": {"registered": "My"}}},
    {"match": {"body": "main", "op": ["Re*", "Mul"]}, "patch": {"stop_gradient": True}},
    {"match": {"body": "main", "op": "Relu*"}, "patch": {"override_gradient": "guided_relu"}},
    {"match": {"op": "Relu"}, "patch": {"override_gradient":
        {"formula": "dy * w", "constants": {"w": {"shape": [1], "float32": "AAAAPw=="}}}}},
    {"match": {"op": ["Relu", "Tanh"]}, "patch": {"override_gradient":
        {"deeplift_rescale": {"reference": [0.5]}}}},
]  # fmt: skip

RECIPES = [
    "@guided_backprop", "@deconvnet", "@rectified_gradient(q=0.9)", "@deeplift", "@lrp_epsilon",
    "@lrp_composite(epsilon=0.01, first=Multiply)", "@straight_through(name=**)",
    "@reverse(at=relu, strength=0.5)", "@reverse(at=**)", "@freeze(scope=w*)",
]  # fmt: skip

PATTERNS = [
    "Mul -> Relu", "a:* -> b:Relu; !Tanh -> b", "x:_ -> Mul; x -> Relu?", "Mul ->+ Relu|Relu6 -> *",
    "Const=1~0.5 -> Mul:1", "Placeholder ->+ * -> MatMul", "a:Mul[0] -> b:AddV2:0; a -> b:1",
    "@conv_bias_activation", "NoOp ^-> NoOp", "Switch -> *? -> NextIteration",
]  # fmt: skip

FORMULAS = [
    "dy * x1", "where(x > 0 and dy > 0, dy, 0)", "dy * (y + 1)",
    "sum(dy * x, axis=-1, keepdims=true)",
    "clip(dy, -1, 1) ** 2", "attr.alpha * dy", "where(norm(dy) == 0, 0, dy / norm(dy))",
    "matmul(dy, transpose(x1))", "dy0 + dy1", "-3.5e-2 * dy", "max(abs(x), from_axis=1)",
]  # fmt: skip

GLOBS = [
    "**/relu",
    "*",
    "**",
    "tower/*",
    "*relu*",
    "a?b",
    "**/conv*/**",
    "r[a-z]lu",
    "(a+)+$",
    ".*",
]


@functools.cache
def models() -> list[tuple[str, bytes]]:
    """Names and contents: GraphDefs, MetaGraphs, text, patched ones; real ones where they are."""
    built = {
        "sample": graphs.sample(),
        "loop": graphdef(
            node("x", "Placeholder"),
            *graphs.v1_loop("x", node("relu", "Relu", "switch:1"), gives="relu"),
            node("out", "Tanh", "exit"),
        ),
        "calls": graphdef(
            node("x", "Placeholder"),
            node("f", "PartitionedCall", "x", Tin=["float32"], Tout=["float32"]),
            node("g", "g", "x"),
            node("sum", "AddV2", "f", "g"),
            functions=[
                function("f", ["a"], [node("g", "g", "a")], {"b": "g:b:0"}),
                function(
                    "g",
                    ["a"],
                    [node("r", "Relu", "a"), node("m", "Mul", "r:activations:0", "a")],
                    {"b": "m:z:0"},
                ),
            ],
        ),
        "control": _control(),
        "branch": _branch(),
        "wide": graphdef(
            node("x", "Placeholder"),
            *(node(f"s/r{k}", "Relu", "x") for k in range(20)),
            node("sum", "AddN", *(f"s/r{k}" for k in range(20)), N=20),
            node("half", "Cast", "sum", SrcT="float32", DstT="float16"),
        ),
    }
    found = [(f"{name}.pb", graph.SerializeToString()) for name, graph in built.items()]
    found.append(("sample.pbtxt", str(built["sample"]).encode()))
    found.append(("sample.meta", graphs.metagraph(graphs.sample(), "serve").SerializeToString()))
    for name in ("sample", "loop", "calls", "control", "branch"):
        found += _patched(name, built[name].SerializeToString())
    return found + _real()


@functools.cache
def ends(raw: bytes, label: str) -> tuple[list[str], list[str]]:
    """Return what a model is fed with, and the tensors that no op reads: those that it may give."""
    body = opened(raw, label).graphs[0].main
    fed = [one.name for one in body if one.op.startswith("Placeholder")]
    read = {op_of(text) for one in body for text in one.data_inputs}
    last = [one.name for one in body if one.name not in read and one.op != "NoOp"]
    names = body.heads.names
    return fed or names[:1], last or names[-1:]


def _control() -> GraphDef:
    """Return an If, a Case and a While, which call functions that call functions."""
    lists = {"Tin": ["float32"], "Tout": ["float32"]}
    functions = [
        function("k", ["a"], [node("r", "Round", "a"), node("t", "Tanh", "r:y:0")], {"b": "t:y:0"}),
        function("f", ["a"], [_calling("c", "PartitionedCall", "a", f="k", **lists)],
            {"b": "c:output:0"}),
        function("g", ["a"], [node("r", "Relu", "a"), node("m", "Mul", "r:activations:0", "a")],
            {"b": "m:z:0"}),
        function("on", ["a"], [node("n", "IsFinite", "a")], {"b": "n:y:0"}),
    ]  # fmt: skip
    functions[-1].signature.output_arg[0].type = DTYPE_NUMBERS["bool"]
    chosen = node("n", "Const", dtype="int32")
    chosen.attr["value"].tensor.dtype = DTYPE_NUMBERS["int32"]
    chosen.attr["value"].tensor.int_val.append(1)
    branches = _calling("case", "Case", "n", "relu", **lists)
    for name in "fg":
        branches.attr["branches"].list.func.add(name=name)
    return graphdef(
        node("x", "Placeholder"),
        node("p", "Placeholder", dtype="bool"),
        chosen,
        _calling("if", "If", "p", "x", then_branch="f", else_branch="g", Tcond="bool", **lists),
        node("relu", "Relu", "if"),
        branches,
        _calling("while", "While", "case", cond="on", body="g", T=["float32"]),
        node("out", "Identity", "while"),
        functions=functions,
    )


def _calling(name: str, op: str, *inputs: str, **attrs: Any) -> NodeDef:
    """Return an op that calls functions, which attrs name."""
    keys = {"f", "then_branch", "else_branch", "cond", "body"}
    found = node(name, op, *inputs, **{key: attrs[key] for key in attrs.keys() - keys})
    for key in keys & attrs.keys():
        found.attr[key].func.name = attrs[key]
    return found


def _branch() -> GraphDef:
    """Return a v1 branch in a v1 branch, with a loop behind."""
    return graphdef(
        node("x", "Placeholder"),
        node("p", "Placeholder", dtype="bool"),
        node("outer", "Switch", "x", "p"),
        node("inner", "Switch", "outer:1", "p"),
        node("relu", "Relu", "inner:1"),
        node("round", "Round", "inner"),
        node("merged", "Merge", "round", "relu", N=2),
        node("Multiply", "Mul", "merged", "merged"),
        node("out", "Merge", "outer", "Multiply", N=2),
        *graphs.v1_loop("out", node("add", "AddV2", "switch:1", "switch:1"), gives="add"),
        node("y", "Tanh", "exit"),
    )


def _patched(name: str, raw: bytes) -> list[tuple[str, bytes]]:
    """Return a model after each of the rules that fit it."""
    folder = ROOT / "build" / "fuzzing"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.pb").write_bytes(raw)
    found = []
    for number, rule in enumerate(RULES):
        try:
            result = graphpatch.apply([rule], graphpatch.load(folder / f"{name}.pb"))
        except graphpatch.GraphpatchError:
            continue  # a rule for other models
        path = folder / f"{name}-{number}.pb"
        path.unlink(missing_ok=True)
        result.model.save(path)
        found.append((path.name, path.read_bytes()))
    return found


def _real() -> list[tuple[str, bytes]]:
    named = os.environ.get("GRAPHPATCH_MODELS")
    folder = Path(named) if named else ROOT.parent / "shared" / "models"
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    small = [one for one in paths if one.suffix in {".pb", ".pbtxt", ".meta"} and one.is_file()]
    return [
        (f"{number}{one.suffix}", one.read_bytes())
        for number, one in enumerate(small)
        if one.stat().st_size <= LARGEST and "saved_model" not in one.name
    ]


def rules_file(rules: list[dict[str, Any]]) -> bytes:
    """Return a rules file that goes on where a rule matches nothing."""
    loose = [{"expect": {"min": 0}, **rule} for rule in rules]
    return json.dumps({"version": 1, "rules": loose}).encode()

"""Each key of a rules file: what it means, and an example that applies to scripts/models/digits.pb.

A key that the schema has and this table lacks is an error of `scripts/reference.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOP = {"stop_gradient": True}
RELU = {"op": "Relu"}


@dataclass(frozen=True)
class Key:
    """What a key means, and a rule that has it."""

    means: str
    rule: Mapping[str, Any]


def matched(means: str, patch: Mapping[str, Any] = STOP, **match: Any) -> Key:
    """A key that an example of a match shows."""
    return Key(means, {"match": match, "patch": patch})


def patched(means: str, op: str = "Relu", **patch: Any) -> Key:
    """A key that an example of a patch shows."""
    return Key(means, {"match": {"op": op}, "patch": patch})


def in_pattern(means: str, **pattern: Any) -> Key:
    """A key of a pattern in JSON."""
    return matched(means, pattern=pattern)


_NODES = {"norm": {"op": "FusedBatchNorm*"}, "act": {"op": "Relu*"}}
_DENSE = {"add": {"op": "BiasAdd"}, "act": {"op": "Relu"}, "drop": {"op": "RealDiv"}}

RULE = {
    "match": matched("which ops; every key that is given must hold", op="Relu"),
    "patch": patched(
        "what happens to each of these ops: exactly one kind of patch, and its options",
        override_gradient="guided_relu",
    ),
    "name": Key(
        "what reports and `revert --rule` call the rule. Default: `rule 1`, `rule 2`, ...",
        {"name": "freeze the pools", "match": {"op": "MaxPool"}, "patch": STOP},
    ),
    "expect": Key(
        "how often the rule must match. Default: at least once",
        {"match": {"op": "Relu*"}, "patch": STOP, "expect": 3},
    ),
    "emit": Key(
        "[how the gradient is stored](../stored-gradients.md). Default: `--emit`, or `auto`",
        {"match": RELU, "patch": {"override_gradient": "guided_relu"}, "emit": "function"},
    ),
}

EXPECT = {
    "min": Key("the least number of matches", {"match": RELU, "patch": STOP, "expect": {"min": 0}}),
    "max": Key(
        "the largest number. Default: no limit",
        {"match": RELU, "patch": STOP, "expect": {"min": 1, "max": 4}},
    ),
}

MATCH = {
    "op": matched("the op type, a list of them, or a glob", op=["Relu", "Relu6"]),
    "name": matched(
        "the name, a list, or a glob: `*` stays within one scope, `**` crosses `/`",
        name="block*/**",
        op="Relu*",
    ),
    "name_regex": matched(
        "a regular expression that matches the whole name, in "
        "[RE2's syntax](https://github.com/google/re2/wiki/Syntax)",
        name_regex=r"block\d/pool",
    ),
    "attr": matched(
        "attrs of the op: a value, one of several, or `true` and `false` for there or not",
        attr={"strides": [1, 2, 2, 1], "padding": {"in": ["SAME", "VALID"]}, "ksize": True},
    ),
    "dtype": matched("the dtype of output 0, or a list of them", dtype="float32", op="Relu"),
    "inputs": matched(
        'what gives the inputs: by slot (`"0"`), or `"any"`, `"all"`, `"none"` of them',
        op="Relu*",
        inputs={"0": {"op": "FusedBatchNormV3"}},
    ),
    "consumers": matched(
        'what reads the outputs: by output (`"0"`), or `"any"`, `"all"`, `"none"`',
        op="Relu*",
        consumers={"any": {"op": "MaxPool"}},
    ),
    "value": matched(
        "the op is a Const of this value: a number or a text for every element, a list of the "
        "tensor's shape, or a number with a tolerance",
        value={"near": 7, "tolerance": 0.001},
    ),
    "between": matched(
        "on a path between these tensors", op="Relu*", between={"from": "image", "to": "features"}
    ),
    "upstream_of": matched(
        "these tensors are computed from it; their own ops belong to it",
        op="Relu*",
        upstream_of="features",
    ),
    "downstream_of": matched(
        "it is computed from these tensors", op="Relu*", downstream_of="features"
    ),
    "body": matched(
        '`"main"`, or a function by name or glob. Default: all bodies', op="Relu", body="main"
    ),
    "any": matched(
        "at least one of these matches holds", any=[{"op": "Relu6"}, {"name": "dense/*"}]
    ),
    "all": matched("all of these matches hold", all=[{"op": "Relu*"}, {"upstream_of": "features"}]),
    "not": Key(
        "this match does not hold",
        {"match": {"op": "Relu*", "not": {"name": "dense/**"}}, "patch": STOP},
    ),
    "pattern": matched(
        "a small graph, [as text or JSON](patterns.md), a ready one (`@swish`), or a list",
        pattern="FusedBatchNormV3 -> act:Relu|Relu6",
    ),
    "control": matched(
        "`true`: `inputs`, `consumers`, `between`, `upstream_of` and `downstream_of` beside it "
        "follow control edges too",
        op="Relu*",
        upstream_of="logits",
        control=True,
    ),
}

VALUES = {
    "OneOf.in": matched("one of these values", op="Conv2D", attr={"padding": {"in": ["SAME"]}}),
    "Near.near": matched("a number, or a list of the tensor's shape", value={"near": 7}),
    "Near.tolerance": matched(
        "how far it may differ, absolutely", value={"near": 7, "tolerance": 0.1}
    ),
    "Between.from": matched(
        "the tensors at the start", op="MaxPool", between={"from": ["image"], "to": "logits"}
    ),
    "Between.to": matched(
        "the tensors at the end", op="MaxPool", between={"from": "image", "to": ["features"]}
    ),
}

PATTERN = {
    "Pattern.nodes": in_pattern(
        "a match for each op, by the name of your choice", nodes={"act": {"op": "Relu*"}}
    ),
    "Pattern.edges": in_pattern(
        "the links: source, target, and which input and output",
        nodes=_NODES,
        edges=[["norm", "act"]],
    ),
    "Pattern.tensors": in_pattern(
        "names for tensors from outside; a name again is the same tensor",
        nodes={"mul": {"op": "Mul"}},
        edges=[["x", "mul"]],
        tensors=["x"],
    ),
    "Pattern.optional": in_pattern(
        "ops that may be missing",
        nodes=_DENSE,
        edges=[["add", "act"], ["act", "drop"]],
        optional=["act"],
    ),
    "Pattern.absent": in_pattern(
        "ops that must not be there",
        nodes={"act": {"op": "Relu*"}, "shape": {"op": "Shape"}},
        edges=[["act", "shape"]],
        absent=["shape"],
    ),
    "Pattern.closed": in_pattern(
        "`true`: nothing outside reads the ops inside; a list: nothing reads these",
        nodes=_NODES,
        edges=[["norm", "act"]],
        closed=True,
    ),
    "Link.input": in_pattern(
        "the input slot of the target. Default: any",
        nodes=_NODES,
        edges=[["norm", "act", {"input": 0}]],
    ),
    "Link.output": in_pattern(
        "the output of the source. Default: any",
        nodes=_NODES,
        edges=[["norm", "act", {"output": 0}]],
    ),
    "Link.repeat": in_pattern(
        "`true`: the target stands for one or more such ops in a row",
        nodes={"product": {"op": "MatMul"}, "between": {"op": ["BiasAdd", "Relu"]}},
        edges=[["product", "between", {"repeat": True}]],
    ),
    "Link.control": in_pattern(
        "`true`: a control edge. The target runs after the source and does not read it",
        nodes={"a": {"op": "Relu"}, "b": {"op": "MaxPool"}, "c": {"op": "NoOp"}},
        edges=[["a", "b"], ["c", "b", {"control": True}]],
        absent=["c"],
    ),
}

PATCH = {
    "override_gradient": patched(
        "the op's own gradient is replaced by [G](#what-flows-back-g)",
        override_gradient="guided_relu",
    ),
    "filter_gradient": patched(
        "what flows back through the op's outputs passes through [G](#what-flows-back-g)",
        filter_gradient={"clip": {"min": -0.1, "max": 0.1}},
    ),
    "stop_gradient": patched("nothing flows back", op="MaxPool", stop_gradient=True),
    "straight_through": patched(
        "the op counts as the identity of input 0, or of the input that you name",
        op="Round",
        straight_through=True,
    ),
    "surrogate_gradient": patched(
        "the op counts as this formula of its inputs, which TensorFlow differentiates",
        op="Round",
        surrogate_gradient="x0 + sin(6.2832 * x0) / 6.2832",
    ),
    "backward_as": patched(
        "up to the tensors in `until`, the op and all that follows it count as if the op were its "
        "input; [for noise](../guides/noise.md)",
        op="SelectV2",
        backward_as={"input": 1, "until": ["logits"]},
    ),
    "at": patched(
        "beside `filter_gradient` and `stop_gradient`: where. `outputs`, `inputs`, `output:0`, "
        "`input:1`. Default: `outputs`",
        op="MatMul",
        filter_gradient={"scale": 0.5},
        at="input:1",
    ),
    "on": Key(
        "beside any patch of a pattern: to which of its ops it goes, by name. `match`: all of them "
        "as one op. Default: the last op",
        {
            "match": {"pattern": "norm:FusedBatchNormV3 -> act:Relu*"},
            "patch": {"stop_gradient": True, "on": ["norm", "act"]},
        },
    ),
}

OPTIONS = {
    "Input.input": patched(
        "the input that the op counts as. Default: 0", op="Round", straight_through={"input": 0}
    ),
    "Until.input": patched(
        "the input that the op counts as. Default: 0", op="SelectV2", backward_as={"input": 1}
    ),
    "Until.until": patched(
        "the tensors at which it ends. Default: the float tensors at the end of the graph",
        op="SelectV2",
        backward_as={"input": 1, "until": "logits"},
    ),
}

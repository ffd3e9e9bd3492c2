"""Rules on small graphs written as text: `x:Placeholder r:Relu(x) y:Cast(r, DstT=int32)`."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from typing import Any

import graphpatch
from graphpatch.graph.node import Body
from graphpatch.protos import NodeDef
from tests.graphs import graphdef, node, sized

OP = re.compile(r"(?P<name>[^\s:(]+):(?P<op>[\w*]+)(?:\((?P<args>[^)]*)\))?")


def parsed(text: str) -> list[tuple[str, str, list[str], dict[str, Any]]]:
    """The ops of a text: name, op type, inputs and attrs."""
    ops = []
    for found in OP.finditer(text):
        given = re.split(r",(?![^\[]*\])", found["args"] or "")  # not in lists
        args = [arg.strip() for arg in given if arg.strip()]
        attrs = dict(arg.split("=") for arg in args if "=" in arg)
        inputs = [arg for arg in args if "=" not in arg]
        ops.append(
            (found["name"], found["op"], inputs, {k: _value(k, v) for k, v in attrs.items()})
        )
    return ops


def _value(key: str, text: str) -> Any:
    value = ast.literal_eval(text) if re.match(r"[-\d\[]|True|False", text) else text
    return sized(*value) if key == "shape" else value


def net(text: str) -> list[NodeDef]:
    """The NodeDefs of a text."""
    return [node(name, op, *inputs, **attrs) for name, op, inputs, attrs in parsed(text)]


def on_op(op: str, patch: Any, **keys: Any) -> dict[str, Any]:
    """A rule on the ops of this type."""
    return {"match": {"op": op}, "patch": patch, **keys}


def as_one(pattern: str, patch: Any, **keys: Any) -> dict[str, Any]:
    """A rule on the matches of a pattern, each as one op."""
    return {"match": {"pattern": pattern}, "patch": {**patch, "on": "match"}, **keys}


def override(gradient: Any) -> dict[str, Any]:
    """A patch by this gradient."""
    return {"override_gradient": gradient}


def formula(text: Any) -> dict[str, Any]:
    """A patch by a formula."""
    return override({"formula": text})


def applied(rule: Any, nodes: str | list[Any], functions: Any = ()) -> graphpatch.Result:
    """The graph of these nodes with a rule."""
    nodes = net(nodes) if isinstance(nodes, str) else nodes
    return graphpatch.apply([rule], graphdef(*nodes, functions=functions))


def main_of(result: graphpatch.Result) -> Body:
    """The main graph of what was patched."""
    return result.model.graphs[0].main


def assert_has(body: Body, text: str) -> None:
    """Each op of the text is there, with its op type, which may be a glob, inputs and keys."""
    for name, op, inputs, attrs in parsed(text):
        there = body.node(name)
        assert fnmatch(there.op, op), f"{name} is {there.op}"
        assert there.inputs == tuple(inputs), name
        for key, value in attrs.items():
            attr = there.attr(key)
            assert attr is not None
            assert attr.s == value.encode(), name

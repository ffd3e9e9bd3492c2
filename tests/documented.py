"""The examples of docstrings, and the files that they name."""

from __future__ import annotations

import doctest
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import graphpatch
from graphpatch.protos import NodeDef
from graphpatch.runtime.layers import LAYERS
from tests import graphs
from tests.graphs import node, sized
from tests.patches.one_op import net

PUBLIC = {name: getattr(graphpatch, name) for name in graphpatch.__all__}
PUBLIC |= {f"keras.{layer.__name__}": layer for layer in LAYERS}
ERRORS = {
    name
    for name, found in PUBLIC.items()
    if inspect.isclass(found) and issubclass(found, BaseException)
}


def own_methods(found: type) -> dict[str, Any]:
    """The public methods of a class that the package has written, in the order of the text."""
    methods = {
        name: inspect.unwrap(getattr(one, "__func__", one))
        for part in reversed(found.__mro__)
        if part.__module__.startswith("graphpatch")
        for name, one in vars(part).items()
        if not name.startswith("_")
    }
    return {name: one for name, one in methods.items() if inspect.isfunction(one)}


def functions() -> dict[str, Any]:
    """Each public function and method, by its name."""
    found = {}
    for name, one in PUBLIC.items():
        if inspect.isfunction(one):
            found[name] = one
        elif name not in ERRORS:
            found |= {f"{name}.{key}": method for key, method in own_methods(one).items()}
    return found


FUNCTIONS = functions()
EXAMPLES = {
    name: text
    for name, found in {**PUBLIC, **FUNCTIONS}.items()
    if ">>>" in (text := inspect.getdoc(found) or "")
}
_TENSORFLOW = re.compile(r"\btf\.|graphpatch\.(keras|split|register_gradients|rebuild_gradients)\b")
WITH_TENSORFLOW = {name for name, text in EXAMPLES.items() if _TENSORFLOW.search(text)}

RULE = {"name": "guided", "match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}


def write_files(folder: Path) -> None:
    """Write model.pb, rules.json, and patched.pb, which the examples read."""
    (folder / "rules.json").write_text(json.dumps({"version": 1, "rules": [RULE]}))
    graphs.saved(folder, *_nodes())
    graphpatch.apply([RULE], folder / "model.pb").save(folder / "patched.pb")


def _constant(name: str, array: Any) -> NodeDef:
    made = node(name, "Const", dtype=array.dtype.name)
    tensor = made.attr["value"].tensor
    tensor.dtype, tensor.tensor_content = made.attr["dtype"].type, array.tobytes()
    tensor.tensor_shape.CopyFrom(sized(*array.shape).shape)
    return made


def _nodes() -> list[NodeDef]:
    """Two blocks of convolution, bias and Relu; a loss; and one behind a Round."""
    nodes = [
        node("x", "Placeholder", shape=sized(1, 4, 4, 1)),
        _constant("weights", np.linspace(0.1, 0.9, 9, dtype=np.float32).reshape(3, 3, 1, 1)),
        _constant("zero", np.zeros(1, np.float32)),
        _constant("axes", np.arange(4, dtype=np.int32)),
    ]
    before = "x"
    for block in ("block1", "block2"):
        conv = {"strides": [1, 1, 1, 1], "padding": "SAME"}
        nodes += [
            node(f"{block}/conv", "Conv2D", before, "weights", **conv),
            node(f"{block}/bias", "BiasAdd", f"{block}/conv", "zero"),
            node(f"{block}/relu", "Relu", f"{block}/bias"),
        ]
        before = f"{block}/relu"
    ends = "features:Identity({}) loss:Sum(features,axes,Tidx=int32) bits:Round(features)"
    return [*nodes, *net(ends.format(before)), *net("bits_loss:Sum(bits,axes,Tidx=int32)")]


def failures(name: str, **there: Any) -> str:
    """Run the example of a docstring; what it printed that it should not have."""
    there |= {"graphpatch": graphpatch, "Path": Path}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], there, name, name, 0)
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    return "".join(told)

"""Names of functions that no other graph of the process has.

TensorFlow keeps the functions of all that runs eagerly in one library, and refuses a name that is
there with another definition: that of the original beside the patched one, for example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def rename_functions(graph_def: Any, suffix: str) -> None:
    """Let the name of each function of a tf.compat.v1.GraphDef end in `suffix`, all calls too."""
    library = graph_def.library
    names = {one.signature.name: f"{one.signature.name}{suffix}" for one in library.function}
    for node in _nodes(graph_def):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            _rename_value(value, names)
    for function in library.function:
        function.signature.name = names[function.signature.name]
        for value in function.attr.values():
            _rename_value(value, names)
    for gradient in library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _rename_value(value: Any, names: Mapping[str, str]) -> None:
    called = [value.func] if value.HasField("func") else []
    for one in (*called, *value.list.func):
        one.name = names.get(one.name, one.name)
        for inner in one.attr.values():
            _rename_value(inner, names)

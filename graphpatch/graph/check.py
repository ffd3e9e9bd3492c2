"""Is it a graph at all, and will TensorFlow take it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from graphpatch import names
from graphpatch.errors import ModelError, PatchError, did_you_mean
from graphpatch.graph.graph import MOST_NODES, Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import tensor_named
from graphpatch.shown import one_line, plural, short

# `tf.gradients` puts ops into a scope, `gradients` by default, and those of the gradient of an op L
# into `gradients/L_grad/...`. A scope that a program called `gradients` itself has no such names.
GRADIENT_SCOPE = re.compile(r"((?:.*/)?gradients(?:_\d+)?)/")
SEED = re.compile(r"Fill(_\d+)?|grad_ys_\d+")
OF_AN_OP = re.compile(r"_grad(?:_\d+)?/")
BUILT = "are gradients that were built before"

# The names that import_graph_def takes (measured on 2.21); a leading "_" only inside functions.
IN_MAIN = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_>./-]*")
IN_FUNCTION = re.compile(r"[A-Za-z0-9._][A-Za-z0-9_>./-]*")
NEVER_FIRST = {IN_MAIN: "_>/-", IN_FUNCTION: ">/-"}


def check_graph(graph: Graph) -> None:
    """Raise ModelError for names that are not unique, inputs that name no tensor, odd op types.

    Rules go by names and topology: where these are not sound, no patch is.
    """
    for body in graph.bodies:
        for op in dict.fromkeys(body.heads.ops):
            if not names.OP_TYPE.fullmatch(op):
                first = body.heads.names[body.heads.ops.index(op)]
                raise ModelError(
                    f"{_where(body)}: the op type of {first!r} is {op!r}; "
                    f"an op type must not have control characters"
                )
        if len(body.by_name) < len(body):
            twice = [name for name, count in Counter(body.heads.names).items() if count > 1]
            raise ModelError(f"{_where(body)}: {len(twice)} names are not unique: {_first(twice)}")
        _check_inputs(body)
        for arg in body.signature.output_arg if body.signature is not None else ():
            text = body.ret.get(arg.name, "")
            is_known = names.op_of(text) in body.by_name or names.op_of(text) in body.arguments
            if text[:1] == "^" or not is_known or not gives_output(body, text):
                raise ModelError(f"{_where(body)} returns {text!r}, a tensor that is not there")


def _check_inputs(body: Body) -> None:
    legal: Mapping[str, int] = body.by_name
    if body.arguments:
        legal = {**legal, **body.arguments}
    # Most inputs are spelled as the op's name, in many bodies all: those need no parsing.
    if all(map(legal.__contains__, chain.from_iterable(body.heads.inputs))):
        return
    odd = [
        (index, slot, text)
        for index, inputs in enumerate(body.heads.inputs)
        for slot, text in enumerate(inputs)
        if text not in legal
    ]
    unresolved = [use for use in odd if names.op_of(use[2]) not in legal]
    if unresolved:
        index, _, text = unresolved[0]
        raise ModelError(
            f"{_where(body)}: {len(unresolved)} inputs name no op; the first is input {text!r} "
            f"of {body.heads.names[index]!r}{did_you_mean(names.op_of(text), legal)}"
        )
    outputs = {text: gives_output(body, text) for text in {text for *_, text in odd}}
    for index, slot, text in odd:
        if text[:1] == "^":
            behind = next(iter(body.heads.inputs[index][slot + 1 : slot + 2]), "^")
            if behind[:1] != "^":
                raise ModelError(
                    f"{Node(body, index)}: its control input {text!r} comes before its input "
                    f"{behind!r}; control inputs come last"
                )
        elif not outputs[text]:
            raise ModelError(f"{Node(body, index)} reads {text!r}, an output that is not there")


def gives_output(body: Body, text: str) -> bool:
    """Tell whether the op that a tensor is of gives it; yes where that is not known."""
    if ":" not in text or names.op_of(text) not in body.by_name:
        return True
    return names.is_index(text.rpartition(":")[2]) and tensor_named(body, text) is not None


def check_result(graph: Graph) -> None:
    """Raise RuntimeError for a sound graph that edits made unsound: nobody gets it to see."""
    try:
        check_graph(graph)
    except ModelError as error:
        raise RuntimeError(f"the patched graph is broken, and not written: {error}") from error


def refuse_unreadable(graph: Graph) -> None:
    """Raise PatchError where rules made a graph so large that no rule could be taken off again."""
    for body in graph.bodies:
        if len(body) > MOST_NODES:
            raise PatchError(
                f"{_where(body)}: {len(body):,} nodes with those that rules added; graphpatch "
                f"reads up to {MOST_NODES:,}, and could not revert this; patch fewer ops, or "
                f"store gradients in attrs, which add no nodes (--emit attr)"
            )


def foreign(graph: Graph) -> Iterator[str]:
    """Yield what TensorFlow will not take of a graph, though it can be edited all the same."""
    for body in graph.bodies:
        for op, indices in body.by_type.items():
            known, example = graph.library.opdef(op), body.heads.names[indices[0]]
            if known is None:
                unknown = f"{one_line(op)} ({example!r})"
                yield f"TensorFlow does not know op type {unknown}: it needs its library"
            elif known.known_to == "1":
                yield f"op type {op} ({example!r}) is known to TensorFlow 1 alone"
        legal = IN_MAIN if body.is_main else IN_FUNCTION
        # Most bodies have only legal names: all are looked at as one text.
        if not names.are_spelled(body.heads.names, NEVER_FIRST[legal]):
            odd = [name for name in body.heads.names if not legal.fullmatch(name)]
            if odd:
                yield f"{_where(body)}: TensorFlow refuses to import these names: {_first(odd)}"
    yield from _value_references(graph.main)


def _value_references(body: Body) -> Iterator[str]:
    """Yield the op types that write to a variable where a freezing tool has put a constant."""
    for op, indices in body.by_type.items():
        known = body.library.opdef(op)
        if known is None or not any(arg.is_ref for arg in known.inputs):
            continue
        broken = []
        for node in (Node(body, index) for index in indices):
            for text, arg in zip(node.data_inputs, node.arguments or (), strict=False):
                producer, output = body.producer(text), names.parse(text).index
                outputs = (producer.outputs if producer is not None else None) or ()
                if arg.is_ref and output < len(outputs) and not outputs[output].is_ref:
                    broken.append(f"{node.name} ({text})")
        if broken:
            yield (
                f"TensorFlow refuses to import {op} where it reads no variable, but a value: "
                f"{_first(broken)}"
            )


def _first(texts: list[str]) -> str:
    return short(list(map(repr, texts)))


def _where(body: Body) -> str:
    return "the main graph" if body.is_main else f"function {one_line(body.label)}"


def scopes_of_gradients(op_names: Iterable[str]) -> dict[str, int]:
    """Return the scopes of gradients among the names of ops, and how many ops each has."""
    counts, scopes = Counter[str](), set[str]()
    for name in op_names:
        match = GRADIENT_SCOPE.match(name) if "gradients" in name else None
        if match is not None:
            counts[match[1]] += 1
            if OF_AN_OP.search(name, match.end()) or SEED.fullmatch(name, match.end()):
                scopes.add(match[1])
    return {scope: count for scope, count in counts.items() if scope in scopes}


def built_gradients(graph: Graph) -> list[str]:
    """Say that gradients were built in the graph before: they are ops like others.

    No rule changes what they compute.
    """
    return [
        f"{name}/** ({plural(count, 'op')}) {BUILT}; no rule changes what they "
        f"compute. graphpatch.rebuild_gradients (--rebuild-gradients) builds those of an optimizer "
        f"anew"
        for name, count in scopes_of_gradients(graph.main.heads.names).items()
    ]

"""Is it a graph at all, and will TensorFlow take it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, filterfalse

from graphpatch import names
from graphpatch.errors import ModelError, PatchError, did_you_mean
from graphpatch.graph.graph import MOST_NODES, Graph
from graphpatch.graph.node import Body, Node
from graphpatch.opdefs import tensor_index
from graphpatch.shown import one_line
from graphpatch.table import plural, short

GRADIENT_SCOPE = re.compile(r"((?:.*/)?gradients(?:_\d+)?)/")
SEED = re.compile(r"Fill(_\d+)?|grad_ys_\d+")
OF_AN_OP = re.compile(r"_grad(?:_\d+)?/")


def scopes_of_gradients(names: Iterable[str]) -> dict[str, int]:
    """The scopes of gradients among the names of ops, and how many ops each has."""
    found, told = Counter[str](), set[str]()
    for name in names:
        match = GRADIENT_SCOPE.match(name) if "gradients" in name else None
        if match is not None:
            found[match[1]] += 1
            if OF_AN_OP.search(name, match.end()) or SEED.fullmatch(name, match.end()):
                told.add(match[1])
    return {scope: count for scope, count in found.items() if scope in told}


# The names that import_graph_def takes (measured on 2.21); a leading "_" only inside functions.
IN_MAIN = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_>./-]*")
IN_FUNCTION = re.compile(r"[A-Za-z0-9._][A-Za-z0-9_>./-]*")
NEVER_FIRST = {IN_MAIN: "_>/-", IN_FUNCTION: ">/-"}

MANY_OUTPUTS = 32  # of an op type, as of a function, that are not searched for each tensor


def check_graph(graph: Graph) -> None:
    """Raise ModelError for names that are not unique, inputs that name no tensor, odd op types.

    Rules go by names and topology: where these are not sound, no patch is.
    """
    for body in graph.bodies:
        _typed(body)
        _unique(body)
        _resolved(body)
        _check_returned(body)


def _typed(body: Body) -> None:
    for op, indices in body.by_type.items():
        if not names.OP_TYPE.fullmatch(op):
            raise ModelError(
                f"{_where(body)}: the op type of {body.heads.names[indices[0]]!r} is {op!r}; an op "
                f"type must not have control characters"
            )


def _unique(body: Body) -> None:
    if len(body.by_name) == len(body):
        return
    twice = [name for name, count in Counter(body.heads.names).items() if count > 1]
    raise ModelError(f"{_where(body)}: {len(twice)} names are not unique: {_first(twice)}")


def _resolved(body: Body) -> None:
    legal = body.by_name.keys() | body.arguments.keys() if body.arguments else body.by_name
    # Most inputs are spelled as the op's name: those need no parsing, and no loop in Python.
    others = set(filterfalse(legal.__contains__, chain.from_iterable(body.heads.inputs)))
    if not others:
        return
    odd = [
        (index, slot, text)
        for index, inputs in enumerate(body.heads.inputs)
        for slot, text in enumerate(inputs)
        if text in others
    ]
    unresolved = [one for one in odd if names.op_of(one[2]) not in legal]
    if unresolved:
        index, _, text = unresolved[0]
        raise ModelError(
            f"{_where(body)}: {len(unresolved)} inputs name no op; the first is input {text!r} "
            f"of {body.heads.names[index]!r}{did_you_mean(names.op_of(text), legal)}"
        )
    known: dict[str, bool] = {}
    for index, slot, text in odd:
        if text[:1] == "^":
            _refuse_before_data(Node(body, index), slot)
        elif not known.setdefault(text, known.get(text) or gives_output(body, text)):
            raise ModelError(f"{Node(body, index)} reads {text!r}, an output that is not there")


def _refuse_before_data(node: Node, slot: int) -> None:
    later = next(iter(node.inputs[slot + 1 : slot + 2]), "^")
    if later[:1] != "^":
        raise ModelError(
            f"{node}: its control input {node.inputs[slot]!r} comes before its input {later!r}; "
            f"control inputs come last"
        )


def _check_returned(body: Body) -> None:
    """Raise ModelError where an output of a function is not a tensor in it."""
    for arg in body.signature.output_arg if body.signature is not None else ():
        text = body.ret.get(arg.name, "")
        there = names.op_of(text) in body.by_name or names.op_of(text) in body.arguments
        if text[:1] == "^" or not there or not gives_output(body, text):
            raise ModelError(f"{_where(body)} returns {text!r}, a tensor that is not there")


def gives_output(body: Body, text: str) -> bool:
    """Whether the op that a tensor is of gives it; so it seems where the op type is not known."""
    tensor = names.parse(text)
    if tensor.op not in body.by_name or ":" not in text:
        return True
    node = body.node(tensor.op)
    if not names.is_index(text.rpartition(":")[2]):
        return False
    args = () if node.opdef is None else node.opdef.outputs
    if len(args) > MANY_OUTPUTS:
        return _gives_listed(node, tensor)
    of = [arg for arg in args if arg.name == tensor.arg or not tensor.arg]
    if node.opdef is None or any(arg.is_list for arg in of):
        return _gives_listed(node, tensor)
    return tensor.index < (len(of) if not tensor.arg else min(1, len(of)))


def _gives_listed(node: Node, tensor: names.TensorName) -> bool:
    try:
        flat = node.outputs
    except ModelError:  # an attr that says how many there are is missing
        return True
    if flat is None:
        return True
    if not tensor.arg:
        return tensor.index < len(flat)
    return tensor_index(flat, tensor.arg, tensor.index) is not None


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
    """What TensorFlow will not take of a graph, though it can be edited all the same."""
    for body in graph.bodies:
        for op in body.by_type:
            known = graph.library.opdef(op)
            example = body.heads.names[body.by_type[op][0]]
            if known is None:
                said = f"{one_line(op)} ({example!r})"
                yield f"TensorFlow does not know op type {said}: it needs its library"
            elif known.known_to == "1":
                yield f"op type {op} ({example!r}) is known to TensorFlow 1 alone"
        odd = _illegal(body)
        if odd:
            yield f"{_where(body)}: TensorFlow refuses to import these names: {_first(odd)}"
    yield from _references(graph.main)


def _illegal(body: Body) -> list[str]:
    """The names that TensorFlow refuses. Most bodies have none: all are looked at as one text."""
    legal, found = IN_MAIN if body.is_main else IN_FUNCTION, body.heads.names
    if names.are_spelled(found, NEVER_FIRST[legal]):
        return []
    return [name for name in found if not legal.fullmatch(name)]


def _references(body: Body) -> Iterator[str]:
    """Ops that write to a variable, where a freezing tool has put a constant in its place."""
    for op, indices in body.by_type.items():
        known = body.library.opdef(op)
        if known is None or not any(arg.is_ref for arg in known.inputs):
            continue
        broken = [name for index in indices for name in _not_references(Node(body, index))]
        if broken:
            yield (
                f"TensorFlow refuses to import {op} where it reads no variable, but a value: "
                f"{_first(broken)}"
            )


def _not_references(node: Node) -> Iterator[str]:
    """The inputs of an op that must be references, and are none."""
    for text, wanted in zip(node.data_inputs, node.arguments or (), strict=False):
        producer, output = node.body.producer(text), names.parse(text).index
        given = None if producer is None else producer.outputs
        if wanted.is_ref and given and output < len(given) and not given[output].is_ref:
            yield f"{node.name} ({text})"


def _first(found: list[str]) -> str:
    return short(list(map(repr, found)))


def _where(body: Body) -> str:
    return "the main graph" if body.is_main else f"function {one_line(body.label)}"


BUILT = "are gradients that were built before"


def built_gradients(graph: Graph) -> list[str]:
    """That gradients were built in the graph before: tf.gradients puts them in such a scope.

    They are ops like others, and no rule changes what they compute.
    """
    return [
        f"{name}/** ({plural(count, 'op')}) {BUILT}; no rule changes what they "
        f"compute. graphpatch.rebuild_gradients (--rebuild-gradients) builds those of an optimizer "
        f"anew"
        for name, count in scopes_of_gradients(graph.main.heads.names).items()
    ]

"""The ops of a patched graph that have another gradient, and which TensorFlow asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from operator import itemgetter
from typing import NamedTuple

from msgspec import Struct

from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.flow import CUSTOM, override_key
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.gradients.attach import PASS, is_guard
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.walk import upstream
from graphpatch.names import OpKey, parse

IGNORED, IDLE, UNCALLED, FIRED = range(4)  # the worst first
CAME = "no gradient that was taken comes to it"
BLOCKED = f"{CAME}; graphpatch doctor says where gradients end"
LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")


class Override(Struct):
    """An op that has another gradient than its type, which it had before rules put another there.

    `fails`: the patch added it, and TensorFlow ignores it wherever gradients are taken.
    """

    body: str
    op: str
    key: str
    type: str
    why: str
    fails: bool

    def __str__(self) -> str:
        return f"{self.type} {self.op}{'' if self.body == 'main' else f' in function {self.body}'}"


class Overrides(Struct):
    """The overrides that fired, those that did not, and those that nothing that runs calls."""

    fired: list[Override]
    not_fired: list[Override]
    not_called: list[Override]


class Carrier(NamedTuple):
    """A node that has the gradient of the op that a rule is at: by a key, or by a function."""

    node: Node
    place: OpKey  # of the node
    op: str
    key: str
    is_function: bool


def carriers(graph: ModelGraph) -> Iterator[Carrier]:
    """Yield the nodes that have another gradient, in functions too, in the order of the file.

    Left out are keys that are for tf.saved_model.load alone, the guards that go with overrides, and
    functions that rules only keep from being differentiated.
    """
    gradients = graph.library.gradients
    for body in graph.bodies:
        for node in () if body.is_ours else body:
            key, is_function = override_key(node), node.op in gradients
            if key is None and is_function and provenance.in_model(node).op == node.op:
                key = gradients[node.op]
            elif key is None or key.startswith(PASS) or is_guard(key):
                continue
            record = provenance.record(node)
            op = record.patched if record is not None and record.is_added else ""
            op = op or provenance.in_model(node).name
            yield Carrier(node, (body.label, node.name), op, key, is_function)


def sorted_overrides(
    original: ModelGraph,
    patched: ModelGraph,
    asked: Mapping[OpKey, bool],
    registered: Collection[str],
    failed: Mapping[str, str],
) -> tuple[Overrides, list[str]]:
    """Return what happened to the override of each op as gradients were taken of a patched graph.

    `asked` are the ops that TensorFlow asked for their gradient, and whether it was run then;
    `registered` the keys for which its process has gradients; `failed` says of targets why their
    gradients could not be taken. With them come, in words, those that the patch added, and of which
    nothing shows that they work.
    """
    known = {(carrier.place, carrier.key) for carrier in carriers(original)}
    bodies, customs, behind = Bodies(patched), cache(hidden_ops), cache(ops_behind_returns)
    is_loaded = patched.around.is_object_based
    by_op: dict[OpKey, list[tuple[tuple[bool, int, bool], str, Carrier]]] = {}
    for carrier in carriers(patched):
        node, place, op, key, is_function = carrier
        is_new, custom = (place, key) not in known, customs(node.body).get(node.index)
        state, why = FIRED, ""
        if not (is_function or is_loaded or key in registered or key.startswith(CUSTOM)):
            state = IGNORED
            why = (
                f"no program registers the key {key!r}: name the module or .py file that does "
                "with --import (in Python: imports=[...])"
            )
        elif is_new and custom is not None:
            says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
            state, why = IDLE, f"{Node(node.body, custom)} {says}"
        elif place not in asked and not (is_loaded and _is_asked_on_tape(place, asked)):
            state, why = _state_unasked(carrier, bodies, asked, behind)
            if state == IDLE and failed:
                target, says = next(iter(failed.items()))
                why = f"{CAME}; those of {target} cannot be taken: {says}"
        # Of those of one op, what the patch added counts, then the worst, then the op itself.
        rank = not is_new, state, node.name != op
        by_op.setdefault((node.body.label, op), []).append((rank, why, carrier))
    fired, not_fired, not_called = (list[Override]() for _ in range(3))
    unproven = list[str]()
    for (label, op), of_op in by_op.items():
        (is_old, state, _), why, (node, _, _, key, _) = min(of_op, key=itemgetter(0))
        model = provenance.as_model(node.body)
        op_type = model.heads.ops[model.by_name[op]] if op in model.by_name else node.op
        override = Override(label, op, key, op_type, why, not is_old and state == IGNORED)
        (not_fired, not_fired, not_called, fired)[state].append(override)
        if state == IDLE and not is_old:
            unproven.append(f"override of {override} did not fire: {why}")
    return Overrides(fired, not_fired, not_called), unproven


def _is_asked_on_tape(place: OpKey, asked: Collection[OpKey]) -> bool:
    """Return whether an op was asked by the name that the loader gives its function.

    It leaves but the middle of most names, and gives others a longer one.
    """
    body, name = place
    return any(
        op == name and (part in body or LOADED_BODY.sub(r"\1", part) == body) for part, op in asked
    )


def _state_unasked(
    carrier: Carrier,
    bodies: Bodies,
    asked: Mapping[OpKey, bool],
    behind: Callable[[Body], bytearray],
) -> tuple[int, str]:
    """Return what became of an override for which Python was not asked, and why, in words."""
    node, body = carrier.node, carrier.node.body
    if body.is_main:
        return IDLE, BLOCKED
    callers = list(all_callers(bodies, body.label))
    if not any(caller.body.is_main for caller in callers):
        return UNCALLED, f"nothing that runs calls function {body.label}"
    if not behind(body)[node.index]:
        return UNCALLED, f"no output of function {body.label} is computed of it"
    ignoring = bodies.place_of(node).ignoring
    if bodies.graph.around.is_object_based or ignoring is None:
        return IDLE, BLOCKED
    if not carrier.is_function:
        says = f"function {body.label} is called by {ignoring}, where a Session ignores it"
        return IGNORED, says
    # C++ differentiates the function as a whole, all that its returns are computed of, and does not
    # ask Python.
    has_run = any(asked.get((caller.body.label, caller.name)) for caller in callers)
    return (FIRED, "") if has_run and not bodies.why_no_gradient(node) else (IDLE, BLOCKED)


def all_callers(bodies: Bodies, function: str) -> Iterator[Node]:
    """Yield the ops that call a function, and those that call the functions which these are in."""
    labels = [function]
    for label in labels:
        for caller in bodies.callers.get(label, ()):
            yield caller
            if not caller.body.is_main and caller.body.label not in labels:
                labels.append(caller.body.label)


def ops_behind_returns(body: Body) -> bytearray:
    """Mark the ops that outputs of a function are computed of, not by their shapes alone."""
    ops, returns = body.heads.ops, map(parse, body.ret.values())
    return upstream(body, returns, control=True, last=lambda n: flow.reads_shape_alone(ops[n]))

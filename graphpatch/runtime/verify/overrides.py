"""The ops of a patched graph that have another gradient, and which TensorFlow asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from graphpatch.differentiation import flow
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.hidden import hidden_ops
from graphpatch.differentiation.override_keys import CUSTOM, override_key
from graphpatch.gradients.attach import PASS, is_guard
from graphpatch.graph import provenance
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.names import OpKey, op_of

FIRED, IGNORED, UNCALLED, IDLE = "fired", "ignored", "uncalled", "idle"
CAME = "no gradient that was taken comes to it"
BLOCKED = f"{CAME}; graphpatch doctor says where gradients end"
LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")


@dataclass(frozen=True, slots=True)
class Override:
    """An op with another gradient than its type's: by a key, or by a function of the library.

    `state`: it fired, TensorFlow ignores it, nothing that runs calls its function or reads the op
    there (`uncalled`), or no gradient came to it (`idle`). `is_new`: the original does not have it.
    """

    node: Node
    key: str
    is_function: bool
    is_new: bool = True
    state: str = FIRED
    why: str = ""

    @property
    def place(self) -> OpKey:
        """Return the body and the name of the op."""
        return self.node.body.label, self.node.name

    @property
    def is_wrong(self) -> bool:
        """Return whether the patch added it in vain, wherever gradients are taken."""
        return self.is_new and self.state == IGNORED

    @property
    def is_gap(self) -> bool:
        """Return whether the patch added it, and nothing shows that it works."""
        return self.is_new and self.state == IDLE

    def __str__(self) -> str:
        body = "" if self.node.body.is_main else f" in function {self.node.body.label}"
        return f"{op_type_in_model(self.node)} {self.node.name}{body}"

    def document(self) -> dict[str, Any]:
        """Return the override as `verify --json` prints it."""
        op = {"body": self.node.body.label, "op": self.node.name, "key": self.key}
        return {**op, "type": op_type_in_model(self.node), "why": self.why, "fails": self.is_wrong}


def overrides(graph: ModelGraph) -> Iterator[Override]:
    """Yield the ops that have one, in functions too, in the order of the file.

    Left out are keys that are for tf.saved_model.load alone, the guards that go with overrides, and
    functions that rules only keep from being differentiated.
    """
    gradients = graph.library.gradients
    for body in graph.bodies:
        for node in () if body.is_ours else body:
            key = override_key(node)
            if key is not None and (key.startswith(PASS) or is_guard(key)):
                continue
            if key is not None:
                yield Override(node, key, node.op in gradients)
            elif node.op in gradients and provenance.original_type(node) == node.op:
                yield Override(node, gradients[node.op], True)


def sorted_overrides(
    original: ModelGraph,
    patched: ModelGraph,
    asked: Mapping[OpKey, bool],
    registered: Collection[str],
    failed: Mapping[str, str],
) -> list[Override]:
    """Return the overrides of a patched graph with what happened when gradients were taken.

    `asked` are the ops that TensorFlow asked for their gradient, and whether it was run then;
    `registered` the keys for which its process has gradients; `failed` says of targets why their
    gradients could not be taken.
    """
    known = {(override.place, override.key) for override in overrides(original)}
    passed = {
        (body.label, body.heads.names[index]): Node(body, custom)
        for body in patched.bodies
        for index, custom in hidden_ops(body).items()
    }
    bodies = Bodies(patched)
    is_loaded, behind = patched.around.is_object_based, cache(ops_behind_returns)
    results = []
    for override in overrides(patched):
        is_new = (override.place, override.key) not in known
        is_unknown = not override.is_function and override.key not in registered and not is_loaded
        if is_unknown and not override.key.startswith(CUSTOM):
            state = IGNORED
            why = (
                f"no program registers the key {override.key!r}: name the module or .py file that "
                "does with --import (in Python: imports=[...])"
            )
        elif is_new and override.place in passed:
            says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
            state, why = IDLE, f"{passed[override.place]} {says}"
        elif override.place in asked or (is_loaded and _is_asked_on_tape(override.place, asked)):
            state, why = FIRED, ""
        else:
            state, why = _state_unasked(override, bodies, asked, behind)
            if state == IDLE and failed:
                target, says = next(iter(failed.items()))
                why = f"{CAME}; those of {target} cannot be taken: {says}"
        results.append(replace(override, is_new=is_new, state=state, why=why))
    return results


def _is_asked_on_tape(place: OpKey, asked: Collection[OpKey]) -> bool:
    """Return whether an op was asked by the name that the loader gives its function.

    It leaves but the middle of most names, and gives others a longer one.
    """
    body, name = place
    return any(
        op == name and (part in body or LOADED_BODY.sub(r"\1", part) == body) for part, op in asked
    )


def _state_unasked(
    override: Override,
    bodies: Bodies,
    asked: Mapping[OpKey, bool],
    behind: Callable[[Body], set[int]],
) -> tuple[str, str]:
    """Return what became of an override for which Python was not asked, and why, in words."""
    node, body = override.node, override.node.body
    if body.is_main:
        return IDLE, BLOCKED
    callers = list(all_callers(bodies, body.label))
    if not any(caller.body.is_main for caller in callers):
        return UNCALLED, f"nothing that runs calls function {body.label}"
    if node.index not in behind(body):
        return UNCALLED, f"no output of function {body.label} is computed of it"
    ignoring = bodies.place_of(node).ignoring
    if bodies.graph.around.is_object_based or ignoring is None:
        return IDLE, BLOCKED
    if not override.is_function:
        says = f"function {body.label} is called by {ignoring}, where a Session ignores it"
        return IGNORED, says
    # C++ differentiates the function as a whole, all that its returns are computed of, and does not
    # ask Python.
    has_run = any(asked.get((caller.body.label, caller.name)) for caller in callers)
    return (FIRED, "") if has_run and not bodies.why_unreached(node) else (IDLE, BLOCKED)


def all_callers(bodies: Bodies, function: str) -> Iterator[Node]:
    """Yield the ops that call a function, and those that call the functions which these are in."""
    todo, met = [function], {function}
    while todo:
        for caller in bodies.callers.get(todo.pop(), ()):
            yield caller
            if not caller.body.is_main and caller.body.label not in met:
                met.add(caller.body.label)
                todo.append(caller.body.label)


def ops_behind_returns(body: Body) -> set[int]:
    """Return the ops that outputs of a function are computed of, not by their shapes alone."""
    todo, behind = [body.by_name.get(op_of(text)) for text in body.ret.values()], set[int]()
    while todo:
        index = todo.pop()
        if index is not None and index not in behind:
            behind.add(index)
            if not flow.reads_shape_alone(body.heads.ops[index]):
                inputs = body.heads.inputs[index]
                todo += (body.by_name.get(op_of(text)) for text in inputs)
    return behind

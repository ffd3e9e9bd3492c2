"""The ops of a patched graph that have another gradient, and which TensorFlow asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

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
from graphpatch.shown import Document

# The first is the worst: of an op that several ops carry a gradient for, the worst counts.
STATES = IGNORED, IDLE, UNCALLED, FIRED = "ignored", "idle", "uncalled", "fired"
CAME = "no gradient that was taken comes to it"
BLOCKED = f"{CAME}; graphpatch doctor says where gradients end"
LOADED_BODY = re.compile(r"^__inference_(.*)_\d+$")


@dataclass(frozen=True, slots=True)
class Override(Document):
    """An op with another gradient than its type's: by a key, or by a function of the library.

    `node` has the key; `op` is the op of the model that its rule is at. `state`: it fired,
    TensorFlow ignores it, nothing that runs calls its function or reads the op there (`uncalled`),
    or no gradient came to it (`idle`). `is_new`: the original does not have it.
    """

    keys = "body=node.body.label op key type why fails=is_wrong"
    node: Node
    op: str
    key: str
    is_function: bool
    is_new: bool = True
    state: str = FIRED
    why: str = ""

    @property
    def place(self) -> OpKey:
        """Return the body and the name of the op that has the key."""
        return self.node.body.label, self.node.name

    @property
    def type(self) -> str:
        """Return the type that the op had before rules put another op in its place."""
        model = provenance.as_model(self.node.body)
        index = model.by_name.get(self.op)
        return self.node.op if index is None else model.heads.ops[index]

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
        return f"{self.type} {self.op}{body}"


def overrides(graph: ModelGraph) -> Iterator[Override]:
    """Yield the ops that have one, in functions too, in the order of the file.

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
            yield Override(node, op or provenance.in_model(node).name, key, is_function)


def sorted_overrides(
    original: ModelGraph,
    patched: ModelGraph,
    asked: Mapping[OpKey, bool],
    registered: Collection[str],
    failed: Mapping[str, str],
) -> list[Override]:
    """Return what happened to the override of each op as gradients were taken of a patched graph.

    `asked` are the ops that TensorFlow asked for their gradient, and whether it was run then;
    `registered` the keys for which its process has gradients; `failed` says of targets why their
    gradients could not be taken.
    """
    known = {(override.place, override.key) for override in overrides(original)}
    bodies, customs, behind = Bodies(patched), cache(hidden_ops), cache(ops_behind_returns)
    is_loaded = patched.around.is_object_based
    by_op: dict[OpKey, list[Override]] = {}
    for override in overrides(patched):
        place, key, node = override.place, override.key, override.node
        is_new, custom = (place, key) not in known, customs(node.body).get(node.index)
        state, why = FIRED, ""
        if not (override.is_function or is_loaded or key in registered or key.startswith(CUSTOM)):
            state = IGNORED
            why = (
                f"no program registers the key {key!r}: name the module or .py file that does "
                "with --import (in Python: imports=[...])"
            )
        elif is_new and custom is not None:
            says = "has a gradient of its own, which passes it by (tf.custom_gradient)"
            state, why = IDLE, f"{Node(node.body, custom)} {says}"
        elif place not in asked and not (is_loaded and _is_asked_on_tape(place, asked)):
            state, why = _state_unasked(override, bodies, asked, behind)
            if state == IDLE and failed:
                target, says = next(iter(failed.items()))
                why = f"{CAME}; those of {target} cannot be taken: {says}"
        of_op = by_op.setdefault((place[0], override.op), [])
        of_op.append(replace(override, is_new=is_new, state=state, why=why))
    return [min(of_op, key=_rank) for of_op in by_op.values()]


def _rank(override: Override) -> tuple[bool, int, bool]:
    """Rank the carriers of one op's gradient: what says most of it comes first."""
    is_helper = override.node.name != override.op
    return not override.is_new, STATES.index(override.state), is_helper


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
    behind: Callable[[Body], bytearray],
) -> tuple[str, str]:
    """Return what became of an override for which Python was not asked, and why, in words."""
    node, body = override.node, override.node.body
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
    if not override.is_function:
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

    def reads_shape(index: int) -> bool:
        return flow.reads_shape_alone(body.heads.ops[index])

    return upstream(body, map(parse, body.ret.values()), control=True, last=reads_shape)

"""Inputs of ops and outputs of functions, set one by one.

Where an op reads many, its NodeDef is written once for all.
"""

from __future__ import annotations

from graphpatch import names
from graphpatch.graph import nodedef
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edits import InputSet, SetInputs

MANY_INPUTS = 8  # inputs from which on a NodeDef is not written anew for each
MANY_USES = 200  # uses of one op from which on a list is too slow to search


def set_later(node: Node, slot: int, text: str, edit: InputSet) -> bool:
    """Let an op read a tensor in this slot, to be written when its NodeDef is asked for.

    False, and nothing done, where it reads few, or spells inputs as TensorFlow does not.
    """
    body, index = node.body, node.index
    waiting = body.edited.get(index)
    if not isinstance(waiting, SetInputs):
        payload, inputs = body.payload(index), list(node.inputs)
        if len(inputs) < MANY_INPUTS or not nodedef.is_same(
            nodedef.with_inputs(payload, inputs), payload
        ):
            return False
        waiting = SetInputs(payload, inputs)
        body.heads.inputs[index] = inputs
        body.write(index, waiting)
    waiting.inputs[slot] = text
    waiting.edits.append(edit)
    return True


def move_use(node: Node, slot: int, was: str, text: str) -> None:
    """Let the body know that a slot is read from another op, where it keeps who reads what."""
    body, old, new = node.body, names.op_of(was), names.op_of(text)
    if old == new or "readers" not in body.__dict__:
        return
    uses, use = body.readers[old], (node.index, slot)
    if isinstance(uses, list) and len(uses) >= MANY_USES:
        uses = body.readers[old] = dict.fromkeys(uses)
    if isinstance(uses, list):
        uses.remove(use)
    else:
        del uses[use]
    add_use(body, new, use)


def add_use(body: Body, op: str, use: tuple[int, int]) -> None:
    """Let the body know of one who reads an op."""
    uses = body.readers.setdefault(op, [])
    if isinstance(uses, list):
        uses.append(use)
    else:
        uses[use] = None


def give_output(body: Body, key: str, tensor: str) -> str:
    """Let an output of a function be this tensor, and return which it was."""
    was, body.ret[key] = body.ret[key], tensor
    if "returned" in body.__dict__ and names.op_of(was) != names.op_of(tensor):
        body.returned[names.op_of(was)].remove(key)
        body.returned.setdefault(names.op_of(tensor), []).append(key)
    return was

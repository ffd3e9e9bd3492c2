"""An op put in line with what a target gives or reads: on one side, at one place or at all.

`at` says where: "outputs", "inputs", or one of them, as "output:0".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphpatch import names
from graphpatch.control_flow.op_types import ALL_SWITCHES, BRANCHES, ENTERS, EXITS, FIXED, MERGES
from graphpatch.differentiation.flow import carries, why_not
from graphpatch.errors import PatchError
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.walk import uses
from graphpatch.opdefs import FlatArg
from graphpatch.patches.reach import check_reached
from graphpatch.patches.target import Target, is_source, known_outputs
from graphpatch.protos import AttrValue

OUTPUTS = "outputs"


def typed(dtype: str | None, key: str = "") -> dict[str, AttrValue]:
    """Return the attrs of an op that has its dtype as attr T, and its gradient under a key."""
    values = {"T": attrs.dtype(dtype or "")}
    return {**values, attrs.OVERRIDE: attrs.text(key)} if key else values


def put_op(
    editor: Editor, name: str, op: str, inputs: Sequence[str], dtype: str | None, beside: Node
) -> str:
    """Add an op that has its dtype as attr T; return its tensor."""
    return editor.add(name, op, inputs, typed(dtype), beside).tensor(0)


def give_on(
    node: Node,
    outputs: Collection[int],
    editor: Editor,
    op: str,
    suffix: str,
    inputs: Callable[[Node, int], Sequence[str]],
    key: str = "",
    shadow: bool = False,
    reads: Sequence[str] = (),
) -> list[Node]:
    """Let an op of this type give on each of these outputs of another one; return the new ops.

    The other one moves to `NAME/forward`. Its name goes to the new op, or, where it has several
    outputs, to an IdentityN that reads `NAME/SUFFIX_0`, ... `inputs` says what the new op for an
    output reads, `shadow` and `reads` are those of `Editor.take_name`.
    """
    name, flat, added = node.name, known_outputs(node), list[Node]()
    if len(flat) == 1:
        values = typed(flat[0].dtype, key)
        return [editor.take_name(node, op, lambda moved: inputs(moved, 0), values, shadow, reads)]

    def through(moved: Node) -> list[str]:
        texts = [moved.tensor(output) for output in range(len(flat))]
        for n in outputs:
            new = (f"{name}/{suffix}_{n}", op, inputs(moved, n), typed(flat[n].dtype, key))
            added.append(editor.add(*new, moved))
            texts[n] = added[-1].tensor(0)
        return texts

    values = {"T": attrs.dtypes([arg.dtype or "" for arg in flat])}
    editor.take_name(node, "IdentityN", through, values, shadow, reads)
    return added


def parsed(at: str) -> tuple[str, int | None]:
    """Return the side that `at` names, "output" or "input", and the one place on it."""
    side, _, place = at.partition(":")
    return side.removesuffix("s"), int(place) if place else None


def tensors_at(target: Target, at: str) -> dict[int, FlatArg]:
    """Return the tensors at that place of a target, by number."""
    side, place = parsed(at)
    flat = target.outputs if side == "output" else target.inputs
    return {n: arg for n, arg in enumerate(flat) if place in (None, n)}


def why_idle(target: Target, at: str) -> str:
    """Return why no gradient can flow there, so that a patch means nothing; nothing where one may.

    Raises PatchError where there is no such output or input, or we cannot tell: a reference to a
    variable, a dtype that the NodeDef does not name.
    """
    tensors, (side, place) = tensors_at(target, at), parsed(at)
    if place is not None and not tensors:
        count = len(target.outputs if side == "output" else target.inputs)
        raise PatchError(f"{target} has no {side} {place}; it has {count}, counted from 0")
    if any(map(carries, tensors.values())):
        return ""
    for arg in tensors.values():
        if arg.is_ref or arg.dtype is None:
            raise PatchError(f"{target}: {side} {arg.name} {why_not(arg)}")
    reasons = dict.fromkeys(f"{arg.name} {why_not(arg)}" for arg in tensors.values())
    return f"{target}: {'; '.join(reasons)}" if reasons else f"{target} has no {side}s"


def put_at(target: Target, editor: Editor, op: str, suffix: str, at: str) -> list[Node]:
    """Put ops that give on, bit for bit, the tensor that they read on a side; return them.

    Where nothing flows back there, there is nothing to do, and the report says so.
    """
    if reason := why_idle(target, at):
        editor.skipped(reason)
        return []
    check_reached(target.last, editor)
    flowing = {n: arg for n, arg in tensors_at(target, at).items() if carries(arg)}
    if parsed(at)[0] == "input":
        return [_before(target, n, arg, editor, op, suffix) for n, arg in flowing.items()]
    return _behind(target.last, flowing, editor, op, suffix)


def _before(target: Target, place: int, arg: FlatArg, editor: Editor, op: str, suffix: str) -> Node:
    """Put an op before a tensor that a target reads.

    One that a match reads in several places comes through one op, so that what flows back from all
    of them passes it together.
    """
    node, slot = target.places[place]
    text = node.inputs[slot]
    if producer := node.body.producer(text):
        if node.op in BRANCHES and (producer.op in FIXED or _starts_loop(producer)):
            raise PatchError(f"{node} must stay next to {producer}, which its loop needs")
        _refuse_between(producer, node)
    name = f"{target.last.name}/{suffix}_{place}"
    added = editor.add(name, op, [text], typed(arg.dtype), node, before=True)
    editor.set_input(node, slot, added.tensor(0))
    for reader in target.nodes if target.is_match else ():
        for at_slot, read in enumerate(reader.data_inputs):
            if names.parse(read) == names.parse(text) and not (reader == node and at_slot == slot):
                editor.set_input(reader, at_slot, added.tensor(0))
    return added


def _behind(
    node: Node, flowing: Mapping[int, FlatArg], editor: Editor, op: str, suffix: str
) -> list[Node]:
    """Put ops behind these outputs of an op.

    The op moves to `NAME/forward` and the new one takes its name, so that whoever goes by the name
    reads through it. An op whose value comes from outside (a placeholder, a constant) keeps its
    name, and its readers are sent to `NAME/SUFFIX`: the gradient at NAME is what came through. So
    does a switch, as its tensors cannot be fetched, and nobody holds on to their names.
    """
    if node.op in FIXED:
        raise PatchError(
            f"{node} must stay next to its loop's Merge or Switch: patch what it reads"
        )
    if _starts_loop(node):
        raise PatchError(
            f"{node} must stay next to the ops that its loop begins with: patch what it reads, "
            f"or what reads the loop's Switch"
        )
    flat = node.outputs or []
    if is_source(node):
        return _reroute(node, flowing, editor, op, suffix)
    if node.op in ALL_SWITCHES:
        read = {output: arg for output, arg in flowing.items() if uses(node, output)}
        for output in read:
            for reader, _ in uses(node, output):
                _refuse_between(node, reader)
        return _reroute(node, read, editor, op, suffix)
    if any(arg.dtype is None or arg.is_ref for arg in flat):
        reasons = dict.fromkeys(f"{arg.name} {why_not(arg)}" for arg in flat if not carries(arg))
        raise PatchError(f"{node}: its outputs cannot be passed on: {'; '.join(reasons)}")
    return give_on(node, flowing, editor, op, suffix, lambda moved, n: [moved.tensor(n)])


def _reroute(
    node: Node, flowing: Mapping[int, FlatArg], editor: Editor, op: str, suffix: str
) -> list[Node]:
    """Send the readers of each output through an op of its own; the op keeps its name."""
    added = []
    is_alone = len(node.outputs or ()) == 1
    for output, arg in flowing.items():
        name = f"{node.name}/{suffix}" + ("" if is_alone else f"_{output}")
        new = editor.add(name, op, [node.tensor(output)], typed(arg.dtype), node)
        if not editor.reroute(node, output, new.tensor(0), keep=new.index):
            raise PatchError(f"nothing reads output {output} of {node}: nothing flows back to it")
        added.append(new)
    return added


def _starts_loop(node: Node) -> bool:
    """Return whether an op is the Merge of a loop, or an Enter that such a Merge reads."""
    body = node.body
    if node.op in ENTERS:
        readers = [Node(body, index) for index, _ in body.readers.get(node.name, ())]
        return any(reader.op in MERGES and _starts_loop(reader) for reader in readers)
    producers = [body.producer(text) for text in node.data_inputs if node.op in MERGES]
    return any(producer is not None and producer.op in FIXED for producer in producers)


def _refuse_between(producer: Node, reader: Node) -> None:
    if producer.op in ALL_SWITCHES and reader.op in EXITS:
        raise PatchError(
            f"{reader} must stay next to {producer}, where TensorFlow looks for the gradient of "
            f"their loop; patch the outputs of {reader.name!r}"
        )

"""`at`: an op put in line on a side of an op, or of a match as one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec

from graphpatch import names
from graphpatch.control_flow.op_types import ALL_SWITCHES, BRANCHES, ENTERS, EXITS, FIXED, MERGES
from graphpatch.errors import PatchError
from graphpatch.graph import attrs
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.graph.walk import uses
from graphpatch.opdefs import FlatArg
from graphpatch.patches import Patch, op_args
from graphpatch.patches.group import ByInput, MatchedGroup, at_one
from graphpatch.patches.reach import check_reached
from graphpatch.protos import AttrValue


class InlineOp(msgspec.Struct, frozen=True):
    """An op of one input and one output that gives on, bit for bit, what it reads.

    `of` gives its op type and attrs for a tensor of a dtype.
    """

    suffix: str
    of: Callable[[str], tuple[str, Mapping[str, AttrValue]]]

    def add(self, editor: Editor, name: str, read: str, arg: FlatArg, beside: Node) -> Node:
        """Return the op, reading a tensor, written behind `beside`."""
        op, typed = self.of(arg.dtype or "")
        return editor.add(name, op, [read], typed, beside)


def inline_op(op: str, suffix: str) -> InlineOp:
    """Return an op that has its dtype as attr T, like Identity."""
    return InlineOp(suffix, lambda dtype: (op, {"T": attrs.dtype(dtype)}))


def on_outputs(node: Node, editor: Editor, inline: InlineOp, only: int | None) -> list[Node]:
    """Put `inline` behind the outputs of an op that carry a gradient, or behind output `only`.

    The op moves to `NAME/forward` and `inline` takes its name, so that whoever goes by the name
    reads through it. An op whose value comes from outside (a placeholder, a constant) keeps its
    name, and its readers are sent to `NAME/SUFFIX`: the gradient at NAME is what came through.
    """
    if node.op in FIXED:
        raise PatchError(
            f"{node} must stay next to its loop's Merge or Switch: patch what it reads"
        )
    _refuse_loop_start(node)
    flat = op_args.known_outputs(node)
    wanted = _wanted(flat, only)
    if op_args.is_source(node):
        return _behind_source(node, editor, inline, flat, wanted)
    if node.op in ALL_SWITCHES:
        return _behind_switch(node, editor, inline, flat, wanted)
    if len(flat) > 1:
        return _behind_several(node, editor, inline, flat, wanted)
    op, values = inline.of(flat[0].dtype or "")
    return [editor.take_name(node, op, lambda moved: [moved.tensor(0)], values)]


def on_inputs(node: Node, editor: Editor, inline: InlineOp, only: int | None) -> list[Node]:
    """Put `inline` before the inputs of an op that carry a gradient, or before input `only`."""
    flat, added = op_args.known_inputs(node), []
    for slot in _wanted(flat, only):
        refuse_fixed(node, slot)
        name = f"{node.name}/{inline.suffix}_{slot}"
        op, values = inline.of(flat[slot].dtype or "")
        new = editor.add(name, op, [node.inputs[slot]], values, beside=node, before=True)
        editor.set_input(node, slot, new.tensor(0))
        added.append(new)
    return added


def _behind_source(
    node: Node, editor: Editor, inline: InlineOp, flat: list[FlatArg], wanted: list[int]
) -> list[Node]:
    added = []
    for output in wanted:
        name = f"{node.name}/{inline.suffix}" + (f"_{output}" if len(flat) > 1 else "")
        new = inline.add(editor, name, node.tensor(output), flat[output], node)
        if not editor.reroute(node, output, new.tensor(0), keep=new.index):
            raise PatchError(f"nothing reads output {output} of {node}: nothing flows back to it")
        added.append(new)
    return added


def _behind_switch(
    node: Node, editor: Editor, inline: InlineOp, flat: list[FlatArg], wanted: list[int]
) -> list[Node]:
    """Send the readers of each output through an op of its own, the switch keeping its name.

    The tensors of a switch cannot be fetched, so nobody holds on to their names.
    """
    read = [output for output in wanted if uses(node, output)]
    for output in read:
        for reader, _ in uses(node, output):
            _refuse_between(node, reader)
    return _behind_source(node, editor, inline, flat, read)


def _behind_several(
    node: Node, editor: Editor, inline: InlineOp, flat: list[FlatArg], wanted: list[int]
) -> list[Node]:
    name, put = node.name, []

    def through(moved: Node) -> list[str]:
        read = [moved.tensor(output) for output in range(len(flat))]
        for output in wanted:
            added = f"{name}/{inline.suffix}_{output}"
            put.append(inline.add(editor, added, read[output], flat[output], moved))
            read[output] = put[-1].tensor(0)
        return read

    dtypes = [arg.dtype for arg in flat]
    if any(arg.is_ref for arg in flat) or None in dtypes:
        raise PatchError(f"{node}: its outputs cannot be passed on: {_reasons(flat)}")
    values = {"T": attrs.dtypes([dtype for dtype in dtypes if dtype])}
    editor.take_name(node, "IdentityN", through, values)
    return put


def nothing_flows(node: Node, at_outputs: bool, only: int | None) -> str:
    """Return why no gradient can flow through this side of an op; nothing where one may.

    Raises PatchError where there is no such output or input, or we cannot tell: a reference to a
    variable, a dtype that the NodeDef does not name.
    """
    which = "output" if at_outputs else "input"
    flat = op_args.known_outputs(node) if at_outputs else op_args.known_inputs(node)
    if only is not None and only >= len(flat):
        raise PatchError(f"{node} has no {which} {only}; it has {len(flat)}, counted from 0")
    asked = flat if only is None else [flat[only]]
    if any(op_args.carries(arg) for arg in asked):
        return ""
    unclear = [arg for arg in asked if arg.is_ref or arg.dtype is None]
    if unclear:
        raise PatchError(f"{node}: {which} {unclear[0].name} {op_args.why_not(unclear[0])}")
    return f"{node}: {_reasons(asked)}" if asked else f"{node} has no {which}s"


def _wanted(flat: Sequence[FlatArg], only: int | None) -> list[int]:
    asked = range(len(flat)) if only is None else [only]
    return [place for place in asked if op_args.carries(flat[place])]


def _reasons(flat: list[FlatArg]) -> str:
    reasons = [f"{arg.name} {op_args.why_not(arg)}" for arg in flat if not op_args.carries(arg)]
    return "; ".join(dict.fromkeys(reasons))


def refuse_fixed(node: Node, slot: int) -> None:
    """Raise PatchError where an op must stay next to the one that it reads in this slot."""
    producer = node.body.producer(node.inputs[slot])
    if producer is None:
        return
    if node.op in BRANCHES and (producer.op in FIXED or _starts_loop(producer)):
        raise PatchError(f"{node} must stay next to {producer}, which its loop needs")
    _refuse_between(producer, node)


def _starts_loop(node: Node) -> bool:
    """Return whether an op is the Merge of a loop, or an Enter that such a Merge reads."""
    body = node.body
    if node.op in ENTERS:
        readers = [Node(body, index) for index, _ in body.readers.get(node.name, ())]
        return any(reader.op in MERGES and _starts_loop(reader) for reader in readers)
    producers = [body.producer(text) for text in node.data_inputs if node.op in MERGES]
    return any(producer is not None and producer.op in FIXED for producer in producers)


def _refuse_loop_start(node: Node) -> None:
    if _starts_loop(node):
        raise PatchError(
            f"{node} must stay next to the ops that its loop begins with: patch what it reads, "
            f"or what reads the loop's Switch"
        )


def _refuse_between(producer: Node, reader: Node) -> None:
    if producer.op in ALL_SWITCHES and reader.op in EXITS:
        raise PatchError(
            f"{reader} must stay next to {producer}, where TensorFlow looks for the gradient of "
            f"their loop; patch the outputs of {reader.name!r}"
        )


OUTPUTS = "outputs"


def idle(node: Node, at: str) -> str:
    """Why nothing flows back at that place, so that a patch there means nothing; else nothing."""
    side, place = parsed(at)
    return nothing_flows(node, side == "output", place)


def tensors_at(target: Node | MatchedGroup, at: str) -> list[FlatArg]:
    """Return the tensors at that place of an op, or of a match as one op."""
    side, place = parsed(at)
    if side == "output":
        flat = op_args.known_outputs(target.last if isinstance(target, MatchedGroup) else target)
    else:
        flat = (
            list(target.args) if isinstance(target, MatchedGroup) else op_args.known_inputs(target)
        )
    return flat if place is None else flat[place : place + 1]


def parsed(at: str) -> tuple[str, int | None]:
    """Return the side that `at` names, "output" or "input", and the one place on it."""
    side, _, place = at.partition(":")
    return side.removesuffix("s"), int(place) if place else None


def put_at(target: Node | MatchedGroup, editor: Editor, inline: InlineOp, at: str) -> list[Node]:
    """Put `inline` on a side of an op, or of a match as one op, and return the ops added for it.

    Where nothing flows back there, there is nothing to do, and the report says so; at the inputs of
    a match it is an error. A tensor that a match reads in several places comes through one op, so
    that what flows back from all of them passes it together.
    """
    side, place = parsed(at)
    if isinstance(target, MatchedGroup) and side == "input":
        return _before_match(target, editor, inline, place)
    node = target.last if isinstance(target, MatchedGroup) else target
    reason = idle(node, at)
    if reason:
        editor.skipped(reason)
        return []
    check_reached(node, editor)
    return (on_outputs if side == "output" else on_inputs)(node, editor, inline, place)


def _before_match(
    group: MatchedGroup, editor: Editor, inline: InlineOp, only: int | None
) -> list[Node]:
    if only is not None and only >= len(group.args):
        raise PatchError(f"the match has no input {only}; {group.reading()}")
    wanted = _wanted(group.args, only)
    if not wanted:
        raise PatchError(f"no gradient flows into the match there; {group.reading()}")
    check_reached(group.last, editor)
    return [_put_filter(group, place, editor, inline) for place in wanted]


def _put_filter(group: MatchedGroup, place: int, editor: Editor, inline: InlineOp) -> Node:
    text, (first, slot) = group.reads[place], group.slots[place]
    refuse_fixed(first, slot)
    op, values = inline.of(group.args[place].dtype or "")
    name = f"{group.last.name}/{inline.suffix}_{place}"
    added = editor.add(name, op, [text], values, beside=first, before=True)
    for node in group.nodes:
        for at_slot, read in enumerate(node.data_inputs):
            if names.parse(read) == names.parse(text):
                editor.set_input(node, at_slot, added.tensor(0))
    return added


class SidePatch(Patch):
    """A patch of what flows back through a side of an op, or of a match as one op."""

    __slots__ = ()
    takes_match: ClassVar[bool] = True
    takes_side: ClassVar[bool] = True
    at: str

    @property
    def is_at_outputs(self) -> bool:
        """Return whether it is not put before the inputs."""
        return parsed(self.at)[0] == "output"

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs; at inputs it looks at what the op reads."""
        return self.is_at_outputs

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where nothing flows back there anyway."""
        if nodes and all(idle(node, self.at) for node in nodes):
            raise PatchError(f"nothing flows back there: {idle(nodes[0], self.at)}")

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Change what flows back to a match as one op, or from it to what it reads."""
        group.refuse_open()
        self.put(group, editor)

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Change what flows back through one op."""
        self.put(node, editor)

    def put(self, target: Node | MatchedGroup, editor: Editor) -> None:
        """Put what it is in line."""
        raise NotImplementedError

    def by_input(self, group: MatchedGroup) -> ByInput:
        """At one input it means that tensor, else it treats all alike."""
        side, place = parsed(self.at)
        return at_one(group, place) if side == "input" and place is not None else ByInput(["dy"])

"""Changes a graph, with `template` and `undo`; no other code does.

A node keeps in its record what it was before the first change.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphpatch import names, opdefs
from graphpatch.errors import PatchError
from graphpatch.graph.attrs import OUTPUT_SHAPES, OVERRIDE
from graphpatch.graph.graph import ModelGraph, Restored
from graphpatch.graph.node import Body, EditedNode, Node, Payload, large_entry
from graphpatch.graph.record import PROVENANCE_ATTR, Author, NodeRecord
from graphpatch.graph.walk import uses
from graphpatch.graph.wire import Span, message
from graphpatch.protos import AttrValue, FunctionDef, NodeDef

# Attrs of an op that say where it runs: they hold as well for the node that takes its name.
INHERITED = ("_class", "_tpu_replicate", "_XlaCompile", "_XlaScope", "_xla_compile_id")

Attrs = Mapping[str, AttrValue]


class Room(NamedTuple):
    """An op that was moved aside, the name that it had, and how a function spelled its outputs."""

    node: Node
    name: str
    spelled: Mapping[str, int]


@dataclass(eq=False)
class Editor:
    """Changes `graph`, which must be a copy of one's own, on behalf of one rule.

    Without `author` the container needs the change, and no rule. `patched` is the op that the rule
    is at: what is added is written down as being for it.
    """

    graph: ModelGraph
    author: Author | None
    patched: str = ""
    rule: int | None = field(init=False, default=None)  # its place among the graph's rules

    def __post_init__(self) -> None:
        if self.author is not None:
            rules = self.graph.library.rules
            if self.author not in rules:
                rules.append(self.author)
            self.rule = rules.index(self.author)

    def set_attr(self, node: Node, key: str, value: AttrValue | None) -> None:
        """Set an attr of an op, or drop it where the value is None."""
        edited = self._open(node)
        if key in dict(map(large_entry, edited.large)):
            edited.keep_large()
        if value is None:
            edited.node.attr.pop(key, None)
        else:
            edited.node.attr[key].CopyFrom(value)
        if key == OVERRIDE and self.rule is not None and self.rule not in edited.record.keys:
            edited.record.keys += (self.rule,)

    def set_input(self, node: Node, slot: int, text: str) -> None:
        """Let an op read another tensor in this slot of NodeDef.input."""
        body, index = node.body, node.index
        inputs = body.heads.inputs[index]
        _move_use(node, slot, inputs[slot], text)
        if not isinstance(inputs, list):
            inputs = body.heads.inputs[index] = list(inputs)
        inputs[slot] = text
        self._open(node, only_input=True).node.input[slot] = text

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        attrs: Attrs,
        beside: Node,
        before: bool = False,
    ) -> Node:
        """Add an op, written next to the node `beside`, on its device and in its colocation."""
        name = _fresh(name, beside.body)
        proto = NodeDef(name=name, op=op, input=inputs, device=beside.device, attr=attrs)
        _inherit(proto, beside)
        return self._add(proto, beside, before)

    def clone(self, node: Node, name: str, inputs: Sequence[str]) -> Node:
        """Add an op that is another one on other inputs, written next to it."""
        payload = node.body.payload(node.index)
        proto = message(NodeDef, payload.small)
        proto.name, proto.input[:] = _fresh(name, node.body), inputs
        for key in (OUTPUT_SHAPES, PROVENANCE_ATTR):
            proto.attr.pop(key, None)
        node.body.model = None
        return self._add(proto, node, before=False, large=payload.large, clone_of=node.name)

    def add_function(self, function: FunctionDef, gradient: str = "") -> None:
        """Put a function into the library, and the name of its gradient function beside it.

        A function that is there already must be the same one: names depend on the content.
        """
        graph, name = self.graph, function.signature.name
        if name in graph.library.signatures:
            return
        added = graph.added.function.add()
        added.CopyFrom(function)
        # Not an attr: tf.saved_model.load refuses functions with attrs that it does not know.
        # The same in every file: a process that loads two of them compares functions by content.
        added.signature.description = f"{PROVENANCE_ATTR}: carries a gradient"
        graph.library.signatures[name] = opdefs.from_proto(function.signature)
        if gradient:
            graph.added.gradient.add(function_name=name, gradient_func=gradient)
            graph.library.gradients[name] = gradient

    def add_restored(self, gradient: Restored) -> None:
        """Let tf.saved_model.load register a gradient that the library holds."""
        if gradient.name in self.graph.library.signatures:
            return
        self.add_function(gradient.function)
        self.graph.restored.append(gradient)
        self.graph.added.registered_gradients.add(
            gradient_func=gradient.name, registered_op_type=gradient.key
        )

    def make_room(self, node: Node) -> Room:
        """Move an op aside to `NAME/forward`; `take_name` gives its name away."""
        room = Room(node, node.name, _spelled(node))
        edited = self._open(node)
        edited.node.name = _fresh(f"{room.name}/forward", node.body)
        rename_all(node.body, [node.index], [edited.node.name])
        return room

    def take_name(self, room: Room, op: str, inputs: Sequence[str], attrs: Attrs) -> Node:
        """Add an op that takes the name and outputs of one that made room.

        It must have as many outputs as the old one: whoever read those reads the new ones.
        """
        shapes = room.node.attr(OUTPUT_SHAPES)
        attrs = attrs if shapes is None else {**attrs, OUTPUT_SHAPES: shapes}
        new = self.add(room.name, op, inputs, attrs, beside=room.node)
        self._respell(new, room.spelled)
        return new

    def become(self, node: Node, op: str) -> None:
        """Let an op be a call of a function that does what it did: same name, inputs, outputs."""
        body, was, spelled, by_type = node.body, node.op, _spelled(node), node.body.by_type
        proto = NodeDef(name=node.name, op=op, input=node.inputs, device=node.device)
        _inherit(proto, node)
        edited = self._open(node)
        edited.node = proto
        edited.keep_large()
        body.heads.ops[node.index] = op
        by_type[was].remove(node.index)
        by_type.setdefault(op, []).append(node.index)
        self._respell(node, spelled)

    def shadow(self, node: Node) -> None:
        """Write down that no gradient reaches an op any more, though it stays as it is."""
        record = self._open(node).record
        if record.shadow is None:
            record.shadow = self.rule

    def set_reads(self, node: Node, reads: Sequence[str]) -> None:
        """Write down what x0, x1, ... are in the formula of an op that was added."""
        if reads:
            self._open(node).record.reads = tuple(reads)

    def reroute(self, node: Node, output: int, tensor: str, keep: int) -> int:
        """Let all who read this output, except the op with index `keep`, read `tensor`.

        Returns how many uses were changed.
        """
        old, body, count = node.tensor(output), node.body, 0
        for reader, slot in uses(node, output):
            if reader.index != keep:
                self.set_input(reader, slot, tensor)
                count += 1
        returned = [key for key in body.returned.get(node.name, ()) if body.ret[key] == old]
        for key in returned:
            _give_output(body, key, tensor)
        return count + len(returned)

    def _add(
        self,
        proto: NodeDef,
        beside: Node,
        before: bool,
        large: tuple[Span, ...] = (),
        **fields: Any,
    ) -> Node:
        """Put a new node into the body, and write down that it was added."""
        rules = () if self.rule is None else (self.rule,)
        record = NodeRecord(rules=rules, patched=self.patched, **fields)
        if OVERRIDE in proto.attr:
            record.keys = rules
        body = beside.body
        node = Node(body, append_all(body, [proto.name], [proto.op], [tuple(proto.input[:])]))
        body.edited[node.index] = EditedNode(proto, record, large)
        _place_beside(node, beside.index, before)
        return node

    def _open(self, node: Node, only_input: bool = False) -> EditedNode:
        edited = node.body.open_node(node.index)
        edited.record.touch(self.rule, only_input)
        if not only_input:
            node.body.tensors.clear()
        return edited

    def _respell(self, new: Node, spelled: Mapping[str, int]) -> None:
        """Spell outputs anew: inside a function they are spelled by the op type's output args."""
        body = new.body
        anew = {text: new.tensor(output) for text, output in spelled.items()}
        anew = {text: tensor for text, tensor in anew.items() if tensor != text}
        if not anew:
            return
        for index, slot in list(body.readers.get(new.name, ())):
            text = body.heads.inputs[index][slot]
            if text in anew:
                self.set_input(Node(body, index), slot, anew[text])
        for key in list(body.returned.get(new.name, ())):
            if body.ret[key] in anew:
                _give_output(body, key, anew[body.ret[key]])


def _fresh(name: str, body: Body) -> str:
    """Return a name like this that no op or argument of the body has."""
    return names.fresh(name, ChainMap[str, Any](body.by_name, body.arguments))


def _inherit(proto: NodeDef, node: Node) -> None:
    attrs = node.attrs()
    for key in INHERITED:
        if key in attrs:
            proto.attr[key].CopyFrom(attrs[key])


def _spelled(node: Node) -> dict[str, int]:
    """Return how a function body spells each output of an op; nothing in the main graph."""
    if node.body.is_main:
        return {}
    if node.outputs is None:
        raise PatchError(f"{node}: its outputs are not known, so it cannot be moved aside")
    return {node.tensor(output): output for output in range(len(node.outputs))}


def without_records(body: Body) -> None:
    """Let what was edited since the body was copied be without records of it."""
    for index, edited in body.edited.items():
        if isinstance(edited, EditedNode) and index not in body.heads.records:
            edited.node.attr.pop(PROVENANCE_ATTR, None)
            raw = edited.node.SerializeToString(deterministic=True)
            body.edited[index] = Payload.of((raw,), edited.large)


def append_all(
    body: Body, new: Sequence[str], ops: Sequence[str], inputs: Sequence[tuple[str, ...]]
) -> int:
    """Append new ops, by their heads, to the columns of a body; return the index of the first."""
    heads, by_type, first = body.heads, body.by_type, len(body)
    heads.names += new
    heads.ops += ops
    heads.inputs += inputs
    body.by_name.update(zip(new, range(first, len(body)), strict=True))
    for index, op in enumerate(ops, first):
        by_type.setdefault(op, []).append(index)
    for index, read in enumerate(inputs, first) if "readers" in vars(body) else ():
        for slot, text in enumerate(read):
            body.readers.setdefault(names.op_of(text), []).append((index, slot))
    return first


def rename_all(body: Body, indices: Sequence[int], new: Sequence[str]) -> None:
    """Let ops have other names, which none has yet; who reads an old one reads what takes it."""
    old = [body.heads.names[index] for index in indices]
    body.by_name.update(zip(new, map(body.by_name.pop, old), strict=True))
    for index, name, was in zip(indices, new, old, strict=True):
        body.heads.names[index] = name
        if index not in body.root and name != was:
            body.renamed.setdefault(index, was)


def _place_beside(new: Node, beside: int, before: bool) -> None:
    """Write a new op next to another, behind what it reads: files stay in topological order."""
    body = new.body
    root = body.root.get(beside, beside)
    order, places = body.placed.setdefault(root, [root]), body.places

    def place(index: int) -> int:
        places[index] = order.index(index, places.get(index, 0))
        return places[index]

    at = place(beside)
    if not before:
        read = {body.by_name.get(names.op_of(text), -1) for text in new.inputs}
        near = {beside, *(index for index in read if body.root.get(index, index) == root)}
        if len(near) < 8:
            at = 1 + max(map(place, near))
        else:  # many: one search from the end is faster
            at = 1 + next(at for at in reversed(range(len(order))) if order[at] in near)
    order.insert(at, new.index)
    body.root[new.index], places[new.index] = root, at


def _move_use(node: Node, slot: int, was: str, text: str) -> None:
    """Let the body know that a slot is read from another op, where it keeps who reads what."""
    body, old, new = node.body, names.op_of(was), names.op_of(text)
    if old != new and "readers" in vars(body):
        body.readers[old].remove((node.index, slot))
        body.readers.setdefault(new, []).append((node.index, slot))


def _give_output(body: Body, key: str, tensor: str) -> None:
    """Let an output of a function be this tensor; what it was first is kept."""
    was, returned = body.ret[key], body.returned
    body.ret[key] = tensor
    body.returns.setdefault(key, was)
    returned[names.op_of(was)].remove(key)
    returned.setdefault(names.op_of(tensor), []).append(key)

"""The only code that changes a graph. Each change is written down on the node it touched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import FunctionDef

from graphpatch import names, opdefs
from graphpatch.errors import PatchError
from graphpatch.graph import nodedef
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import KEY as PROVENANCE
from graphpatch.graph.provenance import Author, signed
from graphpatch.graph.restored import Restored

# Attrs of an op that hold as well for the node that takes its name: where it runs, and its shapes.
INHERITED = ("_class", "_tpu_replicate", "_XlaCompile", "_XlaScope", "_xla_compile_id")
SHAPES = "_output_shapes"

Attrs = Mapping[str, AttrValue]
T = TypeVar("T")


@dataclass(eq=False)
class Editor:
    """Changes `graph`, which must be a copy of one's own, on behalf of one rule."""

    graph: Graph
    author: Author
    notes: dict[str, None] = field(default_factory=dict)
    carriers: dict[str, None] = field(default_factory=dict)
    session: dict[str, None] = field(default_factory=dict)
    tape: dict[str, None] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    known: dict[Hashable, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Say something once to whoever reads the report."""
        self.notes[text] = None

    def left_alone(self, reason: str) -> None:
        """Report that on one of the matched ops the patch means nothing, and why."""
        self.idle.append(reason)

    def used(self, carrier: str, session: str = "", tape: str = "") -> None:
        """Report how a gradient travels, and which key a Session, a tape must have registered."""
        self.carriers[carrier] = None
        if session:
            self.session[session] = None
        if tape:
            self.tape[tape] = None

    def cached(self, question: Hashable, answer: Callable[[], T]) -> T:
        """The answer to a question about the graph as a whole that no edit of this rule changes."""
        if question not in self.known:
            self.known[question] = answer()
        found: T = self.known[question]
        return found

    def set_attr(self, node: Node, key: str, value: AttrValue | None) -> None:
        """Set an attr of an op, or drop it where the value is None."""
        payload = node.body.payload(node.index)
        old = nodedef.attr_span(payload, key)
        was = None if old is None else bytes(old.source.data[old.start : old.end]).hex()
        raw = None if value is None else value.SerializeToString(deterministic=True)
        payload = nodedef.with_attr(payload, key, raw)
        self._write(node, payload, self.author.entry("attr", attr=key, was=was))

    def set_input(self, node: Node, slot: int, text: str) -> None:
        """Let an op read another tensor in this slot of NodeDef.input."""
        heads, was = node.body.heads, node.inputs[slot]
        payload = nodedef.with_input(node.body.payload(node.index), slot, text)
        heads.inputs[node.index] = (*node.inputs[:slot], text, *node.inputs[slot + 1 :])
        if "readers" in node.body.__dict__:
            node.body.readers[names.op_of(was)].remove((node.index, slot))
            node.body.readers.setdefault(names.op_of(text), []).append((node.index, slot))
        self._write(node, payload, self.author.entry("input", slot=slot, was=was))

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
        body = beside.body
        name = names.fresh(name, _Taken(body))
        raw = {key: value.SerializeToString(deterministic=True) for key, value in attrs.items()}
        raw |= _inherited(beside, INHERITED)
        node = _append(body, name, op, tuple(inputs))
        _place(node, beside.index, before)
        payload = nodedef.encode(name, op, list(inputs), beside.device, raw)
        self._write(node, payload, self.author.entry("added"))
        return node

    def clone(self, node: Node, name: str, inputs: Sequence[str]) -> Node:
        """Add an op that is another one on other inputs, written next to it."""
        body = node.body
        new = _append(body, names.fresh(name, _Taken(body)), node.op, tuple(inputs))
        _place(new, node.index, before=False)
        payload = nodedef.with_name(body.payload(node.index), new.name)
        payload = nodedef.with_inputs(payload, inputs)
        for key in (SHAPES, PROVENANCE):
            payload = nodedef.with_attr(payload, key, None)
        self._write(new, payload, self.author.entry("added", of=node.name))
        return new

    def add_function(self, function: FunctionDef, gradient: str = "") -> None:
        """Put a function into the library, and the name of its gradient function beside it.

        A function that is there already must be the same one: names hang on the content.
        """
        graph, name = self.graph, function.signature.name
        if name in graph.library.signatures:
            return
        added = graph.added.function.add()
        added.CopyFrom(function)
        # Not an attr: tf.saved_model.load refuses functions with attrs that it does not know.
        # The same in every file: a process that loads two of them compares functions by content.
        added.signature.description = f"{PROVENANCE}: carries a gradient"
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

    def take_name(
        self,
        node: Node,
        op: str,
        inputs: Callable[[Node], Sequence[str]],
        attrs: Attrs,
        shadow: bool = False,
    ) -> Node:
        """Move an op aside to `NAME/forward`, and add an op that takes its name and outputs.

        `inputs` gives the new op's inputs, from the op under its new name. The new op must have
        as many outputs as the old one: whoever read those reads the new ones. `shadow` says that
        no gradient reaches the moved op any more.
        """
        name, spelled = node.name, _spelled(node)
        shapes = nodedef.attr_span(node.body.payload(node.index), SHAPES)
        self._rename(node, names.fresh(f"{name}/forward", _Taken(node.body)), shadow)
        if shapes is not None:
            attrs = {**attrs, SHAPES: nodedef.attr_value(shapes)}
        new = self.add(name, op, inputs(node), attrs, beside=node)
        self._respell(new, spelled)
        return new

    def become(self, node: Node, op: str) -> None:
        """Let an op be a call of a function that does what it did: same name, inputs, outputs."""
        body, was, spelled = node.body, node.op, _spelled(node)
        raw = _inherited(node, (*INHERITED, PROVENANCE))
        payload = nodedef.encode(node.name, op, list(node.inputs), node.device, raw)
        body.heads.ops[node.index] = op
        if "by_type" in body.__dict__:
            body.by_type[was].remove(node.index)
            body.by_type.setdefault(op, []).append(node.index)
        self._write(node, payload, self.author.entry("enclosed", was=was))
        self._respell(node, spelled)

    def shadow(self, node: Node) -> None:
        """Write down that no gradient reaches an op any more, though it stays as it is."""
        payload = node.body.payload(node.index)
        self._write(node, payload, self.author.entry("shadowed", shadowed=True))

    def reroute(self, node: Node, output: int, tensor: str, keep: int) -> int:
        """Let all who read this output, except the op with index `keep`, read `tensor`.

        Returns how many uses were changed.
        """
        old, body, count = node.tensor(output), node.body, 0
        for reader, slot in uses(node, output):
            if reader.index != keep:
                self.set_input(reader, slot, tensor)
                count += 1
        for key, text in body.ret.items():
            if text == old:
                body.ret[key] = tensor
                count += 1
        return count

    def _rename(self, node: Node, name: str, shadow: bool) -> None:
        body, was = node.body, node.name
        payload = nodedef.with_name(body.payload(node.index), name)
        body.heads.names[node.index] = name
        body.by_name[name] = body.by_name.pop(was)
        if node.index not in body.root:
            body.renamed.setdefault(node.index, was)
        shadowed = {"shadowed": True} if shadow else {}
        self._write(node, payload, self.author.entry("renamed", was=was, **shadowed))

    def _respell(self, new: Node, spelled: Mapping[str, int]) -> None:
        """Inside a function, outputs are spelled by the op type's output args: spell them anew."""
        body = new.body
        if not spelled:
            return
        for index, slot in list(body.readers.get(new.name, ())):
            text = body.heads.inputs[index][slot]
            if text in spelled and index != new.index:
                self.set_input(Node(body, index), slot, new.tensor(spelled[text]))
        for key, text in body.ret.items():
            if text in spelled:
                body.ret[key] = new.tensor(spelled[text])

    def _write(self, node: Node, payload: nodedef.Payload, entry: bytes) -> None:
        node.body.edited[node.index] = signed(payload, entry)


def uses(node: Node, output: int) -> list[tuple[Node, int]]:
    """Who reads this output: the op, and the slot in its NodeDef.input."""
    tensor, body = node.tensor(output), node.body
    return [
        (Node(body, index), slot)
        for index, slot in body.readers.get(node.name, ())
        if _same_tensor(body.heads.inputs[index][slot], tensor)
    ]


class _Taken:
    """The names that an op of a body cannot have: those of its ops and of its arguments."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def __contains__(self, name: object) -> bool:
        return name in self.body.by_name or name in self.body.arguments


def _append(body: Body, name: str, op: str, inputs: tuple[str, ...]) -> Node:
    index = len(body)
    body.heads.names.append(name)
    body.heads.ops.append(op)
    body.heads.inputs.append(inputs)
    body.by_name[name] = index
    # The cached indices are kept up to date where they were made: making them anew is linear.
    if "by_type" in body.__dict__:
        body.by_type.setdefault(op, []).append(index)
    if "readers" in body.__dict__:
        for slot, text in enumerate(inputs):
            body.readers.setdefault(names.op_of(text), []).append((index, slot))
    return Node(body, index)


def _place(new: Node, beside: int, before: bool) -> None:
    """Write a new op next to another, behind what it reads: files stay in topological order."""
    body = new.body
    root = body.root.get(beside, beside)
    order = body.placed.setdefault(root, [root])
    at = order.index(beside)
    if not before:
        read = {body.by_name.get(names.op_of(text)) for text in new.inputs}
        at = max(at, *(place for place, index in enumerate(order) if index in read | {beside})) + 1
    order.insert(at, new.index)
    body.root[new.index] = root


def _inherited(node: Node, keys: Sequence[str]) -> dict[str, bytes]:
    payload = node.body.payload(node.index)
    spans = {key: span for key in keys if (span := nodedef.attr_span(payload, key)) is not None}
    return {key: bytes(s.source.data[s.start : s.end]) for key, s in spans.items()}


def _spelled(node: Node) -> dict[str, int]:
    """How a function body spells each output of an op; nothing in the main graph."""
    if node.body.is_main:
        return {}
    if node.outputs is None:
        raise PatchError(f"{node}: its outputs are not known, so it cannot be moved aside")
    return {node.tensor(output): output for output in range(len(node.outputs))}


def _same_tensor(text: str, other: str) -> bool:
    return names.parse(text) == names.parse(other) and not text.startswith("^")

"""Changes a graph, with `inputs`, `placing`, `template` and `dropping`; no other code does.

Each change is written down on the node that it touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.function_pb2 import FunctionDef

from graphpatch import names, opdefs
from graphpatch.errors import PatchError
from graphpatch.graph import edits, nodedef
from graphpatch.graph.body import Body, Node
from graphpatch.graph.displaced import displaced_attr, displaced_input, displaced_name
from graphpatch.graph.edits import PROVENANCE_ATTR, Author, Edit, Origin, rewritten, signed
from graphpatch.graph.graph import Restored
from graphpatch.graph.inputs import give_output, move_use, set_later
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.graph.placing import TakenNames, append, place_beside, rename
from graphpatch.graph.provenance import entries, returned
from graphpatch.graph.topology import uses
from graphpatch.graph.wire import piece_bytes

# Attrs of an op that hold as well for the node that takes its name: where it runs, and its shapes.
INHERITED = ("_class", "_tpu_replicate", "_XlaCompile", "_XlaScope", "_xla_compile_id")
OUTPUT_SHAPES = "_output_shapes"

Attrs = Mapping[str, AttrValue]
T = TypeVar("T")


@dataclass(eq=False)
class Editor:
    """Changes `graph`, which must be a copy of one's own, on behalf of one rule.

    `patched` is the op that the rule is at: what is added is written down as being for it.
    """

    graph: ModelGraph
    author: Author
    patched: str = ""
    notes: dict[str, None] = field(default_factory=dict)
    carriers: dict[str, None] = field(default_factory=dict)
    session: dict[str, None] = field(default_factory=dict)
    tape: dict[str, None] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    known: dict[Hashable, Any] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Say something once to whoever reads the report."""
        self.notes[text] = None

    def skipped(self, reason: str) -> None:
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
        was = None if old is None else piece_bytes(old)
        raw = None if value is None else value.SerializeToString(deterministic=True)
        displaced = displaced_attr(payload, key, was, drop=value is None)
        payload = nodedef.with_attr(payload, key, raw)
        told = None if was is None else was.hex()
        self._write(node, payload, edits.AttrSet(*self.author, key, told, displaced))

    def set_input(self, node: Node, slot: int, text: str) -> None:
        """Let an op read another tensor in this slot of NodeDef.input."""
        heads, was = node.body.heads, node.body.heads.inputs[node.index][slot]
        move_use(node, slot, was, text)
        if set_later(node, slot, text, edits.InputSet(*self.author, slot, was)):
            return
        payload = node.body.payload(node.index)
        displaced = displaced_input(payload, slot, was)
        payload = nodedef.with_input(payload, slot, text)
        heads.inputs[node.index] = (*node.inputs[:slot], text, *node.inputs[slot + 1 :])
        self._write(node, payload, edits.InputSet(*self.author, slot, was, displaced))

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        attrs: Attrs,
        beside: Node,
        before: bool = False,
        reads: Sequence[str] = (),
    ) -> Node:
        """Add an op, written next to the node `beside`, on its device and in its colocation.

        `reads`, what x0, x1, ... are in a formula, is written down where it is given.
        """
        body = beside.body
        name = names.fresh(name, TakenNames(body))
        raw = {key: value.SerializeToString(deterministic=True) for key, value in attrs.items()}
        raw |= _inherited(beside, INHERITED)
        node = append(body, name, op, tuple(inputs))
        place_beside(node, beside.index, before)
        payload = nodedef.encode(name, op, list(inputs), beside.device, raw)
        told = edits.Added(*self.author, patched=self.patched, reads=tuple(reads))
        self._write(node, payload, told)
        return node

    def clone(self, node: Node, name: str, inputs: Sequence[str]) -> Node:
        """Add an op that is another one on other inputs, written next to it."""
        body = node.body
        new = append(body, names.fresh(name, TakenNames(body)), node.op, tuple(inputs))
        place_beside(new, node.index, before=False)
        payload = nodedef.with_name(body.payload(node.index), new.name)
        payload = nodedef.with_inputs(payload, inputs)
        for key in (OUTPUT_SHAPES, PROVENANCE_ATTR):
            payload = nodedef.with_attr(payload, key, None)
        rules = dict.fromkeys(edit.rule for edit in entries(node))
        copies = tuple(rule for rule in rules if rule != self.author.rule)
        told = edits.Added(*self.author, node.name, self.patched, copies=copies)
        self._write(new, payload, told)
        return new

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

    def take_name(
        self,
        node: Node,
        op: str,
        inputs: Callable[[Node], Sequence[str]],
        attrs: Attrs,
        shadow: bool = False,
        reads: Sequence[str] = (),
    ) -> Node:
        """Move an op aside to `NAME/forward`, and add an op that takes its name and outputs.

        `inputs` gives the new op's inputs, from the op under its new name. The new op must have
        as many outputs as the old one: whoever read those reads the new ones. `shadow` says that
        no gradient reaches the moved op any more, `reads` is written down on the new one.
        """
        name, spelled = node.name, _spelled(node)
        shapes = nodedef.attr_span(node.body.payload(node.index), OUTPUT_SHAPES)
        self._rename(node, names.fresh(f"{name}/forward", TakenNames(node.body)), shadow)
        if shapes is not None:
            attrs = {**attrs, OUTPUT_SHAPES: nodedef.attr_value(shapes)}
        new = self.add(name, op, inputs(node), attrs, beside=node, reads=reads)
        self._respell(new, spelled)
        return new

    def become(self, node: Node, op: str) -> None:
        """Let an op be a call of a function that does what it did: same name, inputs, outputs."""
        body, was, spelled = node.body, node.op, _spelled(node)
        before = nodedef.with_attr(body.payload(node.index), PROVENANCE_ATTR, None)
        raw = _inherited(node, (*INHERITED, PROVENANCE_ATTR))
        payload = nodedef.encode(node.name, op, list(node.inputs), node.device, raw)
        body.heads.ops[node.index] = op
        if "by_type" in body.__dict__:
            body.by_type[was].remove(node.index)
            body.by_type.setdefault(op, []).append(node.index)
        self._write(node, payload, edits.Enclosed(*self.author, was, _hex(before)))
        self._respell(node, spelled)

    def shadow(self, node: Node) -> None:
        """Write down that no gradient reaches an op any more, though it stays as it is."""
        payload = node.body.payload(node.index)
        self._write(node, payload, edits.Shadowed(*self.author))

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
        if returned:
            self._return(body.node(names.op_of(tensor)), dict.fromkeys(returned, tensor))
        return count + len(returned)

    def _return(self, node: Node, tensors: Mapping[str, str]) -> None:
        """Let outputs of a function be these tensors of `node`, on which it is written down."""
        body, told = node.body, []
        turn = self.cached(("turns", body.label), lambda: itertools.count(_next_turn(body)))
        for key, tensor in tensors.items():
            was = give_output(body, key, tensor)
            told.append(edits.Returned(*self.author, key, was, next(turn)))
        self._write(node, body.payload(node.index), *told)

    def _rename(self, node: Node, name: str, shadow: bool) -> None:
        was, payload = node.name, node.body.payload(node.index)
        told = edits.Renamed(*self.author, was, displaced_name(payload, was), shadow)
        payload = nodedef.with_name(payload, name)
        rename(node.body, node.index, name)
        self._write(node, payload, told)

    def _respell(self, new: Node, spelled: Mapping[str, int]) -> None:
        """Inside a function, outputs are spelled by the op type's output args: spell them anew."""
        body = new.body
        if not spelled:
            return
        spelled_anew = {
            text: tensor
            for text, output in spelled.items()
            if (tensor := new.tensor(output)) != text
        }
        for index, slot in list(body.readers.get(new.name, ())):
            text = body.heads.inputs[index][slot]
            if text in spelled_anew and index != new.index:
                self.set_input(Node(body, index), slot, spelled_anew[text])
        texts = {key: body.ret[key] for key in body.returned.get(new.name, ())}
        returned = {key: spelled_anew[text] for key, text in texts.items() if text in spelled_anew}
        if returned:
            self._return(new, returned)

    def _write(self, node: Node, payload: nodedef.Payload, *told: Edit) -> None:
        node.body.write(node.index, signed(payload, *told))


def write_origin(body: Body, index: int, origin: Origin) -> None:
    """Write down what the model was on a node that a rule touched, in place of what was there."""
    told: list[Edit | Origin] = [origin, *entries(Node(body, index))]
    body.write(index, rewritten(body.payload(index), told))


def _next_turn(body: Body) -> int:
    before = returned(body)
    return before[-1][1].turn + 1 if before else 0


def _hex(payload: nodedef.Payload) -> str:
    return b"".join(map(piece_bytes, payload)).hex()


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

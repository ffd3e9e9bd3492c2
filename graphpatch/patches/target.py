"""What a patch is for: one op, or the ops of a match that count as one op.

Both are a `Target`: ops, the last of which gives the outputs, and the tensors that they read from
outside, which formulas call x0, x1, ... Most targets are one op with all that it reads; a
`MatchTarget` reads what its pattern leaves outside.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from graphpatch import names
from graphpatch.differentiation.flow import carries, why_not
from graphpatch.differentiation.shapes import KEEPING_IMAGES, Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import PatchError
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.ops import Signature
from graphpatch.graph import attrs
from graphpatch.graph.check import GRADIENT_SCOPE
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import FED
from graphpatch.graph.walk import data_uses
from graphpatch.opdefs import FlatArg
from graphpatch.shown import short

NUMBERED = re.compile(r"""\bx(\d*)\b|"[^"]*"|'[^']*'""")  # or a text, which stays


def signature(node: Node) -> Signature:
    """Return the op as formulas see it: inputs x0, x1, ..., outputs y0, ..., and the attrs."""
    inputs, outputs, op = node.arguments or [], node.outputs or [], node.opdef
    defaults = {} if op is None else op.defaults
    values = {key: attrs.as_json(value) for key, value in node.attrs().items()}
    same_shape = op is not None and len(inputs) == len(outputs) == 1 and 0 in op.keeps_shape
    return Signature.of(
        [arg.dtype or "" for arg in inputs],
        [arg.dtype or "" for arg in outputs],
        {**defaults, **values},
        same_shape=same_shape,
        op_type=node.op,
    )


def windows_of(nodes: Iterable[Node]) -> Mapping[str, object]:
    """Return the attrs of the one convolution or pooling of a match; else nothing."""
    windowed = [node for node in nodes if node.attr("strides") is not None]
    return signature(windowed[0]).attrs if len(windowed) == 1 else {}


class Target(msgspec.Struct, frozen=True):
    """Ops of one body that a patch treats as one op; `last` gives the outputs.

    It is one op, with all that it reads; further `nodes` get their gradient through it alone. A
    `MatchTarget` has ops that read one another. `more` are tensors that a formula reads by name,
    with their dtypes, behind the others. `filtered` is what messages name instead of an op that was
    put in line with a target to filter its gradient.
    """

    nodes: tuple[Node, ...]
    last: Node
    more: tuple[tuple[str, str], ...] = ()
    filtered: str = ""

    is_match: ClassVar[bool] = False

    @classmethod
    def of(cls, node: Node, filtered: str = "") -> Target:
        """Return one op as a target."""
        return Target((node,), node, filtered=filtered)

    @property
    def places(self) -> Sequence[tuple[Node, int]]:
        """Return the op and the input by which each tensor is read."""
        return [(self.last, slot) for slot in range(len(self.last.data_inputs))]

    @property
    def inputs(self) -> Sequence[FlatArg]:
        """Return what the tensors are that it reads; PatchError where that is not known."""
        return known_inputs(self.last)

    @property
    def outputs(self) -> list[FlatArg]:
        """Return its outputs; PatchError where the op type is not known."""
        return known_outputs(self.last)

    @property
    def opened(self) -> Sequence[tuple[str, bool]]:
        """Return which ops inside are read outside, and whether by more than old gradients."""
        return ()

    @property
    def reads(self) -> list[str]:
        """Return the tensors from outside as they are spelled now, whatever was patched before."""
        return [node.inputs[slot] for node, slot in self.places] + [text for text, _ in self.more]

    @property
    def noted(self) -> Sequence[str]:
        """Return what x0, x1, ... are, where the op itself does not tell."""
        return self.reads if self.is_match or self.more else ()

    @property
    def signature(self) -> Signature:
        """Return the target as formulas see it, with what is known of how inputs are broadcast."""
        own = self.own_signature()
        return own.reading([dtype for _, dtype in self.more]) if self.more else own

    def own_signature(self) -> Signature:
        """Return the target as formulas see it that read no tensors by name."""
        own, op = signature(self.last), self.last.opdef
        if op is not None and op.broadcasts and len(op.keeps_shape) >= len(own.inputs):
            return replace(own, broadcast=tuple(name for name, _ in own.inputs))
        return own

    def form(self, formula: Formula | None) -> Hashable:
        """Return all that what a formula computes depends on, but for the shapes that it reads."""
        node, attrs_read = self.last, set[str]()
        if formula is not None:
            attrs_read = set(node.attrs() if formula.reads_op else formula.attrs)
        flat = [*(node.arguments or ()), *(node.outputs or ())]
        values = tuple(str(node.attr(key)) for key in sorted(attrs_read))
        return (node.op, tuple((arg.dtype, arg.is_ref) for arg in flat), values)

    def __str__(self) -> str:
        return self.filtered or str(self.last)

    def reading(self) -> str:
        """Return what x0, x1, ... are, for a message."""
        numbered = [f"x{n}" for n in range(len(self.last.data_inputs))]
        return f"its inputs: {', '.join(numbered) or 'none'}"

    def one_output(self, kind: str) -> FlatArg:
        """Return its output; PatchError where it has several, with which the patch cannot do."""
        if len(self.outputs) != 1:
            raise PatchError(f"{self.last} has {len(self.outputs)} outputs; {kind} needs one")
        return self.outputs[0]

    def refuse_open(self) -> None:
        """Raise PatchError where an op inside is read outside, by more than old gradients."""
        if refused := next((text for text, is_refused in self.opened if is_refused), ""):
            raise PatchError(refused)

    def check_counts_as(self, place: int) -> None:
        """Raise PatchError where it cannot count as the identity of what it reads there.

        Dtypes must be known, and those of tensors with gradients, and equal.
        """
        inputs, outputs = self.inputs, self.outputs
        if place >= len(inputs):
            raise PatchError(f"{self} has no x{place}; {self.reading()}")
        if not outputs:
            raise PatchError(f"{self} has no outputs")
        for arg in (inputs[place], outputs[0]):
            if not carries(arg):
                raise PatchError(
                    f"{self} cannot count as x{place}: {arg.name} {why_not(arg)}; {self.reading()}"
                )
        if inputs[place].dtype != outputs[0].dtype:
            raise PatchError(
                f"{self} cannot count as x{place}, which has another dtype; {self.reading()}"
            )


class MatchTarget(Target, frozen=True, kw_only=True):
    """The ops of a match as one.

    `places` are where it reads from outside, one for each tensor (an op, and which of its inputs),
    `inputs` what these tensors are, `named` what they were called when the match was found, and
    `captures` what the pattern calls some of them. `opened` says of each op inside that is read
    outside by whom, as what flows back from there does not come through the target, and whether
    more than gradients read it that were built before.
    """

    places: tuple[tuple[Node, int], ...]
    inputs: tuple[FlatArg, ...]
    named: tuple[str, ...]
    captures: Mapping[str, str]
    opened: tuple[tuple[str, bool], ...] = ()

    is_match: ClassVar[bool] = True

    def own_signature(self) -> Signature:
        """Return the match as formulas see it, with the attrs of its one window if it has one."""
        inputs, outputs = (
            [arg.dtype or "" for arg in flat] for flat in (self.inputs, self.outputs)
        )
        return Signature.of(inputs, outputs, windows_of(self.nodes))

    def form(self, formula: Formula | None) -> Hashable:
        """Return the ops themselves: no two matches are alike."""
        return self.nodes

    def __str__(self) -> str:
        return f"the match that ends in {self.last}"

    def reading(self) -> str:
        """Return what x0, x1, ... are, with the names of the pattern, for a message."""
        return f"the match {reads_in_words(self.named, self.captures)}"


def reads_in_words(reads: Sequence[str], captures: Mapping[str, str]) -> str:
    """Return what a match reads from outside, in words: "reads 2: x0 = x (a/conv), x1 = a/weights".

    `captures` has, by the name in the pattern, a tensor.
    """
    called = {tensor: f"{name} ({tensor})" for name, tensor in captures.items() if name != tensor}
    listed = [f"x{place} = {called.get(text, text)}" for place, text in enumerate(reads)]
    return f"reads {len(reads)}" + (f": {', '.join(listed)}" if reads else "")


def target_of_match(
    nodes: Sequence[Node], reads: Sequence[str], captures: Mapping[str, str]
) -> MatchTarget:
    """Return the ops as one, which reads these tensors from outside.

    Raises PatchError where they have not one last op, or where one is a source of gradients.
    """
    inside = {node.name for node in nodes}
    readers = {node: _readers(node) for node in nodes}
    ends = [node for node in nodes if not any(read.name in inside for read in readers[node])]
    if len(ends) != 1:
        listed = ", ".join(map(str, ends)) or "none"
        raise PatchError(
            f"a match counts as one op where it ends in one op; this ends in: {listed}"
        )
    for node in nodes:
        if not node.data_inputs and node.op != "Const":
            raise PatchError(
                f"{node} is inside the match, so that no gradient would come to it; a tensor from "
                f"outside is written name:_ in the pattern"
            )
    opened = []
    for node in nodes:
        outside = [reader for reader in readers[node] if reader.name not in inside]
        outputs = [
            f"the output {key!r} of the function" for key in node.body.returned.get(node.name, ())
        ]
        by = short([*map(str, outside), *outputs])
        if by and node is not ends[0] and node.data_inputs:
            is_new = bool(outputs) or not all(GRADIENT_SCOPE.match(node.name) for node in outside)
            opened.append((f"{node} is inside the match, and is read outside by {by}", is_new))
    places: dict[str, tuple[Node, int]] = {}
    for node in nodes:
        for slot, text in enumerate(node.data_inputs):
            places.setdefault(str(names.parse(text)), (node, slot))
    read = tuple(places[str(names.parse(text))] for text in reads)
    return MatchTarget(
        tuple(nodes),
        ends[0],
        places=read,
        inputs=tuple(known_inputs(node)[slot] for node, slot in read),
        named=tuple(reads),
        captures=captures,
        opened=tuple(opened),
    )


def _readers(node: Node) -> list[Node]:
    """Return the ops that read a tensor of this one."""
    indices = dict.fromkeys(index for index, _, _ in data_uses(node.body, node.name))
    return [Node(node.body, index) for index in indices]


def refuse_ambiguous(
    formulas: str | Sequence[str | None], target: MatchTarget, orders: Iterable[Sequence[str]]
) -> None:
    """Raise PatchError where the pattern allows other orders of what the match reads.

    Not where every tensor gets the same gradient in each order: `formulas` are what flows back to
    x0, x1, ..., or one text for all; an empty one is not known.
    """
    for order in orders:
        places = [target.named.index(text) for text in order]
        if isinstance(formulas, str):
            texts, moved = list[str | None]([formulas or None]), list[str | None]([formulas])
        elif len(formulas) != len(places):
            return  # which is refused with a message of its own
        else:
            texts, moved = list(formulas), [formulas[place] for place in places]
        unmoved = range(len(places))
        renamed = [_renumbered(text, places) for text in texts]
        if renamed == [_renumbered(text, unmoved) for text in moved]:
            continue
        place = next(n for n, text in enumerate(order) if text != target.named[n])
        node, slot = target.places[place]
        first, second = sorted([target.named[place], order[place]])
        raise PatchError(
            f"{target}: it is not clear which tensor is x{place}, {first} or {second}: the order "
            f"of the file would decide; write the input slot into the pattern, as in "
            f'"x:_ -> m:{node.op}:{slot}"; {target.reading()}'
        )


def _renumbered(text: str | None, places: Sequence[int]) -> str | None:
    """Return the formula with x0, x1, ... called by these numbers, without spaces."""

    def renamed(variable: re.Match[str]) -> str:
        if variable[1] is None:
            return variable[0]
        number = int(variable[1] or 0)
        return f"x{places[number] if number < len(places) else number}"

    return None if text is None else "".join(NUMBERED.sub(renamed, text).split())


Keeps = Literal["same", "broadcast", "unknown", "other"]


def keeps_shape(target: Target, place: int) -> Keeps:
    """Return how the shape of a target's output is that of its input number `place`.

    "same", in every run; "broadcast", at least as large; "other" where the shapes are known to
    differ; "unknown".
    """
    broadcasts = {str(names.parse(target.reads[place])): False}
    for _ in target.nodes:  # which are few, and may be in any order
        for node in target.nodes:
            op, texts = node.opdef, [str(names.parse(text)) for text in node.data_inputs]
            slots = (0,) if node.op in KEEPING_IMAGES else op.keeps_shape if op else ()
            known = [texts[slot] for slot in slots if slot < len(texts)]
            known = [text for text in known if text in broadcasts]
            if op is not None and node.outputs and known:
                is_larger = op.broadcasts or any(broadcasts[text] for text in known)
                broadcasts.setdefault(str(names.parse(node.tensor(0))), is_larger)
    is_broadcast = broadcasts.get(str(names.parse(target.last.tensor(0))))
    if is_broadcast is not None:
        return "broadcast" if is_broadcast else "same"
    shapes = Shapes(Wiring(target.last.body))
    tensors = (shapes.wiring.tensor(target.reads[place]), (target.last.index, 0))
    if not all(map(shapes.is_known, tensors)):
        return "unknown"
    return "same" if shapes.of(tensors[0]) == shapes.of(tensors[1]) else "other"


def known_outputs(node: Node) -> list[FlatArg]:
    """Return the outputs of an op; PatchError where its op type is not known."""
    return _known_or_refuse(node, node.outputs, "outputs")


def known_inputs(node: Node) -> list[FlatArg]:
    """Return the data inputs of an op; PatchError where its op type is not known, or has others."""
    refuse_malformed([node])
    return _known_or_refuse(node, node.arguments, "inputs")


def refuse_malformed(nodes: Iterable[Node]) -> None:
    """Raise PatchError for the first op that does not read as many tensors as its op type does.

    Ops that are alike are asked about once.
    """
    sound: set[tuple[int, str, int]] = set()
    for node in nodes:
        heads, index = node.body.heads, node.index
        inputs = heads.inputs[index]
        count = len(node.data_inputs if inputs and inputs[-1][:1] == "^" else inputs)
        kind, op = (id(heads), heads.ops[index], count), None
        if kind in sound or (op := node.opdef) is None:
            continue
        has_list = any(arg.is_list for arg in op.inputs)
        takes = len(node.arguments or ()) if has_list else len(op.inputs)
        if count != takes:
            raise PatchError(
                f"{node} reads {count} tensors, and {node.op} takes {takes}: the model is broken "
                f"there"
            )
        if not has_list:
            sound.add(kind)


def _known_or_refuse(node: Node, flat: list[FlatArg] | None, which: str) -> list[FlatArg]:
    if flat is None:
        raise PatchError(
            f"{node}: op type {node.op} is not one that TensorFlow or the model's library "
            f"defines, so its {which} are not known; only override_gradient by a formula or a "
            f"registered key can reach it (emit: auto)"
        )
    return flat


def dtypes_of(what: object, flat: Sequence[FlatArg]) -> tuple[str, ...]:
    """Return the dtypes of these tensors; PatchError where one is not known."""
    for arg in flat:
        if arg.dtype is None:
            raise PatchError(f"{what}: {arg.name} {why_not(arg)}")
    return tuple(arg.dtype or "" for arg in flat)


def is_source(node: Node) -> bool:
    """Return whether nothing lies before an op that a gradient reaches."""
    return node.op in FED or not node.data_inputs

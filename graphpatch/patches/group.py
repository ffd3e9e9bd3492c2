"""A match as one op: what it reads from outside, and what it gives to outside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from graphpatch import names
from graphpatch.errors import PatchError
from graphpatch.graph.check import GRADIENT_SCOPE
from graphpatch.graph.node import Node
from graphpatch.graph.walk import data_uses
from graphpatch.opdefs import FlatArg
from graphpatch.patches import op_args
from graphpatch.table import short


class MatchedGroup(msgspec.Struct, frozen=True):
    """Ops of one body that count as one op.

    `last` is the op whose outputs are the group's. `slots` are the places where the group reads
    from outside, one for each tensor (an op of the group, and which of its inputs), `args` what
    these tensors are; `named` has them as they were called when the group was found, and
    `captures` what the pattern calls some of them. `open` says of each op inside that is read
    outside by whom: what flows back from there does not come through the group. `refused` is the
    first of them that more than gradients read which were built before. `more` are tensors that a
    formula reads by name, behind those that the group reads.
    """

    nodes: tuple[Node, ...]
    last: Node
    slots: tuple[tuple[Node, int], ...]
    args: tuple[FlatArg, ...]
    named: tuple[str, ...] = ()
    captures: Mapping[str, str] = msgspec.field(default_factory=dict)
    open: tuple[str, ...] = ()
    refused: str = ""
    more: tuple[str, ...] = ()

    def refuse_open(self) -> None:
        """Raise PatchError where an op inside is read outside, by more than old gradients."""
        if self.refused:
            raise PatchError(self.refused)

    @property
    def reads(self) -> list[str]:
        """Return the tensors from outside as they are spelled now, whatever was patched before."""
        return [*(node.data_inputs[slot] for node, slot in self.slots), *self.more]

    def reading(self) -> str:
        """Return what x0, x1, ... are, for a message."""
        return f"the match {reads_in_words(self.named, self.captures)}"


def reads_in_words(reads: Sequence[str], captures: Mapping[str, str]) -> str:
    """Return what a match reads from outside, in words: "reads 2: x0 = x (a/conv), x1 = a/weights".

    `captures` has, by the name in the pattern, a tensor.
    """
    names = {tensor: f"{name} ({tensor})" for name, tensor in captures.items() if name != tensor}
    listed = [f"x{place} = {names.get(text, text)}" for place, text in enumerate(reads)]
    return f"reads {len(reads)}" + (f": {', '.join(listed)}" if reads else "")


def group_of_match(
    nodes: Sequence[Node], reads: Sequence[str], captures: Mapping[str, str] | None = None
) -> MatchedGroup:
    """Return the ops as one op, which reads these tensors from outside.

    Raises PatchError where they have not one last op, or where one is a source of gradients or a
    border of control flow.
    """
    inside = {node.name for node in nodes}
    last = _last(nodes, inside)
    for node in nodes:
        _refuse_source(node)
    inner = [node for node in nodes if node is not last and node.data_inputs]
    opened = [_readers_outside(node, inside) for node in inner]
    texts = tuple(text for text, _ in opened if text)
    refused = next((text for text, is_refused in opened if is_refused), "")
    places: dict[str, tuple[Node, int]] = {}
    for node in nodes:
        for slot, text in enumerate(node.data_inputs):
            places.setdefault(str(names.parse(text)), (node, slot))
    slots = tuple(places[str(names.parse(text))] for text in reads)
    args = tuple(op_args.known_inputs(node)[slot] for node, slot in slots)
    return MatchedGroup(
        tuple(nodes), last, slots, args, tuple(reads), captures or {}, texts, refused
    )


def group_of_op(node: Node) -> MatchedGroup:
    """Return one op, with all that it reads."""
    args, texts = op_args.known_inputs(node), tuple(node.data_inputs)
    slots = tuple((node, slot) for slot in range(len(args)))
    return MatchedGroup((node,), node, slots, tuple(args), texts)


def _last(nodes: Sequence[Node], inside: set[str]) -> Node:
    ends = [node for node in nodes if not any(node.name in inside for node in _readers(node))]
    if len(ends) != 1:
        listed = ", ".join(str(node) for node in ends) or "none"
        raise PatchError(
            f"a match counts as one op where it ends in one op; this ends in: {listed}"
        )
    return ends[0]


def _refuse_source(node: Node) -> None:
    if not node.data_inputs and node.op != "Const":
        raise PatchError(
            f"{node} is inside the match, so that no gradient would come to it; a tensor from "
            f"outside is written name:_ in the pattern"
        )


def _readers_outside(node: Node, inside: set[str]) -> tuple[str, bool]:
    """Who reads an op of the match outside, in words, and whether not only old gradients do."""
    readers = [reader for reader in _readers(node) if reader.name not in inside]
    keys = node.body.returned.get(node.name, [])
    outputs = [f"the output {key!r} of the function" for key in keys]
    named = short([*map(str, readers), *outputs])
    text = f"{node} is inside the match, and is read outside by {named}" if named else ""
    return text, bool(outputs) or not all(GRADIENT_SCOPE.match(reader.name) for reader in readers)


def _readers(node: Node) -> list[Node]:
    """Return the ops that read a tensor of this one."""
    indices = dict.fromkeys(index for index, _, _ in data_uses(node.body, node.name))
    return [Node(node.body, index) for index in indices]


NUMBERED = re.compile(r"\bx(\d*)\b")


class ByInput(NamedTuple):
    """What a patch of a match as one op does at each tensor that the match reads, as formulas.

    `alike` is as Formula has it; None where `texts` is one formula of the whole match. Without
    texts nothing is known.
    """

    texts: Sequence[str | None]
    alike: bool | None = None


def at_one(group: MatchedGroup, place: int) -> ByInput:
    """Return what a patch does that means one of these tensors, and leaves the others."""
    return ByInput(["dy" if n == place else None for n in range(len(group.named))], alike=False)


def refuse_ambiguous(
    by_input: ByInput, group: MatchedGroup, others: Sequence[Sequence[str]]
) -> None:
    """Raise PatchError where the pattern allows other orders of what the group reads.

    Not where `found` gives every tensor the same gradient in each order.
    """
    for order in others:
        places = [group.named.index(text) for text in order]
        if not _treats_alike(*by_input, places):
            raise PatchError(_unclear_order(group, order))


def _treats_alike(texts: Sequence[str | None], alike: bool | None, places: Sequence[int]) -> bool:
    """Whether each tensor gets the same gradient when `places` says which one is x0, x1, ..."""
    if not texts:
        return False  # Python, of which nothing is known
    if alike is False and len(texts) != len(places):
        return True  # which is refused with a message of its own
    others = [texts[place] for place in places] if alike is False else texts
    same = range(len(places))
    return all(
        _renumbered(text, places) == _renumbered(counterpart, same)
        for text, counterpart in zip(texts, others, strict=True)
    )


def _renumbered(text: str | None, places: Sequence[int]) -> str | None:
    """Return the formula with x0, x1, ... called by these numbers, without spaces."""

    def now(variable: re.Match[str]) -> str:
        number = int(variable[1] or 0)
        return f"x{places[number] if number < len(places) else number}"

    return None if text is None else "".join(NUMBERED.sub(now, text).split())


def _unclear_order(group: MatchedGroup, order: Sequence[str]) -> str:
    place = next(k for k, text in enumerate(order) if text != group.named[k])
    node, slot = group.slots[place]
    first, second = sorted([group.named[place], order[place]])
    return (
        f"the match that ends in {group.last}: it is not clear which tensor is x{place}, "
        f"{first} or {second}: the order of the file would decide; write "
        f'the input slot into the pattern, as in "x:_ -> m:{node.op}:{slot}"; {group.reading()}'
    )

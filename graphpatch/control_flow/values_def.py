"""The tensors that each control-flow context knows: ValuesDef, as TensorFlow fills it in.

What an op gives is known to its loop; what an op in a branch gives, to all contexts around it.
A tensor from outside comes by an Enter, or by a Switch: it is known by the name that it has
outside of all contexts that it was brought into.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from graphpatch.control_flow.branches import Branch, Context, Loop
from graphpatch.control_flow.contexts import ControlFlow
from graphpatch.control_flow.frames import is_constant
from graphpatch.control_flow.op_types import ENTERS, EXITS, MERGES
from graphpatch.graph.body import Node
from graphpatch.graph.topology import first_producers
from graphpatch.names import parse


@dataclass(frozen=True)
class KnownValues:
    """The tensors of a context, and by what each tensor from outside is read in it."""

    values: set[str] = field(default_factory=set)
    external: dict[str, str] = field(default_factory=dict)


def known_values(found: ControlFlow, pivots: Mapping[Branch, int]) -> dict[Context, KnownValues]:
    """What each context knows; `pivots` has an op of each branch that is there when it is taken."""
    known: dict[Context, KnownValues] = defaultdict(KnownValues)
    made_outside = {index for index in pivots.values() if _reads_pivot(found, index)}
    for index in sorted(found.of):
        context = found.of[index].current
        if index in made_outside:
            _knows(known, context.outer, _outputs(found, index))
        elif index in found.guards:
            _guarded(found, known, index, context)
        elif found.body.heads.ops[index] in ENTERS:
            _entered(found, known[context], index)
        else:
            _knows(known, context, _outputs(found, index))
        if found.body.heads.ops[index] in EXITS and context.outer is not None:
            known[context.outer.current].values.update(_outputs(found, index))
    for context, index in pivots.items():
        pred = parse(context.cond.current.pred).full
        known[context].values.update({pred, *_outputs(found, index)})
        known[context].external[pred] = pred
    return dict(known)


def outer_tensor(found: ControlFlow, text: str) -> str:
    """The tensor outside that is brought into contexts, perhaps through several, as this one."""
    for node in first_producers(found.body.producer(text)):
        entered = node.op in ENTERS and is_constant(node)
        guard = found.guards.get(node.index)
        passed = entered or (guard is not None and guard.number == parse(text).index)
        if not passed or not node.data_inputs:
            break
        text = node.data_inputs[0]
    return parse(text).full


def _knows(
    known: dict[Context, KnownValues], context: Context | None, tensors: Iterable[str]
) -> None:
    """Add what an op gives; a loop keeps it to itself, a branch tells all contexts around it."""
    tensors = list(tensors)
    if isinstance(context, Loop):
        known[context].values.update(tensors)
        return
    while context is not None:
        known[context.current].values.update(tensors)
        context = context.outer


def _guarded(
    found: ControlFlow, known: dict[Context, KnownValues], index: int, context: Context
) -> None:
    """A Switch by which a tensor from outside comes into a branch."""
    switch, number = Node(found.body, index), found.guards[index].number
    brought = parse(switch.data_inputs[0]).full
    first, mine = outer_tensor(found, brought), known[context]
    mine.values.update({first, brought} if context.outer is not None else {first})
    if context.outer is not None:
        mine.external[brought] = brought
    mine.external[first] = f"{switch.name}:{number}"
    # One that only passes a tensor on to the Merge was made in the branch, with both outputs.
    passes = all(found.body.heads.ops[reader] in MERGES for reader in _reading_ops(found, index))
    numbers = (0, 1) if passes else (number,)
    _knows(known, context, [f"{switch.name}:{output}" for output in numbers])


def _entered(found: ControlFlow, known: KnownValues, index: int) -> None:
    enter = Node(found.body, index)
    known.values.add(f"{enter.name}:0")
    if is_constant(enter):
        first = outer_tensor(found, enter.data_inputs[0])
        known.values.add(first)
        known.external[first] = f"{enter.name}:0"


def _outputs(found: ControlFlow, index: int) -> list[str]:
    """The tensors of an op; of a type that we don't know, those that are read."""
    node = Node(found.body, index)
    flat = node.outputs
    if flat is None:
        read = {parse(text).full for text in _spellings(found, index) if not text.startswith("^")}
        return sorted(read)
    return [f"{node.name}:{output}" for output in range(len(flat))]


def _reads_pivot(found: ControlFlow, index: int) -> bool:
    """Whether an op reads the Switch that tf.cond makes of the predicate, before its branches."""
    producer = found.body.producer(Node(found.body, index).data_inputs[0])
    return producer is not None and producer.index in found.pivots


def _reading_ops(found: ControlFlow, index: int) -> Iterator[int]:
    for reader, _ in found.body.readers.get(found.body.heads.names[index], ()):
        yield reader


def _spellings(found: ControlFlow, index: int) -> Iterator[str]:
    for reader, slot in found.body.readers.get(found.body.heads.names[index], ()):
        yield found.body.heads.inputs[reader][slot]

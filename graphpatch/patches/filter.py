"""`filter_gradient` and `stop_gradient`: what flows back through a tensor is changed.

An op is put in line with what a target gives or reads. `at` says where: "outputs", "inputs", or one
of them, as "output:0".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch import names
from graphpatch.differentiation.flow import carries, why_not
from graphpatch.errors import PatchError
from graphpatch.gradients.ops import Signature, sizes_of_constant
from graphpatch.gradients.program import joined_shapes
from graphpatch.gradients.spec import DefaultGradient, Gradient, LibraryGradient, gives_dy
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import ALL_SWITCHES, BRANCHES, ENTERS, EXITS, FIXED, MERGES
from graphpatch.graph.provenance import op_type_in_model
from graphpatch.graph.walk import uses
from graphpatch.opdefs import FlatArg
from graphpatch.patches import Patch
from graphpatch.patches.backward_as import noise_notes
from graphpatch.patches.carrier import carry, check_named, named_tensors
from graphpatch.patches.editing import MovedOp, RuleEditor, typed
from graphpatch.patches.fit import JoinedShapes, may_contradict, refuse_contradicted
from graphpatch.patches.placement import refuse_without_gradient
from graphpatch.patches.target import Target, is_source

OUTPUTS = "outputs"


class SidePatch(Patch):
    """A patch of what flows back through a side of a target."""

    __slots__ = ()
    takes_match: ClassVar[bool] = True
    takes_side: ClassVar[bool] = True
    at: str

    @property
    def is_at_outputs(self) -> bool:
        """Return whether it is not put before the inputs."""
        return parsed(self.at)[0] == "output"

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where nothing flows back there anyway."""
        if targets and all(why_idle(target, self.at) for target in targets):
            raise PatchError(f"nothing flows back there: {why_idle(targets[0], self.at)}")

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return the formulas: at one input they mean that tensor, else all are treated alike."""
        side, place = parsed(self.at)
        is_one = side == "input" and place is not None
        return ["dy" if n == place else None for n in range(len(target.places))] if is_one else "dy"


@dataclass(frozen=True, slots=True)
class FilterGradient(SidePatch):
    """Forward unchanged; backward, what flows through the op's outputs passes `gradient`.

    An op that gives the tensor on is put in line, with that gradient: behind the outputs, or
    before the inputs. In a formula x and y are both the tensor. When not to use it: on an op whose
    own gradient is wrong; `override_gradient` replaces that.
    """

    gradient: Gradient
    at: str = OUTPUTS
    emit: str = "auto"

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where nothing flows back there, or the gradient is not a filter."""
        if isinstance(self.gradient, DefaultGradient):
            raise PatchError('"default" takes an override off; in filter_gradient it means nothing')
        SidePatch.check(self, targets)
        if may_contradict(self.gradient):
            formula, kind = self.gradient.formula, "y" if self.is_at_outputs else "x"

            def joined(target: Target) -> JoinedShapes:
                shapes = joined_shapes(formula, Signature.of_tensor("float32"))
                constants = frozenset(filter(sizes_of_constant, shapes["x0"]))
                return {f"{kind}{n}": constants for n in tensors_at(target, self.at)}

            refuse_contradicted(targets, formula, joined)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Say that the gradient gives dy as it comes."""
        return "its gradient gives dy as it comes" if gives_dy(self.gradient) else ""

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Filter what flows back there."""
        target.refuse_open()
        gradient, node = self.gradient, target.last
        assert not isinstance(gradient, DefaultGradient), "it has been checked"
        check_named(gradient, target, editor)  # while the op is still where it was
        is_read_in_loop = bool(named_tensors(gradient)) and editor.is_in_control_flow(node)
        emit = "function" if is_read_in_loop and self.emit == "auto" else self.emit
        # The op of the model, whose name an Identity takes now, or has taken for an earlier rule.
        named = str(target) if target.is_match else f"{op_type_in_model(node)} {node.name!r}"
        for added in put_at(target, editor, "Identity", "filter", self.at):
            carry(gradient, Target.of(added, named), editor, emit, filtered=node)


@dataclass(frozen=True, slots=True)
class StopGradient(SidePatch):
    """Forward unchanged; backward, nothing flows through the op's outputs, or its inputs.

    A StopGradient is put in line. The gradient of what lies before it is None where no other path
    leads there, not zero. In a function that a Session differentiates as a whole it is zero anyway,
    and a function carries it: TensorFlow optimises what that function calls first, and takes
    StopGradients out. When not to use it: where an optimiser that runs before the gradient is
    built would take the StopGradient out again; `override_gradient` with `zero` stays.
    """

    at: str = OUTPUTS

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Say that what follows takes its gradient at a noisy value, where it does."""
        return noise_notes(nodes, at_inputs=not self.is_at_outputs)

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Stop what flows back there."""
        if editor.is_differentiated_whole(target.last):
            FilterGradient(LibraryGradient("zero"), self.at, "function").rewrite(target, editor)
            return
        target.refuse_open()
        if put_at(target, editor, "StopGradient", "stop", self.at):
            editor.report.used("construction")


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


def put_at(target: Target, editor: RuleEditor, op: str, suffix: str, at: str) -> list[Node]:
    """Put ops that give on, bit for bit, the tensor that they read on a side; return them.

    Where nothing flows back there, there is nothing to do, and the report says so.
    """
    if reason := why_idle(target, at):
        editor.report.idle.append(reason)
        return []
    refuse_without_gradient(target.last, editor)
    flowing = {n: arg for n, arg in tensors_at(target, at).items() if carries(arg)}
    if parsed(at)[0] == "input":
        places, name = target.places, f"{target.last.name}/{suffix}"
        return [
            _before(target, places[n], arg, editor, op, f"{name}_{n}") for n, arg in flowing.items()
        ]
    return _behind(target.last, flowing, editor, op, suffix)


def _before(
    target: Target, place: tuple[Node, int], arg: FlatArg, editor: RuleEditor, op: str, name: str
) -> Node:
    """Put an op of this name before a tensor that a target reads.

    One that a match reads in several places comes through one op, so that what flows back from all
    of them passes it together.
    """
    node, slot = place
    text = node.inputs[slot]
    if producer := node.body.producer(text):
        if node.op in BRANCHES and (producer.op in FIXED or _starts_loop(producer)):
            raise PatchError(f"{node} must stay next to {producer}, which its loop needs")
        _refuse_between(producer, node)
    added = editor.add(name, op, [text], typed(arg.dtype), node, before=True)
    editor.set_input(node, slot, added.tensor(0))
    for reader in target.nodes if target.is_match else ():
        for at_slot, read in enumerate(reader.data_inputs):
            if names.parse(read) == names.parse(text) and not (reader == node and at_slot == slot):
                editor.set_input(reader, at_slot, added.tensor(0))
    return added


def _behind(
    node: Node, flowing: Mapping[int, FlatArg], editor: RuleEditor, op: str, suffix: str
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
    moved = MovedOp(node, editor)
    added = [moved.give_on(n, op, suffix, [node.tensor(n)]) for n in flowing]
    moved.close()
    return added


def _reroute(
    node: Node, flowing: Mapping[int, FlatArg], editor: RuleEditor, op: str, suffix: str
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

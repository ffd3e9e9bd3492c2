"""`filter_gradient` and `stop_gradient`: what flows back through a tensor is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphpatch.errors import PatchError
from graphpatch.gradients.ops import Signature
from graphpatch.gradients.program import joined_shapes
from graphpatch.gradients.spec import (
    DefaultGradient,
    Gradient,
    LibraryGradient,
    PythonGradient,
    gives_dy,
)
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import Patch
from graphpatch.patches.backward_as import noise_notes
from graphpatch.patches.carrier import carry, check_named, named_tensors
from graphpatch.patches.fit import JoinedShapes, may_contradict, refuse_contradicted
from graphpatch.patches.inline import OUTPUTS, parsed, put_at, tensors_at, why_idle
from graphpatch.patches.reach import differentiated_as_whole, in_control_flow
from graphpatch.patches.target import Target


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

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs; at inputs it looks at what the op reads."""
        return self.is_at_outputs

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where nothing flows back there anyway."""
        if targets and all(why_idle(target, self.at) for target in targets):
            raise PatchError(f"nothing flows back there: {why_idle(targets[0], self.at)}")

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """At one input it means that tensor, else it treats all alike."""
        side, place = parsed(self.at)
        is_one = side == "input" and place is not None
        return ["dy" if n == place else None for n in range(len(target.named))] if is_one else "dy"


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

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs, but for a gradient in Python, and one that reads other tensors."""
        alone = not (isinstance(self.gradient, PythonGradient) or named_tensors(self.gradient))
        return self.is_at_outputs and alone

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where nothing flows back there, or the gradient is not a filter."""
        if isinstance(self.gradient, DefaultGradient):
            raise PatchError('"default" takes an override off; in filter_gradient it means nothing')
        SidePatch.check(self, targets)
        if may_contradict(self.gradient):
            formula, kind = self.gradient.formula, "y" if self.is_at_outputs else "x"

            def joined(target: Target) -> JoinedShapes:
                shapes = joined_shapes(formula, Signature.of_tensor("float32"))
                return {f"{kind}{n}": shapes["x0"] for n in tensors_at(target, self.at)}

            refuse_contradicted(targets, formula, joined, constants_alone=True)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Say that the gradient gives dy as it comes."""
        return "its gradient gives dy as it comes" if gives_dy(self.gradient) else ""

    def rewrite(self, target: Target, editor: Editor) -> None:
        """Filter what flows back there."""
        target.refuse_open()
        gradient, node = self.gradient, target.last
        assert not isinstance(gradient, DefaultGradient), "it has been checked"
        check_named(gradient, target, editor)  # while the op is still where it was
        is_read_in_loop = bool(named_tensors(gradient)) and in_control_flow(node, editor)
        emit = "function" if is_read_in_loop and self.emit == "auto" else self.emit
        for added in put_at(target, editor, "Identity", "filter", self.at):
            carry(gradient, Target.of(added), editor, emit, filtered=node)


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

    def rewrite(self, target: Target, editor: Editor) -> None:
        """Stop what flows back there."""
        if differentiated_as_whole(target.last, editor):
            FilterGradient(LibraryGradient("zero"), self.at, "function").rewrite(target, editor)
            return
        target.refuse_open()
        if put_at(target, editor, "StopGradient", "stop", self.at):
            editor.used("construction")

"""`filter_gradient`: what flows back through a tensor passes another gradient first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphpatch import opdefs
from graphpatch.errors import PatchError
from graphpatch.gradients.program import joined_in_filter
from graphpatch.gradients.spec import (
    Computed,
    DefaultGradient,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    built_in_key,
    gives_dy,
)
from graphpatch.graph.editor import Editor
from graphpatch.graph.node import Node
from graphpatch.patches import at, carrier, op_args
from graphpatch.patches.construction import suits_filter
from graphpatch.patches.function_carrier import filter_inline, is_restored, keep_gradient
from graphpatch.patches.group import MatchedGroup
from graphpatch.patches.known_shapes import may_contradict, refuse_constants
from graphpatch.patches.named_tensors import check_named, named_tensors
from graphpatch.patches.reach import in_control_flow, place_of


@dataclass(frozen=True, slots=True)
class FilterGradient(at.SidePatch):
    """Forward unchanged; backward, what flows through the op's outputs passes `gradient`.

    An op that gives the tensor on is put in line, with that gradient: behind the outputs, or
    before the inputs. In a formula x and y are both the tensor. When not to use it: on an op whose
    own gradient is wrong; `override_gradient` replaces that.
    """

    gradient: Gradient
    at: str = at.OUTPUTS
    emit: str = "auto"

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs, but for a gradient in Python, and one that reads other tensors."""
        alone = not (isinstance(self.gradient, PythonGradient) or named_tensors(self.gradient))
        return self.is_at_outputs and alone

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where nothing flows back there, or the gradient is not a filter."""
        self._refuse_default()
        at.SidePatch.check(self, nodes)
        if may_contradict(self.gradient):
            assert isinstance(self.gradient, InlineFormula | LibraryGradient)
            refuse_constants(nodes, *at.parsed(self.at), joined_in_filter(self.gradient.formula))

    def idle(self, nodes: Sequence[Node]) -> str:
        """That the gradient gives dy as it comes."""
        return "its gradient gives dy as it comes" if gives_dy(self.gradient) else ""

    def _refuse_default(self) -> None:
        if isinstance(self.gradient, DefaultGradient):
            raise PatchError('"default" takes an override off; in filter_gradient it means nothing')

    def put(self, target: Node | MatchedGroup, editor: Editor) -> None:
        """Filter what flows back there."""
        self._refuse_default()
        node = target.last if isinstance(target, MatchedGroup) else target
        args = at.tensors_at(target, self.at)
        ops = target.nodes if isinstance(target, MatchedGroup) else [node]
        check_named(self.gradient, ops, editor)  # while the op is still where it was
        gradient, dtypes = self.gradient, {arg.dtype or "" for arg in args if op_args.carries(arg)}
        if isinstance(gradient, DefaultGradient | RegisteredKey) or self._by_identity(
            gradient, node, dtypes, editor
        ):
            is_read_in_loop = bool(named_tensors(gradient)) and in_control_flow(node, editor)
            emit = "function" if is_read_in_loop and self.emit == "auto" else self.emit
            for added in at.put_at(target, editor, at.inline_op("Identity", "filter"), self.at):
                carrier.carry(gradient, added, editor, emit)
            return
        inline, functions = filter_inline(gradient, node, editor)
        for call in at.put_at(target, editor, inline, self.at):
            keep_gradient(call, functions[call.op], editor)

    def _by_identity(
        self, gradient: Computed | PythonGradient, node: Node, dtypes: set[str], editor: Editor
    ) -> bool:
        """Return whether an Identity is put in line, and its gradient carried as that of any op."""
        if isinstance(gradient, PythonGradient):
            carrier.refuse_key(gradient, self.emit)
            return is_restored(node, editor)
        if self.emit == "attr" or is_restored(node, editor) or named_tensors(gradient):
            return True
        if self.emit == "function":
            return False
        exact = built_in_key(gradient, opdefs.lookup("Identity"))
        if exact is not None and self.emit == "auto":
            return place_of(node, editor).ignoring is None
        return all(suits_filter(gradient, node, dtype, editor, self.emit) for dtype in dtypes)

"""`filter_gradient`: what flows back through a tensor passes another gradient first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

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
from graphpatch.graph.body import Node
from graphpatch.graph.edit import Editor
from graphpatch.opdefs import FlatArg
from graphpatch.patches import Patch, at, carrier, op_args
from graphpatch.patches.at import InlineOp, inline_op
from graphpatch.patches.construction import suits_filter
from graphpatch.patches.function_carrier import filter_inline, is_restored, keep_gradient
from graphpatch.patches.group import ByInput, MatchedGroup
from graphpatch.patches.known_shapes import may_contradict, refuse_constants
from graphpatch.patches.reach import place_of


@dataclass(frozen=True, slots=True)
class FilterGradient(Patch):
    """Forward unchanged; backward, what flows through the op's outputs passes `gradient`.

    An op that gives the tensor on is put in line, with that gradient: behind the outputs, or
    before the inputs. In a formula x and y are both the tensor. When not to use it: on an op whose
    own gradient is wrong; `override_gradient` replaces that.
    """

    takes_match: ClassVar[bool] = True
    takes_side: ClassVar[bool] = True
    gradient: Gradient
    at: str = at.OUTPUTS
    emit: str = "auto"

    @property
    def is_at_outputs(self) -> bool:
        """Whether it is not put before the inputs."""
        return at.parsed(self.at)[0] == "output"

    @property
    def looks_at_op_alone(self) -> bool:
        """True at outputs, but for a gradient in Python, which is traced for each op."""
        return self.is_at_outputs and not isinstance(self.gradient, PythonGradient)

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise PatchError where nothing flows back there, or the gradient is not a filter."""
        self._refuse_default()
        at.check_gradient_flows(nodes, self.at)
        if may_contradict(self.gradient):
            assert isinstance(self.gradient, InlineFormula | LibraryGradient)
            refuse_constants(nodes, *at.parsed(self.at), joined_in_filter(self.gradient.formula))

    def idle(self, nodes: Sequence[Node]) -> str:
        """That the gradient gives dy as it comes."""
        return "its gradient gives dy as it comes" if gives_dy(self.gradient) else ""

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Filter what flows back through one op."""
        self._put(
            node,
            at.tensors_at(node, self.at),
            partial(at.put_at, node, editor, at=self.at),
            editor,
        )

    def rewrite_whole(self, group: MatchedGroup, editor: Editor) -> None:
        """Filter what flows back to a match as one op, or from it to what it reads."""
        group.refuse_open()
        self._refuse_default()
        args = at.group_tensors_at(group, self.at)
        put = partial(at.put_beside_group, group, editor, where=self.at)
        self._put(group.last, args, put, editor)

    def by_input(self, group: MatchedGroup) -> ByInput:
        """At one input it means that tensor, else it treats all alike."""
        return at.by_input(group, self.at)

    def _refuse_default(self) -> None:
        if isinstance(self.gradient, DefaultGradient):
            raise PatchError('"default" takes an override off; in filter_gradient it means nothing')

    def _put(
        self,
        node: Node,
        args: Sequence[FlatArg],
        put: Callable[[InlineOp], list[Node]],
        editor: Editor,
    ) -> None:
        gradient, dtypes = self.gradient, {arg.dtype or "" for arg in args if op_args.carries(arg)}
        if isinstance(gradient, DefaultGradient | RegisteredKey) or self._by_identity(
            gradient, node, dtypes, editor
        ):
            for added in put(inline_op("Identity", "filter")):
                carrier.carry(gradient, added, editor, self.emit)
            return
        inline, functions = filter_inline(gradient, node, editor)
        for call in put(inline):
            keep_gradient(call, functions[call.op], editor)

    def _by_identity(
        self, gradient: Computed | PythonGradient, node: Node, dtypes: set[str], editor: Editor
    ) -> bool:
        """Whether an Identity is put in line, and its gradient carried as that of any op."""
        if isinstance(gradient, PythonGradient):
            carrier.refuse_key(gradient, self.emit)
            return is_restored(node, editor)
        if self.emit == "attr" or is_restored(node, editor):
            return True
        if self.emit == "function":
            return False
        exact = built_in_key(gradient, opdefs.lookup("Identity"))
        if exact is not None and self.emit == "auto":
            return place_of(node, editor).ignoring is None
        return all(suits_filter(gradient, node, one, editor, self.emit) for one in dtypes)

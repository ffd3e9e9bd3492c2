"""`inside`: which loop or branch an op is in, of v1 (Enter, Switch) and v2 (While, If, Case).

A v1 loop is called by its frame, or by the scope of its LoopCond (`rnn/while`); a v1 branch by its
predicate, or by the scope of that (`cond`). One of v2 is called by its While, If or Case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from graphpatch.control_flow.contexts import (
    Branch,
    Context,
    ControlFlow,
    control_flow,
    has_control_flow,
)
from graphpatch.differentiation.bodies import OP_BY_OP, callers
from graphpatch.errors import ModelError
from graphpatch.graph.functions import called_functions
from graphpatch.graph.node import Body, Library, Node
from graphpatch.graph.op_types import CASES, LOOPS
from graphpatch.match import glob
from graphpatch.match.glob import texts
from graphpatch.match.keys import Condition, Test
from graphpatch.match.spec import Inside
from graphpatch.names import op_of


class EnclosingContext(msgspec.Struct, frozen=True):
    """A loop or branch that an op is in: its names; of a branch `number`, which one it is."""

    kind: str
    names: tuple[str, ...]
    number: int | None = None

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.kind} {self.names[-1]!r}"
        return f"{self.kind} {self.number} of {self.names[-1]!r}"


def inside(wanted: str | Inside) -> Condition:
    """Return the op is in some loop, some branch, or one of these names."""
    meant = partial(_any_of_kind, wanted) if isinstance(wanted, str) else _of_these_names(wanted)
    surroundings = Surroundings()

    def contexts_in_words(node: Node) -> str:
        contexts = [*surroundings.of_op(node), *surroundings.of_function(node.body)]
        words = ", ".join(map(str, contexts))
        return f"it is in {words or 'no loop or branch'}"

    def prepared(body: Body) -> Test:
        is_called_inside = any(map(meant, surroundings.of_function(body)))
        return Test(
            lambda node: is_called_inside or any(map(meant, surroundings.of_op(node))),
            contexts_in_words,
        )

    return prepared


def _any_of_kind(kind: str, around: EnclosingContext) -> bool:
    return around.kind == kind


def _of_these_names(wanted: Inside) -> Callable[[EnclosingContext], bool]:
    by_kind = {"loop": wanted.loop, "branch": wanted.branch}
    if wanted.when is not None and wanted.branch is None:
        by_kind["branch"] = "**"
    globs = {
        kind: glob.one_of(texts(names)) for kind, names in by_kind.items() if names is not None
    }

    def meant(around: EnclosingContext) -> bool:
        is_one = globs.get(around.kind)
        if is_one is None or not any(map(is_one, around.names)):
            return False
        return wanted.when is None or around.number is None or around.number == int(wanted.when)

    return meant


class Surroundings(msgspec.Struct, eq=False):
    """Finds the loops and branches around ops and functions, as long as no graph is edited."""

    flows: dict[Body, ControlFlow | None] = msgspec.field(default_factory=dict)
    callers: dict[Library, Mapping[str, Sequence[Node]]] = msgspec.field(default_factory=dict)

    def of_op(self, node: Node) -> Iterator[EnclosingContext]:
        """Yield the v1 loops and branches around an op, from the inner one on."""
        flow = self._flow(node.body)
        context = None if flow is None else flow.context(node.index)
        while context is not None:
            context = context.current
            yield _of_context(node.body, context)
            context = context.outer

    def of_function(self, body: Body) -> Iterator[EnclosingContext]:
        """Yield the loops and branches in which a function is called, by whatever way."""
        visited, todo = {body.label}, [body]
        while todo:
            current = todo.pop()
            for call in self._calls(current):
                yield from _contexts_of_call(call, current.label)
                yield from self.of_op(call)
                if call.body.label not in visited:
                    visited.add(call.body.label)
                    todo.append(call.body)

    def _calls(self, body: Body) -> Sequence[Node]:
        if body.library not in self.callers:
            self.callers[body.library] = callers(body.library.bodies())
        return () if body.is_main else self.callers[body.library].get(body.label, ())

    def _flow(self, body: Body) -> ControlFlow | None:
        """The v1 contexts; None where there are none, or none that TensorFlow could tell of."""
        if body not in self.flows:
            self.flows[body] = _flow(body)
        return self.flows[body]


def _flow(body: Body) -> ControlFlow | None:
    if not has_control_flow(body):
        return None
    try:
        return control_flow(body)
    except ModelError:
        return None


def _of_context(body: Body, context: Context) -> EnclosingContext:
    if isinstance(context, Branch):
        pred = op_of(context.cond.current.pred)
        return EnclosingContext("branch", (pred, _scope(pred)), context.number)
    names = [context.name]
    names += [_scope(body.heads.names[index]) for index in context.conditions[:1]]
    return EnclosingContext("loop", tuple(names))


def _scope(name: str) -> str:
    return name.rpartition("/")[0] or name


def _contexts_of_call(call: Node, label: str) -> Iterator[EnclosingContext]:
    if call.op in LOOPS:
        yield EnclosingContext("loop", (call.name,))
    elif call.op in OP_BY_OP:
        for place, name in enumerate(called_functions(call)):
            if name == label:
                # An If names the branch for true first; a Case counts them from 0.
                number = place if call.op in CASES else 1 - place
                yield EnclosingContext("branch", (call.name,), number)

"""`inside`: which loop or branch an op is in, of v1 (Enter, Switch) and v2 (While, If, Case).

A v1 loop is called by its frame, or by the scope of its LoopCond (`rnn/while`); a v1 branch by its
predicate, or by the scope of that (`cond`). One of v2 is called by its While, If or Case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import NamedTuple

from graphpatch.control_flow.contexts import Branch, ControlFlow, control_flow, has_control_flow
from graphpatch.differentiation.bodies import OP_BY_OP, callers
from graphpatch.errors import ModelError
from graphpatch.graph.functions import called_functions
from graphpatch.graph.node import Body, Library, Node
from graphpatch.graph.op_types import CASES, LOOPS
from graphpatch.match import glob
from graphpatch.match.glob import Texts, texts
from graphpatch.match.keys import Condition, per_body
from graphpatch.match.spec import Inside
from graphpatch.names import op_of


class EnclosingContext(NamedTuple):
    """A loop or branch that an op is in: its names; of a branch `number`, which one it is."""

    kind: str
    names: tuple[str, ...]
    number: int | None = None

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number} of"
        return f"{self.kind}{number} {self.names[-1]!r}"


def inside(wanted: str | Inside) -> Condition:
    """Return the condition that the op is in some loop, some branch, or one of these names."""
    if isinstance(wanted, str):
        named: dict[str, Texts | None] = {wanted: "**"}
        when = None
    else:
        branch, when = wanted.branch, wanted.when
        named = {"loop": wanted.loop, "branch": branch if branch or when is None else "**"}
    globs = {kind: glob.one_of(texts(names)) for kind, names in named.items() if names is not None}
    flow_in = cache(_control_flow)

    @cache
    def calls(library: Library) -> Mapping[str, Sequence[Node]]:
        graph = library.graph()
        return callers(() if graph is None else graph.bodies)

    def around_op(node: Node) -> Iterator[EnclosingContext]:
        """Yield the v1 loops and branches around an op, from the inner one on."""
        body, flow = node.body, flow_in(node.body)
        context = None if flow is None else flow.context(node.index)
        while context is not None:
            context = context.current
            if isinstance(context, Branch):
                pred = op_of(context.cond.current.pred)
                yield EnclosingContext("branch", (pred, _scope(pred)), context.number)
            else:
                decides = [_scope(body.heads.names[index]) for index in context.conditions[:1]]
                yield EnclosingContext("loop", (context.name, *decides))
            context = context.outer

    @per_body
    def around_body(body: Body) -> list[EnclosingContext]:
        """Return the loops and branches in which a function is called, by whatever way."""
        contexts, todo = list[EnclosingContext](), [] if body.is_main else [body.label]
        for label in todo:
            for call in calls(body.library).get(label, ()):
                contexts += _contexts_of_call(call, label)
                contexts += around_op(call)
                if not call.body.is_main and call.body.label not in todo:
                    todo.append(call.body.label)
        return contexts

    def is_meant(around: EnclosingContext) -> bool:
        if around.kind not in globs or not any(map(globs[around.kind], around.names)):
            return False
        return when is None or around.number is None or around.number == int(when)

    def in_words(node: Node) -> str:
        contexts = [*around_op(node), *around_body(node.body)]
        return f"it is in {', '.join(map(str, contexts)) or 'no loop or branch'}"

    return Condition(
        lambda node: any(map(is_meant, chain(around_op(node), around_body(node.body)))), in_words
    )


def _control_flow(body: Body) -> ControlFlow | None:
    with suppress(ModelError):  # the contexts are none that TensorFlow could tell of
        return control_flow(body) if has_control_flow(body) else None
    return None


def _contexts_of_call(call: Node, label: str) -> Iterator[EnclosingContext]:
    if call.op in LOOPS:
        yield EnclosingContext("loop", (call.name,))
    elif call.op in OP_BY_OP:
        for place, name in enumerate(called_functions(call)):
            if name == label:
                # An If names the branch for true first; a Case counts them from 0.
                number = place if call.op in CASES else 1 - place
                yield EnclosingContext("branch", (call.name,), number)


def _scope(name: str) -> str:
    return name.rpartition("/")[0] or name

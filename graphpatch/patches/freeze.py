"""`freeze`: an optimizer leaves a variable as it is; where there is none, its gradient stops.

`tf.train` puts what changes a variable and its slots (momentum, Adam's moments) into the scope
`update_VARIABLE`. Each of these ops makes room for one that gives the variable or slot as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphpatch.differentiation.flow import carries
from graphpatch.errors import PatchError
from graphpatch.graph import provenance
from graphpatch.graph.check import built_gradients
from graphpatch.graph.graph import Graph
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import ENTERS, SWITCHES, VARIABLES
from graphpatch.graph.walk import first_producers
from graphpatch.patches import Patch
from graphpatch.patches.editing import RuleEditor, typed
from graphpatch.patches.filter import StopGradient
from graphpatch.patches.target import Target, known_outputs
from graphpatch.shown import short

# What hands a variable's value, or its reference, to the op that computes with it.
VARIABLE_READS = frozenset({"Identity", "ReadVariableOp", *ENTERS, "Cast", *SWITCHES})
WRITES = re.compile(r"Apply|Assign|Scatter")
UPDATE = "update"  # in the report, how a variable was taken out of its updates
UPDATE_SCOPE = re.compile(r"(?:^|/)update_")


def updates(body: Body) -> Iterator[tuple[Node, Node]]:
    """Yield the ops that change a variable: input 0 is the variable itself, not a value of it."""
    for node in body:
        data = node.data_inputs
        if len(data) > 1 and node.op not in VARIABLE_READS and WRITES.search(node.op):
            variable = variable_of(body, data[0])
            if variable is not None:
                yield node, variable


def variable_of(body: Body, text: str) -> Node | None:
    """Return the variable whose reference a tensor is, also where it came through a branch."""
    passed = first_producers(body.producer(text))
    producer = next((node for node in passed if node.op not in ENTERS | SWITCHES), None)
    return producer if producer is not None and producer.op in VARIABLES else None


def variable_read(node: Node) -> Node | None:
    """Return the variable that an op reads first."""
    return variable_of(node.body, next(iter(node.data_inputs), ""))


class Updates:
    """The ops by which optimizers change the variables of a body.

    `of` has them by the variable that they train, and `slots` for each slot that variable. `others`
    has what else writes to a variable, but for its initialiser and what restores it.
    """

    def __init__(self, body: Body) -> None:
        self.of: dict[str, list[Node]] = {}
        self.slots: dict[str, str] = {}
        self.others: dict[str, list[Node]] = {}
        for node, changed in updates(body):
            trained = _trained(node, changed)
            if trained and not provenance.shadow(node):
                self.of.setdefault(trained, []).append(node)
                variables = (variable_of(body, text) for text in node.data_inputs)
                self.slots |= {slot.name: trained for slot in variables if slot is not None}
            elif not trained and node.name != f"{changed.name}/Assign" and not _restores(node):
                self.others.setdefault(changed.name, []).append(node)
        for trained in self.of:
            self.slots.pop(trained, None)


def _restores(node: Node) -> bool:
    """Return whether an op writes what it reads of a checkpoint."""
    values = first_producers(node.body.producer(node.data_inputs[1]))
    return any(value.op.startswith("Restore") for value in values)


def _trained(node: Node, changed: Node) -> str:
    """Return the variable that an op in a scope `update_VARIABLE` trains: the longest name."""
    for scope in UPDATE_SCOPE.finditer(node.name):
        parts = node.name[scope.end() :].split("/")
        for count in range(len(parts) - 1, 0, -1):
            name = "/".join(parts[:count])
            if name in node.body.by_name and node.body.node(name).op in VARIABLES:
                return name
    return changed.name if "Apply" in node.op else ""


@dataclass(frozen=True, slots=True)
class Freeze(Patch):
    """Training leaves the variable that the op reads as it is, and what is remembered of it.

    Each op by which an optimizer changes the variable or a slot of it moves to `NAME/forward`,
    where nothing runs it; one that does nothing takes its name. Where no optimizer changes the
    variable, its gradient stops at the op. When not to use it: for what the program itself
    assigns, such as moving averages.
    """

    def idle(self, nodes: Sequence[Node]) -> str:
        """Say that all of these ops read slots, where they do."""
        slots, read = Updates(nodes[0].body).slots, map(variable_read, nodes)
        is_alone = all(variable is not None and variable.name in slots for variable in read)
        return "an optimizer's memory is frozen with the variable that it is of" * is_alone

    def notes(self, nodes: Sequence[Node]) -> Iterator[str]:
        """Say which variables are frozen by taking them out of their updates, and which are not."""
        known = {body: Updates(body) for body in {node.body: None for node in nodes}}
        frozen, ops, stopped = dict[str, None](), dict[str, None](), dict[str, str]()
        warnings = []
        for node in nodes:
            variable, known_here = variable_read(node), known[node.body]
            if variable is None or variable.name in known_here.slots:
                continue
            if variable.name in known_here.of:
                frozen[variable.name] = None
                ops.update(dict.fromkeys(op.name for op in known_here.of[variable.name]))
                continue
            if any(map(carries, node.outputs or ())):
                stopped.setdefault(variable.name, node.name)
            if writers := known_here.others.get(variable.name):
                names = short([writer.name for writer in writers])
                warnings.append(
                    f"not frozen: {variable}, which {names} still changes, as batch norms do"
                )
        if frozen:
            yield f"frozen: {_counted(frozen)}: no longer changed by {short([*ops])}"
        if stopped:
            at = short([*stopped.values()])
            yield f"no optimizer changes {_counted(stopped)}: the gradient stops at {at}"
        yield from warnings

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Take a variable out of its updates, or stop its gradient."""
        node, label = target.last, target.last.body.label
        variable = variable_read(node)
        if variable is None:
            raise PatchError(
                f"{node} reads no variable, so there is nothing to freeze: match the Identity, "
                f"ReadVariableOp or ResourceGather by which a variable is read"
            )
        known = editor.cached(("updates", label), lambda: Updates(node.body))
        if variable.name in known.of:
            ops = known.of[variable.name]
            editor.cached(("frozen", label, variable.name), lambda: _take_out(ops, editor))
            editor.report.used(UPDATE)
        elif variable.name not in known.slots:  # those are frozen with the variable they are of
            StopGradient().rewrite(target, editor)


def _counted(variables: Collection[str]) -> str:
    return f"{len(variables)} variable{'s' * (len(variables) > 1)} ({short([*variables])})"


def notes_on_built(graphs: Iterable[Graph], emits: Sequence[Collection[str]]) -> list[str]:
    """Return notes on gradients that were built before rules were applied to graphs.

    `emits` has for each rule that matched how what it did is stored. Where all took variables out
    of their updates, built gradients do as the rules say, and there is no note.
    """
    if emits and all(set(emit) == {UPDATE} for emit in emits):
        return []
    return [note for graph in graphs for note in built_gradients(graph)]


def _take_out(ops: Sequence[Node], editor: RuleEditor) -> None:
    """Let ops that do nothing take the names of these."""
    for node in ops:
        outputs = known_outputs(node)
        if len(outputs) > 1 or not all(output.is_ref for output in outputs):
            raise PatchError(f"{node} changes a variable, and gives more than a reference to it")
        op, inputs = ("RefIdentity", node.data_inputs[:1]) if outputs else ("NoOp", ())
        variable = typed(outputs[0].dtype) if outputs else {}
        editor.take_name(editor.make_room(node), op, inputs, variable)
        editor.shadow(node)

"""Ops that TensorFlow's contexts need, and that freezing or optimising took out.

None of them is read by what was there: the forward pass stays what it was.
"""

from __future__ import annotations

from collections import defaultdict

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.control_flow.branches import Branch
from graphpatch.control_flow.contexts import ControlFlow, control_flow
from graphpatch.control_flow.frames import Frame, position
from graphpatch.control_flow.op_types import CONTROL_FLOW
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.graph.model_graph import ModelGraph
from graphpatch.names import parse


def with_pruned_ops(graph: ModelGraph) -> ControlFlow:
    """The contexts of a graph of one's own, to which what they need is added.

    Forward: nothing changes. Backward: a loop variable whose Exit was pruned has no gradient, and
    TensorFlow gives None for what enters the loop by it; each has its Exit again. A branch needs an
    op that is there when it is taken, a loop one that is there in each iteration. Raises ModelError
    where there are loops or branches that no context can tell of.
    """
    editor, found = Editor(graph, None), control_flow(graph.main)
    before = len(graph.main)
    for frame in found.frames.loops.values():
        _add_exits(frame, editor)
        if body_pivot(graph.main, frame) < 0:
            _add_body_pivot(frame, editor)
    for index in [index for index in found.shared if found.context(index) is not None]:
        _split(Node(graph.main, index), editor)
    found = found if len(graph.main) == before else control_flow(graph.main)
    before, switches = len(graph.main), _switches(found)
    for branch, pivot in branch_pivots(found).items():
        if pivot < 0:
            _add_branch_pivot(branch, Node(graph.main, switches[branch][0]), editor)
    return found if len(graph.main) == before else control_flow(graph.main)


def body_pivot(body: Body, frame: Frame) -> int:
    """An op that is there in each iteration of a loop, but not after the last; -1 where none is.

    TensorFlow takes the Identity of the first loop variable.
    """
    for switch in frame.switches:
        found = [
            index
            for index in _reading(body, switch, 1)
            if body.heads.ops[index] not in CONTROL_FLOW and Node(body, index).outputs
        ]
        if found:
            return min(found, key=lambda i: (body.heads.ops[i] != "Identity", position(body, i)))
    return -1


def branch_pivots(found: ControlFlow) -> dict[Branch, int]:
    """For each branch an Identity that is there when it is taken; -1 where there is none."""
    pivots = {}
    for branch, switches in _switches(found).items():
        read = (one for index in switches for one in _reading(found.body, index, branch.number))
        pivots[branch] = next((one for one in read if found.body.heads.ops[one] == "Identity"), -1)
    return pivots


def _switches(found: ControlFlow) -> dict[Branch, list[int]]:
    """The Switches that lead into each branch, that which tf.cond makes of the predicate first."""
    switches: dict[Branch, list[int]] = defaultdict(list)
    for index, cond in [*found.pivots.items(), *found.shared.items()]:
        for branch in list(cond.current.branches.values()):
            switches[branch].append(index)
    for index, branch in found.guards.items():
        switches[branch.current].append(index)
    return switches


def _reading(body: Body, index: int, output: int) -> list[int]:
    """The ops that read this output as data."""
    return [
        reader
        for reader, slot in body.readers.get(body.heads.names[index], ())
        if _is_output(body.heads.inputs[reader][slot], output)
    ]


def _is_output(text: str, output: int) -> bool:
    return not text.startswith("^") and parse(text).index == output


def _add_exits(frame: Frame, editor: Editor) -> None:
    body = editor.graph.main
    for index in list(frame.switches):
        if not _reading(body, index, 0):
            switch = Node(body, index)
            kind = "RefExit" if switch.op == "RefSwitch" else "Exit"
            editor.add(_sibling(switch, "Exit"), kind, [switch.name], _type(switch), beside=switch)


def _add_body_pivot(frame: Frame, editor: Editor) -> None:
    for index in frame.switches[:1]:
        switch = Node(editor.graph.main, index)
        inputs = [f"{switch.name}:1"]
        editor.add(_sibling(switch, "Identity"), "Identity", inputs, _type(switch), beside=switch)


def _split(switch: Node, editor: Editor) -> None:
    """Let a Switch that gives to both branches be two, one for each, as tf.cond makes them.

    In a loop, TensorFlow would take it for that of a loop variable, in a branch for one of that.
    """
    if _reading(switch.body, switch.index, 0) and _reading(switch.body, switch.index, 1):
        inputs = list(switch.inputs)
        other = editor.add(f"{switch.name}/true", switch.op, inputs, _type(switch), beside=switch)
        editor.reroute(switch, 1, f"{other.name}:1", keep=other.index)


def _add_branch_pivot(branch: Branch, switch: Node, editor: Editor) -> None:
    scope, slash, _ = parse(branch.cond.current.pred).op.rpartition("/")
    name = f"{scope}{slash}switch_{'t' if branch.number else 'f'}"
    inputs = [f"{switch.name}:1" if branch.number else switch.name]
    editor.add(name, "Identity", inputs, _type(switch), beside=switch)


def _sibling(switch: Node, kind: str) -> str:
    """The name that tf.while_loop gave the op of this kind of the same loop variable."""
    scope, slash, last = switch.name.removesuffix("/forward").rpartition("/")
    stem = last if last.startswith("Switch") else f"{last}/Switch"
    return f"{scope}{slash}{stem.replace('Switch', kind, 1)}"


def _type(switch: Node) -> dict[str, AttrValue]:
    value = switch.attr("T")
    return {} if value is None else {"T": value}

"""`backward_as`: backward an op counts as one of its inputs, and what comes after it on that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphpatch import names
from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.graph import provenance, topology
from graphpatch.graph.body import Body, Node
from graphpatch.graph.edit import Editor
from graphpatch.patches import op_args
from graphpatch.patches.clean_path import CleanPath
from graphpatch.patches.function_carrier import refuse_boundary
from graphpatch.patches.join import BackwardTensor, join, refuse_in_part
from graphpatch.patches.path_ends import SlotsByOp, all_ends, end_notes, unreached_ops
from graphpatch.patches.reach import check_reached, refuse_shadowed
from graphpatch.table import short


@dataclass(frozen=True, slots=True)
class BackwardAsPatch:
    """Forward unchanged; backward, up to `until` the op counts as its input `input`.

    For noise that the backward pass must ignore. The ops between it and `until` are cloned, and
    the clones read the noise-free input. A tensor in `until` keeps its value and gets the gradient
    of its clone. So these ops run twice; variables, placeholders and random numbers are shared. The
    noisy tensors between get no gradient (None). Without `until`, the noise-free path ends at the
    float tensors that no other float tensor is computed from, or at the outputs of the function.
    The op must keep dtype and shape of that input. When not to use it: if the gradient of what
    follows may be taken at the noisy value, `straight_through` needs no clones.
    """

    input: int = 0
    until: tuple[str, ...] | None = None
    emit: str = "auto"

    def check(self, nodes: Sequence[Node]) -> None:
        """Every op can be asked; what does not count as its input is refused by `rewrite`."""

    def rewrite(self, node: Node, editor: Editor) -> None:
        """Let one op count as its input."""
        self.rewrite_all([node], editor)

    def rewrite_all(self, nodes: Sequence[Node], editor: Editor) -> None:
        """Let all these ops count as their input; clones of them by earlier rules do as well."""
        by_body: dict[str, list[Node]] = {}
        for node in nodes:
            self._check(node)
            check_reached(node, editor)
            by_body.setdefault(node.body.label, []).append(node)
        for found in by_body.values():
            self._rewrite_body(found, editor)

    def _rewrite_body(self, nodes: Sequence[Node], editor: Editor) -> None:
        body = nodes[0].body
        clones = list(provenance.clones(body, {node.name for node in nodes}))
        for node in nodes if not clones else ():
            refuse_shadowed(node, goes_first=True)
        path = CleanPath(body, {node.index: self.input for node in (*nodes, *clones)}, editor)
        ends = self._ends(path)
        path.plan(ends)
        for node, outputs in ends.items():
            refuse_in_part(node, outputs, editor, self.emit)
        self._refuse_unmet(nodes, path, ends)
        found = unreached_ops(path, ends)
        for note in end_notes(path, ends, found, self.until is not None):
            editor.note(note)
        path.make()
        self._join(path, ends, found.dead, editor)

    def _join(self, path: CleanPath, ends: SlotsByOp, dead: Sequence[Node], editor: Editor) -> None:
        for node in dead:
            editor.shadow(node)
        counted = {node: _counted(path, node, outputs) for node, outputs in ends.items()}
        behind = list(dead)
        for node, found in counted.items():
            join(node, found, editor, self.emit, [node, *behind])
            behind = []

    def _ends(self, path: CleanPath) -> SlotsByOp:
        if self.until is None:
            return _every_end(path)
        found: SlotsByOp = {}
        for text in self.until:
            node, output = _until_tensor(path.body, text)
            if not path.holds(node):
                raise PatchError(f'"until": {text} does not depend on {_noisy_ops(path)}')
            if output and node.index in path.noisy:
                raise PatchError(f'"until": {text} is not output 0, which counts as the input')
            arg = op_args.known_outputs(node)[output]
            if not op_args.carries(arg):
                raise PatchError(f'"until": {text} {op_args.why_not(arg)}')
            if not lets_through(node):
                raise PatchError(f'"until": no gradient flows back through {node}')
            if output not in found.setdefault(node, []):
                found[node].append(output)
        return found

    def _refuse_unmet(self, nodes: Sequence[Node], path: CleanPath, ends: SlotsByOp) -> None:
        unmet = [node for node in nodes if node.index not in path.met]
        if unmet and not provenance.shadow(unmet[0]):
            reached = ", ".join(node.name for node in ends)
            raise PatchError(
                f"{unmet[0]}: no noise-free path leads from it to {reached}; leave it out"
            )

    def _check(self, node: Node) -> None:
        """Raise PatchError where the op cannot count as that input."""
        refuse_boundary(node)
        inputs, outputs = op_args.known_inputs(node), op_args.known_outputs(node)
        if self.input >= len(inputs):
            raise PatchError(f"{node} has no input {self.input}; {op_args.counted_inputs(inputs)}")
        if not outputs:
            raise PatchError(f"{node} has no outputs")
        op_args.check_counts_as(node, inputs[self.input], outputs[0])
        if inputs[self.input].dtype != outputs[0].dtype:
            raise PatchError(f"{node}: input {self.input} has another dtype than output 0")
        known = node.opdef
        if known and known.known_to != "library" and self.input not in known.keeps_shape:
            raise PatchError(
                f"{node} is not known to keep the shape of input {self.input}, so it cannot count "
                f"as that input"
            )


def _every_end(path: CleanPath) -> SlotsByOp:
    found = all_ends(path)
    if not found:
        raise PatchError(
            f"no float tensor at the end of {path.body.label} depends on {_noisy_ops(path)}"
        )
    return found


def _noisy_ops(path: CleanPath) -> str:
    """The noisy ops, for a message."""
    nodes = [str(Node(path.body, index)) for index in path.noisy]
    loop = '; in a v1 loop "until" names tensors of the same iteration' if path.in_loop else ""
    return short(nodes) + loop


def _counted(path: CleanPath, node: Node, outputs: Sequence[int]) -> dict[int, BackwardTensor]:
    if node.index in path.noisy:
        return {0: path.counted(node)}
    return {output: BackwardTensor(path.of(node.tensor(output))) for output in outputs}


def _until_tensor(body: Body, text: str) -> tuple[Node, int]:
    """The op and the output that a name in "until" means."""
    found = topology.tensor_named(body, text)
    producer = None if found is None else body.producer(str(found))
    if found is None or producer is None:
        near = did_you_mean(names.op_of(text), body.heads.names)
        raise PatchError(f'"until": there is no tensor {text!r} in {body.label}{near}')
    spelled = [names.parse(producer.tensor(n)) for n in range(len(op_args.known_outputs(producer)))]
    return producer, spelled.index(found)

"""`backward_as`: backward an op counts as one of its inputs, and what comes after it on that.

The noise-free path has clones of the ops from noisy ops to the tensors at which it ends. A clone
reads clean tensors, and all else that the original reads: variables, placeholders and constants are
shared, as they are not behind the noise. So is an op with a state through which no gradient flows,
such as one that draws random numbers of a noisy tensor's shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from graphpatch import names
from graphpatch.control_flow.op_types import BOUNDARIES, NEXTS
from graphpatch.differentiation.flow import lets_through
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.graph import provenance, walk
from graphpatch.graph.editor import Editor
from graphpatch.graph.functions import called_by_op
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import FED, RESOURCE_VARIABLE
from graphpatch.graph.walk import data_uses, uses
from graphpatch.patches import Patch, op_args
from graphpatch.patches.construction import BackwardTensor, join, refuse_in_part, repeat_to_shape
from graphpatch.patches.noise import SlotsByOp, gives_on, is_linear_in
from graphpatch.patches.reach import check_reached, refuse_boundary, refuse_shadowed
from graphpatch.table import short

# Ops that TensorFlow calls stateful since they read a state, which they leave as it is.
STATE_READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape".split()
) | {RESOURCE_VARIABLE}


def why_not_twice(node: Node, editor: Editor) -> str:
    """Why there can be no clone of an op that runs beside it; nothing where there can be one."""
    if node.op in BOUNDARIES:
        return (
            f"{node} leads into or out of a loop or branch, which cannot be cloned in part; "
            f'"until" can name tensors before it'
        )
    if node.op in FED:
        return f'{node} may be fed, and a clone of it is not; "until" can name it or what it reads'
    if node.opdef is None or node.outputs is None:
        return f"{node}: op type {node.op} is not known, so it may not be safe to run twice"
    if any(arg.is_ref for arg in [*(node.arguments or ()), *node.outputs]):
        return f"{node} changes or hands on a variable, and must not run twice"
    if _has_state(node, editor):
        return (
            f"{node} has a state, and must not run twice, but the noise-free path leads through "
            f'it; "until" can name tensors before it'
        )
    return ""


def _has_state(node: Node, editor: Editor) -> bool:
    """Return whether an op, or what it calls, does more than to read a state."""
    bodies, todo, functions = set[str](), [node], editor.graph.functions
    while todo:
        op = todo.pop()
        called = _called_in_library(op, editor)
        if not called and op.op not in STATE_READS and (op.opdef is None or op.opdef.stateful):
            return True
        for name in called - bodies:
            bodies.add(name)
            todo += list(functions[name]) if name in functions else []
    return False


def _called_in_library(node: Node, editor: Editor) -> set[str]:
    """Return the functions of the file that an op calls."""
    called = editor.cached(("called", node.body.label), lambda: called_by_op(node.body))
    return {name for name in called.get(node.index, ()) if name in editor.graph.functions}


CLEAN_SUFFIX = "clean"

# What one rule may clone of what earlier ones added: so many ops and inputs, and so often those of
# the file that it clones.
MOST_AGAIN = 2_000
TIMES_THE_FILE = 8


@dataclass(eq=False)
class CleanPath:
    """The ops from noisy ones on, in one body; `noisy` has which input each counts as.

    `clones` are the originals that are cloned, in the order in which they are computed; `met` the
    noisy ops that were met on the path.
    """

    body: Body
    noisy: Mapping[int, int]
    editor: Editor
    clones: list[Node] = field(default_factory=list)
    met: set[int] = field(default_factory=set)
    clean: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        starts = [names.parse(Node(self.body, index).tensor(0)) for index in self.noisy]
        # One iteration of a v1 loop: what it hands on to the next is noisy, as its forward is.
        ops = self.body.heads.ops
        self.behind = walk.downstream(self.body, starts, last=lambda index: ops[index] in NEXTS)
        self._seen: set[int] = set()

    def holds(self, node: Node) -> bool:
        """Return whether an op is noisy, or behind one that is."""
        return node.index in self.noisy or bool(self.behind[node.index])

    @property
    def in_loop(self) -> bool:
        """Return whether it goes on in the next iteration of a v1 loop."""
        return any(self.behind[index] for op in NEXTS for index in self.body.by_type.get(op, ()))

    def noisy_nodes(self) -> list[Node]:
        """Return the noisy ops that were met on the path."""
        return [Node(self.body, index) for index in sorted(self.met)]

    def plan(self, ends: Iterable[Node]) -> None:
        """Find what is to be cloned for these ops to be clean; nothing is changed.

        Raises PatchError where something on the path cannot run a second time, or where earlier
        rules have cloned so much of it that each further rule doubles it.
        """
        for end in ends:
            stack: list[tuple[Node, Iterator[Node]]] = []
            self._enter(end, stack)
            while stack:
                node, producers = stack[-1]
                following = next(producers, None)
                if following is not None:
                    self._enter(following, stack)
                    continue
                stack.pop()
                if node.index not in self.noisy:
                    self.clones.append(node)
        self._refuse_doubled()

    def _refuse_doubled(self) -> None:
        sizes = [(node.index in self.body.root, 1 + len(node.inputs)) for node in self.clones]
        again, own = (
            sum(size for is_added, size in sizes if is_added == which) for which in (1, 0)
        )
        if again > MOST_AGAIN + TIMES_THE_FILE * own:
            added = sum(is_added for is_added, _ in sizes)
            raise PatchError(
                f"{added:,} of the {len(self.clones):,} ops on the noise-free path were added by "
                f"earlier rules, as each rule clones what those before it cloned; give the noisy "
                f"ops to one rule, which clones each op once"
            )

    def _enter(self, node: Node, stack: list[tuple[Node, Iterator[Node]]]) -> None:
        if node.index in self._seen:
            return
        self._seen.add(node.index)
        if node.index in self.noisy:
            self.met.add(node.index)
        elif self._is_shared(node):
            return
        stack.append((node, self._producers(node)))

    def _producers(self, node: Node) -> Iterator[Node]:
        """Yield the ops behind the noise that a clean op reads."""
        for text in self._texts(node):
            producer = self.body.producer(text)
            if producer is not None and self.holds(producer):
                _refuse_other_output(producer, text, self.noisy)
                yield producer

    def _texts(self, node: Node) -> Sequence[str]:
        if node.index in self.noisy:
            return [node.data_inputs[self.noisy[node.index]]]
        return node.data_inputs

    def _is_shared(self, node: Node) -> bool:
        """Whether the noise-free path reads an op as it is, though it is behind the noise."""
        reason = why_not_twice(node, self.editor)
        if not reason:
            return False
        flat, known = node.arguments, node.opdef
        if flat is None or known is None or node.op in BOUNDARIES | FED:
            raise PatchError(reason)
        noisy = [
            arg for arg, text in zip(flat, node.data_inputs, strict=False) if self._is_noisy(text)
        ]
        if known.gradient != "none" and any(op_args.is_asked_for(arg) for arg in noisy):
            raise PatchError(reason)
        return True

    def _is_noisy(self, text: str) -> bool:
        producer = self.body.producer(text)
        return producer is not None and self.holds(producer)

    def make(self) -> None:
        """Add the clones."""
        for node in self.clones:
            inputs = [text if text.startswith("^") else self.of(text) for text in node.inputs]
            clone = self.editor.clone(node, f"{node.name}/{CLEAN_SUFFIX}", inputs)
            for output in range(len(node.outputs or ())):
                self.clean[_spelling(node.tensor(output))] = clone.tensor(output)

    def of(self, text: str) -> str:
        """Return the clean tensor for one, which is itself where it is not behind the noise."""
        chain: dict[str, Node] = {}
        at = text
        while (noisy := self._not_clean_yet(at)) is not None:
            if at in chain:
                raise PatchError(
                    f"{noisy} depends on itself: there is no noise-free input to begin with"
                )
            chain[at] = noisy
            at = self._texts(noisy)[0]
        for tensor, noisy in reversed(chain.items()):
            self.clean[_spelling(tensor)] = self._of_noisy(tensor, noisy)
        return self.clean.get(_spelling(text), text)

    def _not_clean_yet(self, text: str) -> Node | None:
        producer = self.body.producer(text)
        if producer is None or _spelling(text) in self.clean or producer.index not in self.noisy:
            return None
        return producer

    def _of_noisy(self, text: str, producer: Node) -> str:
        counted, name = self.counted(producer), f"{producer.name}/{CLEAN_SUFFIX}"
        if not counted.repeated:
            return counted.tensor
        return repeat_to_shape(counted.tensor, text, name, producer, self.editor)

    def counted(self, noisy: Node) -> BackwardTensor:
        """Return what a noisy op counts as: its input, made clean in turn."""
        known = noisy.opdef
        repeated = known is None or known.broadcasts or not known.keeps_shape
        return BackwardTensor(self.of(noisy.data_inputs[self.noisy[noisy.index]]), repeated)


def _spelling(text: str) -> str:
    return str(names.parse(text))


def _refuse_other_output(producer: Node, text: str, noisy: Mapping[int, int]) -> None:
    if producer.index in noisy and _spelling(text) != _spelling(producer.tensor(0)):
        raise PatchError(
            f"{producer} counts as its input where output 0 is read, and {text} is not"
        )


def all_ends(path: CleanPath) -> SlotsByOp:
    """Return the outputs of the body: of the main graph, float tensors that no other is made of."""
    ends: SlotsByOp = {}
    for node in path.body:
        if path.holds(node) and lets_through(node):
            outputs = [n for n, arg in enumerate(node.outputs or ()) if op_args.carries(arg)]
            ending = [output for output in outputs if _is_end(node, output)]
            if ending:
                ends[node] = ending
    return ends


def _is_end(node: Node, output: int) -> bool:
    body = node.body
    if not body.is_main:
        returned = (body.ret[key] for key in body.returned.get(node.name, ()))
        return names.parse(node.tensor(output)) in map(names.parse, returned)
    return not any(gives_on(reader) for reader, _ in uses(node, output))


@dataclass(frozen=True, slots=True)
class UnreachedOps:
    """What remains of the noisy path once the ends are given on.

    `dead` are the ops that no gradient reaches any more, the ends not among them. `beside` has,
    for each op that one still reaches by a path round the ends, who reads it there ("" for the
    output of a function).
    """

    dead: list[Node]
    beside: dict[Node, str]


def unreached_ops(path: CleanPath, ends: SlotsByOp) -> UnreachedOps:
    """Return what the ends leave; to be asked before the graph is changed."""
    region = {node.index: node for node in (*path.clones, *path.noisy_nodes())}
    stopped = {node.index for node in ends if _has_all_outputs(node, ends[node])}
    beside = {
        node: reader
        for index, node in region.items()
        if index not in stopped and (reader := _reader_outside(node, region)) is not None
    }
    alive = {node.index for node in beside}
    todo = list(beside)
    while todo:
        for text in todo.pop().data_inputs:
            producer = path.body.producer(text)
            index = -1 if producer is None else producer.index
            if index in region and index not in stopped and index not in alive:
                alive.add(index)
                todo.append(region[index])
    return UnreachedOps([region[i] for i in sorted(region.keys() - stopped - alive)], beside)


def _has_all_outputs(node: Node, outputs: list[int]) -> bool:
    carrying = [n for n, arg in enumerate(node.outputs or ()) if op_args.carries(arg)]
    return set(carrying) <= set(outputs)


def _reader_outside(node: Node, region: Mapping[int, Node]) -> str | None:
    """Return who reads an op outside of the region so that gradients flow back to it."""
    body = node.body
    for index, _, _ in data_uses(body, node.name):
        if index not in region and gives_on(Node(body, index)):
            return str(Node(body, index))
    return "" if body.returned.get(node.name) else None


def noisy_after(path: CleanPath, ends: SlotsByOp, dead: Collection[Node]) -> Node | None:
    """Return an op behind the ends whose gradient is taken at a noisy value."""
    tensors = [names.parse(node.tensor(n)) for node, outputs in ends.items() for n in outputs]
    marks = walk.downstream(path.body, tensors)
    clean = {node.index for node in (*dead, *ends)}
    for index, mark in enumerate(marks):
        node = Node(path.body, index)
        if mark and index not in clean and gives_on(node) and not is_linear_in(node, marks, ends):
            return node
    return None


def end_notes(
    path: CleanPath, ends: SlotsByOp, unreached: UnreachedOps, is_named: bool
) -> Iterator[str]:
    """What the report says of a gradient that is still noisy, or where the noise-free path ends."""
    reached = ", ".join(node.tensor(n) for node, outputs in ends.items() for n in outputs)
    if not is_named:
        yield f"in {path.body.label} the noise-free path goes up to {reached}"
    after = noisy_after(path, ends, unreached.dead)
    if after is not None:
        yield (
            f"the gradient is still noisy behind {reached}: that of {after} is taken at a noisy "
            f'value; without "until" the noise-free path goes up to the end'
        )
    for node, reader in list(unreached.beside.items())[:1]:
        by = reader or f"the output of function {path.body.label}"
        yield f"the gradient is still noisy beside {reached}: {by} reads {node}"
    if path.in_loop:
        yield (
            f"{reached}: the noise-free path ends with each iteration of a v1 loop; the next one "
            f"begins with noisy values"
        )
    if not path.body.is_main:
        yield (
            f"function {path.body.label}: the noise-free path ends in it; what comes after it "
            f"takes its gradient at noisy values"
        )


@dataclass(frozen=True, slots=True)
class BackwardAsPatch(Patch):
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
    takes_all: ClassVar[bool] = True

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
        for in_body in by_body.values():
            self._rewrite_body(in_body, editor)

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
        unreached = unreached_ops(path, ends)
        for note in end_notes(path, ends, unreached, self.until is not None):
            editor.note(note)
        path.make()
        self._join(path, ends, unreached.dead, editor)

    def _join(self, path: CleanPath, ends: SlotsByOp, dead: Sequence[Node], editor: Editor) -> None:
        for node in dead:
            editor.shadow(node)
        counted = {node: _counted(path, node, outputs) for node, outputs in ends.items()}
        behind = list(dead)
        for node, tensors in counted.items():
            join(node, tensors, editor, self.emit, [node, *behind])
            behind = []

    def _ends(self, path: CleanPath) -> SlotsByOp:
        if self.until is None:
            return _every_end(path)
        ends: SlotsByOp = {}
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
            if output not in ends.setdefault(node, []):
                ends[node].append(output)
        return ends

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
    ends = all_ends(path)
    if not ends:
        raise PatchError(
            f"no float tensor at the end of {path.body.label} depends on {_noisy_ops(path)}"
        )
    return ends


def _noisy_ops(path: CleanPath) -> str:
    """Return the noisy ops, for a message."""
    nodes = [str(Node(path.body, index)) for index in path.noisy]
    loop = '; in a v1 loop "until" names tensors of the same iteration' if path.in_loop else ""
    return short(nodes) + loop


def _counted(path: CleanPath, node: Node, outputs: Sequence[int]) -> dict[int, BackwardTensor]:
    if node.index in path.noisy:
        return {0: path.counted(node)}
    return {output: BackwardTensor(path.of(node.tensor(output))) for output in outputs}


def _until_tensor(body: Body, text: str) -> tuple[Node, int]:
    """Return the op and the output that a name in "until" means."""
    tensor = walk.tensor_named(body, text)
    producer = None if tensor is None else body.producer(str(tensor))
    if tensor is None or producer is None:
        near = did_you_mean(names.op_of(text), body.heads.names)
        raise PatchError(f'"until": there is no tensor {text!r} in {body.label}{near}')
    spelled = [names.parse(producer.tensor(n)) for n in range(len(op_args.known_outputs(producer)))]
    return producer, spelled.index(tensor)

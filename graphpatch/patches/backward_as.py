"""`backward_as`: backward an op counts as one of its inputs, and what comes after it on that.

The noise-free path has clones of the ops from noisy ops to the tensors at which it ends. A clone
reads clean tensors, and all else that the original reads: variables, placeholders and constants are
shared, as they are not behind the noise. So is an op with a state through which no gradient flows,
such as one that draws random numbers of a noisy tensor's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeAlias

from graphpatch import names, opdefs
from graphpatch.differentiation.flow import carries, is_asked_for, is_linear, lets_through, why_not
from graphpatch.errors import PatchError, did_you_mean
from graphpatch.graph import provenance, walk
from graphpatch.graph.functions import called_by_op
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import BOUNDARIES, FED, NEXTS, RESOURCE_VARIABLE
from graphpatch.opdefs import NO_NUMBERS
from graphpatch.patches import Patch
from graphpatch.patches.carrier import BackwardTensor, join, refuse_in_part, repeated
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.placement import (
    comes_from_constant,
    refuse_boundary,
    refuse_shadowed,
    refuse_without_gradient,
)
from graphpatch.patches.target import Target, known_outputs
from graphpatch.shown import short


def is_random(op_type: str) -> bool:
    """Return whether such ops give other numbers on each run: stateful, by a seed or generator."""
    op = opdefs.lookup(op_type)
    if op is None or not op.stateful:
        return False
    numbers = [arg for arg in op.outputs if arg.dtype not in NO_NUMBERS and not arg.is_ref]
    has_seed = any(attr.name == "seed" for attr in op.attrs)
    takes_generator = any(arg.name == "resource" for arg in op.inputs)
    return bool(numbers) and (has_seed or (op.name.startswith("Stateful") and takes_generator))


def noise_notes(nodes: Sequence[Node], at_inputs: bool = False) -> Iterator[str]:
    """Yield what to say of ops that let no gradient through to noise, or only as an identity.

    `at_inputs`: what flows back is changed before the op, whose own gradient is taken.
    """
    by_body: dict[str, list[Node]] = {}
    for node in nodes:
        by_body.setdefault(node.body.label, []).append(node)
    where = "at" if at_inputs else "behind"
    for body, in_body in ((group[0].body, group) for group in by_body.values()):
        sources = [index for op in filter(is_random, body.by_type) for index in body.by_type[op]]
        noise = _behind(body, sources)
        for index in sources:
            noise[index] = 1
        noisy = [node for node in in_body if noise[node.index]]
        own = {node.index for node in noisy}
        behind = _behind(body, own)
        for index in own:
            behind[index] = at_inputs
        asked = (index for index, mark in enumerate(behind) if mark and noise[index])
        op = differentiated_at_noise(body, asked if noisy else (), noise.__getitem__)
        if op is not None:
            yield (
                f"the gradient is still noisy {where} {short([str(node) for node in noisy])}: that "
                f"of {op} is taken at a value that differs from run to run, and so does the "
                f"gradient; backward_as on the op that adds the noise, without "
                f'"until", takes it at values without noise'
            )


def _behind(body: Body, indices: Iterable[int]) -> bytearray:
    """Mark the ops that depend on the first outputs of these."""
    outputs = [_output(Node(body, index)) for index in indices]
    return walk.downstream(body, outputs) if outputs else bytearray(len(body))


def differentiated_at_noise(
    body: Body, indices: Iterable[int], is_noisy: Callable[[int], object]
) -> Node | None:
    """Return the first of these ops whose gradient depends on the noisy tensors that it reads."""
    for node in (Node(body, index) for index in indices):
        if gives_on(node):
            producers = [body.producer(text) for text in node.data_inputs]
            noisy = [op is not None and bool(is_noisy(op.index)) for op in producers]
            if not is_linear(node.op, noisy, [comes_from_constant(op) for op in producers]):
                return node
    return None


def gives_on(node: Node) -> bool:
    """Return whether an op makes a float tensor of what it reads, and gradients flow back."""
    flat = node.outputs
    return lets_through(node) and (flat is None or any(map(is_asked_for, flat)))


# Ops that TensorFlow calls stateful since they read a state, which they leave as it is.
STATE_READS = frozenset(
    "ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp VariableShape".split()
) | {RESOURCE_VARIABLE}

# What one rule may clone of what earlier ones added: so many ops and inputs, and so often those of
# the file that it clones.
MOST_AGAIN = 2_000
TIMES_THE_FILE = 8
ENDS_NAMED = 5  # where a noise-free path ends, in a note

Ends: TypeAlias = dict[Node, list[int]]
"""The ops at which the noise-free path ends, with those of their outputs."""


@dataclass(eq=False)
class CleanPath:
    """The ops from noisy ones on, in one body; `noisy` has which input each counts as.

    `order` has the noisy ops that were met on the path and the originals that are cloned, as they
    are computed; `read` are those that another of them reads.
    """

    body: Body
    noisy: Mapping[int, int]
    editor: RuleEditor
    order: list[Node] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    clean: dict[names.TensorName, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        starts = [_output(Node(self.body, index)) for index in self.noisy]
        # One iteration of a v1 loop: what it hands on to the next is noisy, as its forward is.
        ops = self.body.heads.ops
        self.behind = walk.downstream(self.body, starts, last=lambda index: ops[index] in NEXTS)

    def holds(self, node: Node | None) -> bool:
        """Return whether an op is noisy, or behind one that is."""
        return node is not None and (node.index in self.noisy or bool(self.behind[node.index]))

    @property
    def clones(self) -> list[Node]:
        """Return the originals that are cloned."""
        return [node for node in self.order if node.index not in self.noisy]

    @property
    def in_loop(self) -> bool:
        """Return whether it goes on in the next iteration of a v1 loop."""
        return any(self.behind[index] for op in NEXTS for index in self.body.by_type.get(op, ()))

    def __str__(self) -> str:
        loop = '; in a v1 loop "until" names tensors of the same iteration' if self.in_loop else ""
        return short([str(Node(self.body, index)) for index in self.noisy]) + loop

    def plan(self, ends: Iterable[Node]) -> None:
        """Find what is to be cloned for these ops to be clean; nothing is changed.

        Raises PatchError where something on the path cannot run a second time, or where earlier
        rules have cloned so much of it that each further rule doubles it.
        """
        reads, todo = dict[int, list[int]](), list(ends)
        while todo:
            node = todo.pop()
            if node.index in reads or (node.index not in self.noisy and self._is_shared(node)):
                continue
            producers = list(self._producers(node))
            reads[node.index] = [producer.index for producer in producers]
            self.read |= set(reads[node.index])
            todo += producers
        links = {index: reads.keys() & {*read} for index, read in reads.items()}
        self.order = [Node(self.body, index) for index in walk.in_order(links)]
        clones = self.clones
        added = [node for node in clones if node.index in self.body.root]
        again, whole = (sum(1 + len(n.inputs) for n in nodes) for nodes in (added, clones))
        if again > MOST_AGAIN + TIMES_THE_FILE * (whole - again):
            raise PatchError(
                f"{len(added):,} of the {len(clones):,} ops on the noise-free path were added "
                f"by earlier rules, as each rule clones what those before it cloned; give the "
                f"noisy ops to one rule, which clones each op once"
            )

    def _producers(self, node: Node) -> Iterator[Node]:
        """Yield the ops behind the noise that a clean op reads."""
        slot = self.noisy.get(node.index)
        for text in node.data_inputs if slot is None else [node.data_inputs[slot]]:
            producer = self.body.producer(text)
            if producer is None or not self.holds(producer):
                continue
            if producer.index in self.noisy and names.parse(text) != _output(producer):
                raise PatchError(
                    f"{producer} counts as its input where output 0 is read, and {text} is not"
                )
            yield producer

    def _is_shared(self, node: Node) -> bool:
        """Return whether the noise-free path reads an op as it is, though it is behind the noise.

        Raises PatchError for one that it leads through, and of which there can be no clone.
        """
        reason, flat, op = why_not_twice(node, self.editor), node.arguments, node.opdef
        if not reason:
            return False
        if flat is None or op is None or node.op in BOUNDARIES | FED:
            raise PatchError(reason)
        for arg, text in zip(flat, node.data_inputs, strict=False):
            is_noisy = self.holds(self.body.producer(text))
            if is_noisy and op.gradient != "none" and is_asked_for(arg):
                raise PatchError(reason)
        return True

    def make(self) -> None:
        """Add the clones, and what repeats the input of a noisy op to the op's shape."""
        for node in self.order:
            if node.index not in self.noisy:
                inputs = [text if text.startswith("^") else self.of(text) for text in node.inputs]
                clone = self.editor.clone(node, f"{node.name}/clean", inputs)
                for output in range(len(node.outputs or ())):
                    self.clean[_output(node, output)] = clone.tensor(output)
            elif node.index in self.read:
                counted, name = self.counted(node), f"{node.name}/clean"
                tensor = repeated(counted, node.tensor(0), name, node, self.editor)
                self.clean[_output(node)] = tensor

    def of(self, text: str) -> str:
        """Return the clean tensor for one, which is itself where it is not behind the noise."""
        return self.clean.get(names.parse(text), text)

    def counted(self, noisy: Node) -> BackwardTensor:
        """Return what a noisy op counts as: its input, made clean in turn."""
        op = noisy.opdef
        is_repeated = op is None or op.broadcasts or not op.keeps_shape
        return BackwardTensor(self.of(noisy.data_inputs[self.noisy[noisy.index]]), is_repeated)


def _output(node: Node, output: int = 0) -> names.TensorName:
    return names.parse(node.tensor(output))


def why_not_twice(node: Node, editor: RuleEditor) -> str:
    """Return why there can be no clone of an op that runs beside it; nothing where there can."""
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
    todo, visited, functions = [node], set[str](), editor.graph.functions
    while todo:  # whether it, or what it calls, does more than to read a state
        op = todo.pop()
        label = op.body.label
        called_in_body = editor.cached(("called", label), partial(called_by_op, op.body))
        called = {name for name in called_in_body.get(op.index, ()) if name in functions}
        if not called and op.op not in STATE_READS and (op.opdef is None or op.opdef.stateful):
            return (
                f"{node} has a state, and must not run twice, but the noise-free path leads "
                f'through it; "until" can name tensors before it'
            )
        for name in called - visited:
            todo += functions[name]
        visited |= called
    return ""


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

    def rewrite_all(self, nodes: Sequence[Node], editor: RuleEditor) -> None:
        """Let all these ops count as their input; clones of them by earlier rules do as well."""
        by_body: dict[str, list[Node]] = {}
        for node in nodes:
            refuse_boundary(node)
            Target.of(node).check_counts_as(self.input)
            op = node.opdef
            if op and op.known_to != "library" and self.input not in op.keeps_shape:
                raise PatchError(
                    f"{node} is not known to keep the shape of input {self.input}, so it cannot "
                    f"count as that input"
                )
            refuse_without_gradient(node, editor)
            by_body.setdefault(node.body.label, []).append(node)
        for in_body in by_body.values():
            self._rewrite_body(in_body, editor)

    def _rewrite_body(self, nodes: Sequence[Node], editor: RuleEditor) -> None:
        body = nodes[0].body
        of = {node.name for node in nodes}
        clones = [n for n in provenance.touched(body) if provenance.clone_of(n) in of]
        if not clones:
            refuse_shadowed(nodes, goes_first=True)
        path = CleanPath(body, {node.index: self.input for node in (*nodes, *clones)}, editor)
        ends = self._ends(path)
        path.plan(ends)
        for node, outputs in ends.items():
            refuse_in_part(node, set(outputs), editor, self.emit)
        met = {node.index for node in path.order}
        unmet = [node for node in nodes if node.index not in met]
        if unmet and not provenance.shadow(unmet[0]):
            named = ", ".join(node.name for node in ends)
            raise PatchError(
                f"{unmet[0]}: no noise-free path leads from it to {named}; leave it out"
            )
        dead, beside = _remaining(path, ends)
        for note in _notes(path, ends, dead, beside, self.until is not None):
            editor.report.note(note)
        path.make()
        for node in dead:
            editor.shadow(node)
        counted = {
            node: {0: path.counted(node)}
            if node.index in path.noisy
            else {output: BackwardTensor(path.of(node.tensor(output))) for output in outputs}
            for node, outputs in ends.items()
        }
        for node, tensors in counted.items():
            join(Target((node, *dead), node), tensors, editor, self.emit)
            dead = []

    def _ends(self, path: CleanPath) -> Ends:
        """Return the tensors that `until` names, or those at the end of the body."""
        if self.until is None:
            return _last_tensors(path)
        body, ends = path.body, Ends()
        for text in self.until:
            tensor = walk.tensor_named(body, text)
            node = None if tensor is None else body.producer(str(tensor))
            if tensor is None or node is None:
                near = did_you_mean(names.op_of(text), body.heads.names)
                raise PatchError(f'"until": there is no tensor {text!r} in {body.label}{near}')
            flat = known_outputs(node)
            output = [names.parse(node.tensor(n)) for n in range(len(flat))].index(tensor)
            if not path.holds(node):
                raise PatchError(f'"until": {text} does not depend on {path}')
            if output and node.index in path.noisy:
                raise PatchError(f'"until": {text} is not output 0, which counts as the input')
            if not carries(flat[output]):
                raise PatchError(f'"until": {text} {why_not(flat[output])}')
            if not lets_through(node):
                raise PatchError(f'"until": no gradient flows back through {node}')
            if output not in ends.setdefault(node, []):
                ends[node].append(output)
        return ends


def _last_tensors(path: CleanPath) -> Ends:
    """Return the outputs of the body: of the main graph, float tensors that no other is made of."""
    body, ends = path.body, Ends()
    returned = {names.parse(text) for text in body.ret.values()}
    for node in (n for n in body if path.holds(n) and lets_through(n)):
        for output, arg in enumerate(node.outputs or ()):
            if body.is_main:
                is_end = not any(gives_on(reader) for reader, _ in walk.uses(node, output))
            else:
                is_end = names.parse(node.tensor(output)) in returned
            if carries(arg) and is_end:
                ends.setdefault(node, []).append(output)
    if not ends:
        raise PatchError(f"no float tensor at the end of {body.label} depends on {path}")
    return ends


def _remaining(path: CleanPath, ends: Ends) -> tuple[list[Node], dict[Node, str]]:
    """Return what remains of the noisy path once the ends are given on, before it is changed.

    These are the ops that no gradient reaches any more, the ends not among them, and those that
    one still reaches by a path round the ends, with who reads each there ("" for the output of a
    function).
    """
    body = path.body
    region = {node.index: node for node in path.order}
    for node, outputs in ends.items():
        carrying = {n for n, arg in enumerate(node.outputs or ()) if carries(arg)}
        if carrying <= set(outputs):
            region.pop(node.index, None)
    inside = {*region, *(node.index for node in ends)}
    beside: dict[Node, str] = {}
    for node in region.values():
        readers = (Node(body, index) for index, _, _ in walk.data_uses(body, node.name))
        outside = (str(op) for op in readers if op.index not in inside and gives_on(op))
        reader = next(outside, "" if body.returned.get(node.name) else None)
        if reader is not None:
            beside[node] = reader
    texts = (names.parse(text) for node in beside for text in node.data_inputs)
    before = walk.upstream(body, texts, last=lambda index: index not in region)
    alive = {index for index in region if before[index]} | {node.index for node in beside}
    return [region[index] for index in sorted(region.keys() - alive)], beside


def _notes(
    path: CleanPath, ends: Ends, dead: Sequence[Node], beside: Mapping[Node, str], is_named: bool
) -> Iterator[str]:
    """Yield what to say of a gradient that is still noisy, or where the noise-free path ends."""
    body = path.body
    texts = [node.tensor(output) for node, outputs in ends.items() for output in outputs]
    more = f" and {len(texts) - ENDS_NAMED} more" if len(texts) > ENDS_NAMED else ""
    named = ", ".join(texts[:ENDS_NAMED]) + more
    if not is_named:
        yield f"in {body.label} the noise-free path goes up to {named}"
    marks = walk.downstream(body, map(names.parse, texts))
    ending = {node.index for node in ends}
    clean = ending | {node.index for node in dead}
    after = (index for index, mark in enumerate(marks) if mark and index not in clean)
    op = differentiated_at_noise(body, after, lambda index: marks[index] or index in ending)
    if op is not None:
        yield (
            f"the gradient is still noisy behind {named}: that of {op} is taken at a noisy "
            f'value; without "until" the noise-free path goes up to the end'
        )
    for node, reader in list(beside.items())[:1]:
        by = reader or f"the output of function {body.label}"
        yield f"the gradient is still noisy beside {named}: {by} reads {node}"
    if path.in_loop:
        yield (
            f"{named}: the noise-free path ends with each iteration of a v1 loop; the next one "
            f"begins with noisy values"
        )
    if not body.is_main:
        yield (
            f"function {body.label}: the noise-free path ends in it; what comes after it "
            f"takes its gradient at noisy values"
        )

"""The noise-free path: clones of the ops from noisy ops to the tensors at which it ends.

A clone reads clean tensors, and all else that the original reads: variables, placeholders and
constants are shared, as they are not behind the noise. So is an op with a state through which no
gradient flows, such as one that draws random numbers of a noisy tensor's shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphpatch import names
from graphpatch.control_flow.op_types import BOUNDARIES, NEXTS
from graphpatch.errors import PatchError
from graphpatch.graph import topology
from graphpatch.graph.body import Body, Node
from graphpatch.graph.calls import called_by_op
from graphpatch.graph.edit import Editor
from graphpatch.graph.op_types import FED, RESOURCE_VARIABLE
from graphpatch.patches import op_args
from graphpatch.patches.join import BackwardTensor, repeat_to_shape

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
    """Whether an op, or what it calls, does more than to read a state."""
    bodies, todo, functions = set[str](), [node], editor.graph.functions
    while todo:
        one = todo.pop()
        called = _called_in_library(one, editor)
        if not called and one.op not in STATE_READS and (one.opdef is None or one.opdef.stateful):
            return True
        for name in called - bodies:
            bodies.add(name)
            todo += list(functions[name]) if name in functions else []
    return False


def _called_in_library(node: Node, editor: Editor) -> set[str]:
    """The functions of the file that an op calls."""
    found = editor.cached(("called", node.body.label), lambda: called_by_op(node.body))
    return {name for name in found.get(node.index, ()) if name in editor.graph.functions}


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
        self.behind = topology.downstream(self.body, starts, last=lambda one: ops[one] in NEXTS)
        self._seen: set[int] = set()

    def holds(self, node: Node) -> bool:
        """Whether an op is noisy, or behind one that is."""
        return node.index in self.noisy or bool(self.behind[node.index])

    @property
    def in_loop(self) -> bool:
        """Whether it goes on in the next iteration of a v1 loop."""
        return any(self.behind[index] for op in NEXTS for index in self.body.by_type.get(op, ()))

    def noisy_nodes(self) -> list[Node]:
        """The noisy ops that were met on the path."""
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
        again, own = (sum(size for is_added, size in sizes if is_added == one) for one in (1, 0))
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
        """The ops behind the noise that a clean op reads."""
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
            arg for arg, one in zip(flat, node.data_inputs, strict=False) if self._is_noisy(one)
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
        """The clean tensor for one, which is itself where it is not behind the noise."""
        chain: dict[str, Node] = {}
        at = text
        while (noisy := self._not_clean_yet(at)) is not None:
            if at in chain:
                raise PatchError(
                    f"{noisy} depends on itself: there is no noise-free input to begin with"
                )
            chain[at] = noisy
            at = self._texts(noisy)[0]
        for one, noisy in reversed(chain.items()):
            self.clean[_spelling(one)] = self._of_noisy(one, noisy)
        return self.clean.get(_spelling(text), text)

    def _not_clean_yet(self, text: str) -> Node | None:
        producer = self.body.producer(text)
        if producer is None or _spelling(text) in self.clean or producer.index not in self.noisy:
            return None
        return producer

    def _of_noisy(self, text: str, producer: Node) -> str:
        one, name = self.counted(producer), f"{producer.name}/{CLEAN_SUFFIX}"
        if not one.repeated:
            return one.tensor
        return repeat_to_shape(one.tensor, text, name, producer, self.editor)

    def counted(self, noisy: Node) -> BackwardTensor:
        """What a noisy op counts as: its input, made clean in turn."""
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

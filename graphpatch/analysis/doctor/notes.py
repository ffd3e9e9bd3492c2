"""Notes on the ops on the path of a gradient: one entry a class, none of them blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphpatch.analysis.doctor.diagnosis import LOOP_REMEDY, Doctor
from graphpatch.control_flow.op_types import BRANCHES, MERGES
from graphpatch.control_flow.stored import StoredContexts
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.gradient_reach import ops_on_paths, ops_reached
from graphpatch.differentiation.override_keys import CUSTOM, is_carrier, is_registered, override_key
from graphpatch.differentiation.wiring import Tensor
from graphpatch.graph import provenance
from graphpatch.graph.functions import named_by
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import CALLS
from graphpatch.match.ready import NEEDED
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from graphpatch.names import op_of
from graphpatch.rules import rules_from
from graphpatch.table import short

RECTIFIERS = frozenset({"Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"})
TRAINED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
STRIPPED = frozenset({"StopGradient", "Identity", "IdentityN", "PreventGradient"})


@dataclass(frozen=True, slots=True)
class Note:
    """Something to know about ops of one class: what it is, and which they are."""

    kind: str
    says: str
    ops: Sequence[str]

    def document(self) -> dict[str, Any]:
        """Return the note as `doctor --json` prints it."""
        return {"kind": self.kind, "says": self.says, "ops": list(self.ops)}

    def text(self) -> str:
        """Return the note in a line."""
        return f"{self.says}: {short(self.ops)}" if self.ops else self.says


@dataclass(frozen=True, eq=False)
class NoteContext:
    """What a class of notes is told: the doctor, the ops on the path, those of functions too."""

    doctor: Doctor
    stored: StoredContexts
    on_path: Sequence[Node]

    @cached_property
    def is_patched(self) -> bool:
        """Return whether some activation on the path has another gradient than its own.

        A rule that stops gradients, there or elsewhere, gives it none.
        """
        types = RECTIFIERS.union(*NEEDED.values())
        patches = provenance.patches(self.doctor.session.graph)
        stopping = {
            rule
            for rule, patch in patches.items()
            if {"stop_gradient", "freeze"} & (patch or {}).keys()
        }
        return any(
            override_key(node) is not None
            or any(rule.id not in stopping for rule in provenance.rules_that_touched(node))
            for node in self.on_path
            if node.op in types
        )

    @property
    def keyed(self) -> Iterator[tuple[Node, str]]:
        """Yield the ops of all bodies that have an override, with its key."""
        for body in self.doctor.session.graph.bodies:
            for node in () if body.is_ours else body:
                key = override_key(node)
                if key is not None:
                    yield node, key


def notes_on_pairs(
    doctor: Doctor, stored: StoredContexts, pairs: Iterable[tuple[Tensor, Tensor]]
) -> list[Note]:
    """Return the notes on the ops between the tensors of these pairs."""
    context = NoteContext(doctor, stored, _ops_on_paths_of(doctor, pairs))
    return [
        Note(kind, says, [_op_in_words(node) for node in nodes])
        for kind, says, which in NOTE_KINDS
        if (nodes := list(which(context)))
    ]


def _ops_on_paths_of(doctor: Doctor, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Node]:
    wiring = doctor.session.wiring(doctor.session.graph.main)
    targets: dict[Tensor, list[Tensor]] = {}
    for source, target in pairs:
        targets.setdefault(source, []).append(target)
    indices: set[int] = set()
    for source, to in targets.items():
        indices.update(ops_on_paths(wiring, ops_reached(wiring, [source]), to))
    nodes = [Node(wiring.body, index) for index in sorted(indices)]
    labels = dict.fromkeys(label for node in nodes for label in _called_by(node, set()))
    functions = doctor.session.graph.functions
    return nodes + [node for label in labels if label in functions for node in functions[label]]


def _called_by(node: Node, visited: set[str]) -> Iterator[str]:
    signatures = node.body.library.signatures
    keys = ("f", "body", "then_branch", "else_branch", "branches")
    names = [name for key in keys for name in named_by(node, key)]
    for name in (*names, *([node.op] if node.op in signatures else [])):
        if name not in visited:
            visited.add(name)
            yield name


def _unpatched_activations(context: NoteContext) -> Iterator[Node]:
    """Return those whose gradient is still their own, where rules changed that of others."""
    rectifiers = [node for node in context.on_path if node.op in RECTIFIERS]
    return (node for node in rectifiers if context.is_patched and not _is_covered(node))


def _unpatched_patterns(context: NoteContext) -> Iterator[Node]:
    on_path = {(node.body.label, node.index) for node in context.on_path}
    types = {node.op for node in context.on_path}
    needed = [name for name, ops in NEEDED.items() if context.is_patched and ops & types]
    for name in needed:
        for node in find(context.doctor.session.graph, as_match(name)).nodes:
            if (node.body.label, node.index) in on_path and not _is_covered(node):
                yield node


def as_match(ready: str) -> Match:
    """Return a match for a ready pattern."""
    rule = {"match": {"pattern": f"@{ready}"}, "patch": {"stop_gradient": True}}
    return rules_from([rule])[0].match


def _is_covered(node: Node) -> bool:
    return override_key(node) is not None or provenance.record(node) is not None


def _training(context: NoteContext) -> Iterator[Node]:
    for node in context.on_path:
        if node.op in TRAINED:
            value = node.attr("is_training")
            if value is None or value.b:
                yield node


def _unregistered(context: NoteContext) -> Iterator[Node]:
    functions = context.doctor.session.graph.library.signatures
    for node, key in context.keyed:
        known = is_registered(key) or key in context.doctor.tape.restored
        if not known and not key.startswith(CUSTOM) and node.op not in functions:
            yield node


def _ignored(context: NoteContext) -> Iterator[Node]:
    """Overrides in bodies that a call reaches, where a Session differentiates in C++.

    Not those of ours that are no news: of a call whose gradient a function carries, and those
    that are there for a tape.
    """
    restored = context.doctor.tape.restored
    bodies = Bodies(context.doctor.session.graph)
    for node, key in context.keyed:
        is_news = not is_carrier(node) and key not in restored
        if is_news and not node.body.is_main and bodies.place_of(node).ignoring is not None:
            yield node


def _off_the_path(context: NoteContext) -> Iterator[Node]:
    on_path = {(node.body.label, node.index) for node in context.on_path}
    for node, _ in context.keyed:
        if node.body.is_main and (node.body.label, node.index) not in on_path:
            yield node


def _stripped(context: NoteContext) -> Iterator[Node]:
    for node in context.on_path:
        if node.op == "StopGradient" or (node.op in STRIPPED and override_key(node) is not None):
            yield node


def _branches_without_context(context: NoteContext) -> Iterator[Node]:
    """Those without a context. The Merge at the end of a branch is not in it; what it reads is."""
    stored = context.stored.in_branches | context.stored.in_loops.keys()
    for node in context.on_path:
        if node.body.is_main and node.op in BRANCHES and node.name not in stored:
            read = map(op_of, node.data_inputs) if node.op in MERGES else ()
            if stored.isdisjoint(read):
                yield node


def _function_calls(context: NoteContext) -> Iterator[Node]:
    functions = context.doctor.session.graph.functions
    for node in context.on_path:
        if node.op in CALLS or (node.op in functions and not functions[node.op].is_ours):
            yield node


def _nested_calls(context: NoteContext) -> Iterator[Node]:
    """Calls on the path in what is called that Grappler does not inline: C++ has no gradient."""
    bodies = Bodies(context.doctor.session.graph)
    for label in dict.fromkeys(
        name for node in _function_calls(context) for name in _called_by(node, set())
    ):
        done = context.doctor.tape.inside(label)
        for index in sorted(done.between) if done is not None else ():
            node = done.wiring.node(index) if done is not None else None
            if node is not None and node.op in CALLS and not bodies.is_inlined(node):
                yield node


Which = Callable[[NoteContext], Iterable[Node]]

NOTE_KINDS: tuple[tuple[str, str, Which], ...] = (
    ("activations", "activations on the way that no rule covers", _unpatched_activations),
    (
        "activation_patterns",
        "activations made of several ops that no rule covers",
        _unpatched_patterns,
    ),
    (
        "training_batch_norm",
        "batch norms in training form: fed one example, they give no gradient but zero (--run)",
        _training,
    ),
    (
        "unregistered_key",
        "overrides by a key that TensorFlow does not register: the program that loads it must",
        _unregistered,
    ),
    (
        "ignored_override",
        "overrides in functions that PartitionedCall calls: a Session ignores them silently "
        '(write them with "emit": "function")',
        _ignored,
    ),
    ("idle_override", "overrides that never fire: these ops are not on the way", _off_the_path),
    (
        "stripped",
        "offline optimisers (freezing tools, tf_optimizer) drop these, and what they do to "
        "gradients",
        _stripped,
    ),
    (
        "branch",
        "v1 branches and loops without their control-flow contexts: tf.gradients works, running it "
        f"may fail (Retval does not have value); {LOOP_REMEDY}",
        _branches_without_context,
    ),
    (
        "nested_call",
        "no gradient in a Session, though tf.gradients builds one: running it raises NotFoundError "
        "(No gradient defined for op), as these are in called functions and Grappler does not "
        "inline them; inline them, or differentiate on a tape",
        _nested_calls,
    ),
    (
        "function",
        "called functions: a Session differentiates them in C++ (SymbolicGradient), which knows "
        "fewer ops than a tape (--run shows whether it works)",
        _function_calls,
    ),
)
"""Kind, what is said, and which ops: in the order in which they are told."""


def _op_in_words(node: Node) -> str:
    return f"{node.op} {node.name}" + ("" if node.body.is_main else f" in {node.body.label}")

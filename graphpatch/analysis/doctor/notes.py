"""Notes on the ops on the path of a gradient: one entry a class, none of them blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from graphpatch.analysis.doctor.diagnosis import LOOP_REMEDY, Doctor
from graphpatch.control_flow.op_types import BRANCHES, MERGES
from graphpatch.differentiation.bodies import Bodies
from graphpatch.differentiation.gradient_reach import ops_on_paths, ops_reached
from graphpatch.differentiation.override_keys import CUSTOM, is_carrier, is_registered, override_key
from graphpatch.differentiation.replay import called_bodies
from graphpatch.differentiation.wiring import Tensor
from graphpatch.graph import provenance
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


class OpsOnPath:
    """The ops between the tensors of some pairs, those of functions too, class by class.

    `keyed` are the ops of all bodies that have an override, with its key.
    """

    def __init__(self, doctor: Doctor, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.doctor, self.graph, wiring = doctor, doctor.session.graph, doctor.main
        self.bodies = Bodies(self.graph)
        targets: dict[Tensor, list[Tensor]] = {}
        for source, target in pairs:
            targets.setdefault(source, []).append(target)
        indices = {
            index
            for source, to in targets.items()
            for index in ops_on_paths(wiring, ops_reached(wiring, [source]), to)
        }
        main = [Node(wiring.body, index) for index in sorted(indices)]
        called = dict.fromkeys(label for node in main for label in called_bodies(node))
        functions = [self.graph.functions.get(label, ()) for label in called]
        self.nodes = [*main, *(node for body in functions for node in body)]
        self.places = {(node.body.label, node.index) for node in self.nodes}
        self.keyed = [
            (node, key)
            for body in self.graph.bodies
            for node in (() if body.is_ours else body)
            if (key := override_key(node)) is not None
        ]

    def is_patched(self) -> bool:
        """Return whether some activation on the path has another gradient than its own.

        A rule that stops gradients, there or elsewhere, gives it none.
        """
        types = RECTIFIERS.union(*NEEDED.values())
        stopping = {
            rule
            for rule, patch in provenance.patches(self.graph).items()
            if {"stop_gradient", "freeze"} & (patch or {}).keys()
        }
        return any(
            override_key(node) is not None
            or any(rule.id not in stopping for rule in provenance.rules_that_touched(node))
            for node in self.nodes
            if node.op in types
        )

    def unpatched_activations(self) -> Iterator[Node]:
        """Return those whose gradient is still their own, where rules changed that of others."""
        if self.is_patched():
            yield from (n for n in self.nodes if n.op in RECTIFIERS and not _is_covered(n))

    def unpatched_patterns(self) -> Iterator[Node]:
        """Return the last ops of activations that consist of several, where others are patched."""
        types = {node.op for node in self.nodes}
        names = [name for name, ops in NEEDED.items() if ops & types]
        for name in names if names and self.is_patched() else ():
            for node in find(self.graph, as_match(name)).nodes:
                if (node.body.label, node.index) in self.places and not _is_covered(node):
                    yield node

    def training(self) -> Iterator[Node]:
        """Return the batch norms in training form."""
        for node in self.nodes:
            value = node.attr("is_training") if node.op in TRAINED else None
            if node.op in TRAINED and (value is None or value.b):
                yield node

    def unregistered(self) -> Iterator[Node]:
        """Return the ops whose key no program registers by itself."""
        for node, key in self.keyed:
            known = is_registered(key) or key in self.doctor.tape.restored
            is_call = node.op in self.graph.library.signatures
            if not known and not key.startswith(CUSTOM) and not is_call:
                yield node

    def ignored(self) -> Iterator[Node]:
        """Overrides in bodies that a call reaches, where a Session differentiates in C++.

        Not those of ours that are no news: of a call whose gradient a function carries, and those
        that are there for a tape.
        """
        for node, key in self.keyed:
            is_news = not is_carrier(node) and key not in self.doctor.tape.restored
            is_inside = is_news and not node.body.is_main
            if is_inside and self.bodies.place_of(node).ignoring is not None:
                yield node

    def off_the_path(self) -> Iterator[Node]:
        """Return the overrides of the main graph that are not on the path."""
        for node, _ in self.keyed:
            if node.body.is_main and (node.body.label, node.index) not in self.places:
                yield node

    def stripped(self) -> Iterator[Node]:
        """Return what offline optimisers take out."""
        for node in self.nodes:
            is_keyed = node.op in STRIPPED and override_key(node) is not None
            if node.op == "StopGradient" or is_keyed:
                yield node

    def branches_without_context(self) -> Iterator[Node]:
        """The Merge at the end of a branch is not in its context; what it reads is."""
        contexts = self.doctor.session.stored
        stored = contexts.in_branches | contexts.in_loops.keys()
        for node in self.nodes:
            if node.body.is_main and node.op in BRANCHES and node.name not in stored:
                read = map(op_of, node.data_inputs) if node.op in MERGES else ()
                if stored.isdisjoint(read):
                    yield node

    def calls(self) -> Iterator[Node]:
        """Return the calls of functions that a Session differentiates as a whole."""
        functions = self.graph.functions
        for node in self.nodes:
            if node.op in CALLS or (node.op in functions and not functions[node.op].is_ours):
                yield node

    def nested_calls(self) -> Iterator[Node]:
        """Calls on the path in what is called that Grappler does not inline."""
        for label in dict.fromkeys(name for node in self.calls() for name in called_bodies(node)):
            reach = self.doctor.tape.inside(label)
            nodes = [reach.wiring.node(index) for index in sorted(reach.between)] if reach else ()
            for node in nodes:
                if node is not None and node.op in CALLS and not self.bodies.is_inlined(node):
                    yield node


def as_match(ready: str) -> Match:
    """Return a match for a ready pattern."""
    rule = {"match": {"pattern": f"@{ready}"}, "patch": {"stop_gradient": True}}
    return rules_from([rule])[0].match


def _is_covered(node: Node) -> bool:
    return override_key(node) is not None or provenance.record(node) is not None


NOTE_KINDS: tuple[tuple[str, Callable[[OpsOnPath], Iterable[Node]], str], ...] = (
    (
        "activations",
        OpsOnPath.unpatched_activations,
        "activations on the way that no rule covers",
    ),
    (
        "activation_patterns",
        OpsOnPath.unpatched_patterns,
        "activations made of several ops that no rule covers",
    ),
    (
        "training_batch_norm",
        OpsOnPath.training,
        "batch norms in training form: fed one example, they give no gradient but zero (--run)",
    ),
    (
        "unregistered_key",
        OpsOnPath.unregistered,
        "overrides by a key that TensorFlow does not register: the program that loads it must",
    ),
    (
        "ignored_override",
        OpsOnPath.ignored,
        "overrides in functions that PartitionedCall calls: a Session ignores them silently "
        '(write them with "emit": "function")',
    ),
    (
        "idle_override",
        OpsOnPath.off_the_path,
        "overrides that never fire: these ops are not on the way",
    ),
    (
        "stripped",
        OpsOnPath.stripped,
        "offline optimisers (freezing tools, tf_optimizer) drop these, and what they do to "
        "gradients",
    ),
    (
        "branch",
        OpsOnPath.branches_without_context,
        "v1 branches and loops without their control-flow contexts: tf.gradients works, running it "
        f"may fail (Retval does not have value); {LOOP_REMEDY}",
    ),
    (
        "nested_call",
        OpsOnPath.nested_calls,
        "no gradient in a Session, though tf.gradients builds one: running it raises NotFoundError "
        "(No gradient defined for op), as these are in called functions and Grappler does not "
        "inline them; inline them, or differentiate on a tape",
    ),
    (
        "function",
        OpsOnPath.calls,
        "called functions: a Session differentiates them in C++ (SymbolicGradient), which knows "
        "fewer ops than a tape (--run shows whether it works)",
    ),
)
"""Kind, which ops, and what is said: in the order in which they are told."""


def notes_on_pairs(doctor: Doctor, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Note]:
    """Return the notes on the ops between the tensors of these pairs."""
    ops, notes = OpsOnPath(doctor, pairs), []
    for kind, which, says in NOTE_KINDS:
        places = [(n, "" if n.body.is_main else f" in {n.body.label}") for n in which(ops)]
        if places:
            notes.append(Note(kind, says, [f"{n.op} {n.name}{where}" for n, where in places]))
    return notes

"""Notes on the ops on the path of a gradient: one entry a class, none of them blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphpatch.analysis.doctor.diagnosis import LOOP_REMEDY, Doctor
from graphpatch.differentiation.bodies import OP_BY_OP, Bodies
from graphpatch.differentiation.flow import CUSTOM, is_carrier, is_registered, override_key
from graphpatch.differentiation.replay import called_bodies, ops_on_paths
from graphpatch.differentiation.wiring import Tensor
from graphpatch.graph import provenance
from graphpatch.graph.node import Node
from graphpatch.graph.op_types import BRANCHES, CALLS, MERGES
from graphpatch.match.ready import NEEDED
from graphpatch.match.select import find
from graphpatch.names import op_of
from graphpatch.rules import match_from
from graphpatch.shown import Document, short

RECTIFIERS = frozenset({"Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Softplus"})
TRAINED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
STRIPPED = frozenset({"StopGradient", "Identity", "IdentityN", "PreventGradient"})


@dataclass(frozen=True, slots=True)
class Note(Document):
    """Something to know about ops of one class: what it is, and which they are."""

    keys = "kind says ops"
    kind: str
    says: str
    ops: Sequence[str]

    def text(self) -> str:
        """Return the note in a line."""
        return f"{self.says}: {short(self.ops)}" if self.ops else self.says


class OpsOnPath:
    """The ops between the tensors of some pairs, those of functions that they call too.

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
            for index in ops_on_paths(wiring, wiring.depending_on([source], True), to)
        }
        main = [Node(wiring.body, index) for index in sorted(indices)]
        called = dict.fromkeys(label for node in main for label in called_bodies(node))
        functions = [self.graph.functions.get(label, ()) for label in called]
        self.nodes = [*main, *(node for body in functions for node in body)]
        self.on_path = set(self.nodes)
        self.keyed = [
            (node, key)
            for body in self.graph.bodies
            for node in (() if body.is_ours else body)
            if (key := override_key(node)) is not None
        ]

    @cached_property
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


def _is_covered(node: Node) -> bool:
    return override_key(node) is not None or provenance.record(node) is not None


def _unpatched_patterns(ops: OpsOnPath) -> Iterator[Node]:
    types = {node.op for node in ops.nodes}
    names = [name for name, needed in NEEDED.items() if needed & types]
    for name in names if names and ops.is_patched else ():
        nodes = find(ops.graph, match_from({"pattern": f"@{name}"})).nodes
        yield from (node for node in nodes if node in ops.on_path and not _is_covered(node))


def _ignored(ops: OpsOnPath) -> Iterator[Node]:
    """Yield overrides in bodies that a call reaches, where a Session differentiates in C++.

    Not those of ours that are no news: of a call whose gradient a function carries, and those
    that are there for a tape.
    """
    for node, key in ops.keyed:
        is_news = not is_carrier(node) and key not in ops.doctor.tape.restored
        if is_news and not node.body.is_main and ops.bodies.place_of(node).ignoring is not None:
            yield node


def _branches_without_context(ops: OpsOnPath) -> Iterator[Node]:
    """Yield branches without a context: a Merge at the end is not in it, but what it reads."""
    contexts = ops.doctor.session.stored
    stored = contexts.in_branches | contexts.in_loops.keys()
    for node in ops.nodes:
        if node.body.is_main and node.op in BRANCHES and node.name not in stored:
            read = map(op_of, node.data_inputs) if node.op in MERGES else ()
            if stored.isdisjoint(read):
                yield node


def _calls(ops: OpsOnPath) -> list[Node]:
    functions = ops.graph.functions
    theirs = {label for label, body in functions.items() if not body.is_ours}
    return [node for node in ops.nodes if node.op in CALLS or node.op in theirs]


def _unknown_in_calls(ops: OpsOnPath) -> Iterator[Node]:
    """Yield loops, branches, and calls that Grappler does not inline, on the path in callees."""
    for label in dict.fromkeys(name for node in _calls(ops) for name in called_bodies(node)):
        back = ops.doctor.tape.inside(label)
        nodes = [back.wiring.node(index) for index in sorted(back.between)] if back else ()
        for node in nodes:
            if node is None or node.op not in CALLS | OP_BY_OP:
                continue
            if node.op in OP_BY_OP or not ops.bodies.is_inlined(node):
                yield node


# fmt: off
NOTE_KINDS: tuple[tuple[str, Callable[[OpsOnPath], Iterable[Node]], str], ...] = (
    ("activations",
     lambda ops: (n for n in ops.nodes
                  if n.op in RECTIFIERS and ops.is_patched and not _is_covered(n)),
     "activations on the way that no rule covers"),
    ("activation_patterns", _unpatched_patterns,
     "activations made of several ops that no rule covers"),
    ("training_batch_norm",
     lambda ops: (n for n in ops.nodes if n.op in TRAINED
                  and ((value := n.attr("is_training")) is None or value.b)),
     "batch norms in training form: fed one example, they give no gradient but zero (--run)"),
    ("unregistered_key",
     lambda ops: (n for n, key in ops.keyed
                  if not (is_registered(key) or key in ops.doctor.tape.restored)
                  and not key.startswith(CUSTOM) and n.op not in ops.graph.library.signatures),
     "overrides by a key that TensorFlow does not register: the program that loads it must"),
    ("ignored_override", _ignored,
     "overrides in functions that PartitionedCall calls: a Session ignores them silently "
     '(write them with "emit": "function")'),
    ("idle_override",
     lambda ops: (n for n, _ in ops.keyed if n.body.is_main and n not in ops.on_path),
     "overrides that never fire: these ops are not on the way"),
    ("stripped",
     lambda ops: (n for n in ops.nodes if n.op == "StopGradient"
                  or (n.op in STRIPPED and override_key(n) is not None)),
     "offline optimisers (freezing tools, tf_optimizer) drop these, and what they do to gradients"),
    ("branch", _branches_without_context,
     "v1 branches and loops without their control-flow contexts: a gradient that tf.gradients "
     f"gives may fail when it is run (Retval does not have value); {LOOP_REMEDY}"),
    ("nested_call", _unknown_in_calls,
     "no gradient in a Session, though tf.gradients builds one: run, it is zeros behind a loop, "
     "else an error (No gradient defined for op), as these are in called functions, which C++ "
     "differentiates; inline the functions, or differentiate on a tape"),
    ("function", _calls,
     "called functions: a Session differentiates them in C++ (SymbolicGradient), which knows "
     "fewer ops than a tape (--run shows whether it works)"),
)
# fmt: on
"""Kind, which ops, and what is said: in the order in which they are told."""


def notes_on_pairs(doctor: Doctor, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Note]:
    """Return the notes on the ops between the tensors of these pairs."""
    ops, notes = OpsOnPath(doctor, pairs), []
    for kind, which, says in NOTE_KINDS:
        places = [(n, "" if n.body.is_main else f" in {n.body.label}") for n in which(ops)]
        if places:
            notes.append(Note(kind, says, [f"{n.op} {n.name}{where}" for n, where in places]))
    return notes

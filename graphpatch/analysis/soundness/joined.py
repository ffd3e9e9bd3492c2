"""The tensor that an op counts as on the way back: what the rule says must come to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphpatch import names
from graphpatch.differentiation.override_keys import override_key
from graphpatch.errors import FormulaError, ModelError
from graphpatch.gradients.attach import is_guard
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.spec import Computed, InlineFormula
from graphpatch.graph import provenance
from graphpatch.graph.body import Body, Node
from graphpatch.graph.graph import Graph
from graphpatch.graph.provenance import patches
from graphpatch.opdefs import tensor_index


@dataclass(frozen=True, slots=True)
class JoinGradient:
    """What flows back where a Select gives on an op: `reads` are x0, x1, ...

    Either `computed` has the gradients of these, or TensorFlow differentiates `counts_as`, a
    formula of them.
    """

    reads: tuple[str, ...]
    computed: Computed | None = None
    counts_as: Formula | None = None


def joined_gradient(
    node: Node, moved: Node, patch: Mapping[str, Any], kind: str, rules: FileRules
) -> JoinGradient:
    """What the rule of a Select says that flows back. Raises ModelError where it cannot be told."""
    if kind == "straight_through":
        return _straight_through_gradient(
            reads_of(node) or tuple(moved.data_inputs), input_of(patch[kind])
        )
    if kind == "backward_as":
        if rules.overlap(node.body):
            raise ModelError("backward_as cloned what carries the gradient of another rule")
        return _straight_through_gradient((gradient_target(node),), 0)
    try:
        formula = Formula.parse(patch[kind])
    except FormulaError as error:
        raise ModelError(str(error)) from None
    told = reads_of(node)
    if not told and patch.get("on") == "match":
        raise ModelError(
            "the file does not tell what the match reads, as graphpatch before 0.2 wrote it; "
            "patch the original again"
        )
    return JoinGradient(told or tuple(moved.data_inputs), None, formula)


class FileRules(dict[str, Any]):
    """The patches that a file tells of its rules, by the ids of these."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(patches(graph))
        self._overlaps: dict[Body, bool] = {}

    def overlap(self, body: Body) -> bool:
        """Whether a rule of backward_as cloned what carries the gradient of another rule."""
        if body not in self._overlaps:
            self._overlaps[body] = _overlap(body, self)
        return self._overlaps[body]


def _overlap(body: Body, rules: FileRules) -> bool:
    own = {key for key, patch in rules.items() if "backward_as" in patch}
    return any(_clones_another(node, own) for node in (provenance.touched(body) if own else ()))


def _clones_another(node: Node, own: set[str]) -> bool:
    """Whether an op is a clone of what carries the gradient of another rule."""
    clone_of = provenance.clone_of(node)
    mine = provenance.rules_that_patched(node)[:1] if clone_of else []
    return any(
        [other] != mine
        and ((provenance.is_added(found) and found.op == node.op) or other.id in own)
        for found in (_now_and_before(node.body, clone_of) if mine else ())
        for other in provenance.rules_that_touched(found)
    )


def _now_and_before(body: Body, name: str) -> list[Node]:
    """The op of this name, and the one that was called so before a rule took its place."""
    return [body.node(one) for one in (name, f"{name}/forward") if one in body.by_name]


def reads_of(node: Node) -> tuple[str, ...]:
    """What a rule at a match as a whole says that x0, x1, ... are; nothing for other rules."""
    record = provenance.record(node)
    return () if record is None else record.reads


def input_of(given: Any) -> int:
    """The input that `straight_through` or `backward_as` names, in a rule as the file has it."""
    return int(given.get("input", 0)) if isinstance(given, Mapping) else 0


def _straight_through_gradient(reads: tuple[str, ...], place: int) -> JoinGradient:
    """Dy for the one input, summed to its shape where that was repeated; nothing for others."""
    texts = formulas_passing(len(reads), place, f"sum_like(dy, x{place})")
    return JoinGradient(reads, InlineFormula(Formula.parse(texts)))


def formulas_passing(inputs: int, place: int, text: str) -> list[str | None]:
    """The formula of an op that passes dy to one of its inputs alone, as this text says."""
    return [text if n == place else None for n in range(inputs)]


def gradient_target(node: Node) -> str:
    """The tensor to which the Select's gradient goes, before it was repeated to the op's shape."""
    text = node.data_inputs[2]
    repeat = node.body.producer(text)
    return repeat.data_inputs[0] if repeat is not None and is_repeat(repeat) else text


def counted_by_call(node: Node) -> list[str]:
    """The tensors to which a call of `attach` passes the gradients of its outputs, in order.

    Those are the inputs before the outputs themselves, each perhaps through a `guard`.
    """
    body, own = node.body, len(node.outputs or ())
    read = node.data_inputs[: len(node.data_inputs) - own]
    return [_before_guard(body, text) for text in read]


def _before_guard(body: Body, text: str) -> str:
    guard = body.producer(text)
    is_guarding = guard is not None and is_guard(key_of(guard))
    return guard.data_inputs[0] if guard is not None and is_guarding else text


def key_of(node: Node) -> str:
    """The key under which TensorFlow looks an op's gradient up, where it has one of its own."""
    return override_key(node) or ""


def is_repeat(node: Node) -> bool:
    """Whether a rule put an op there to repeat a tensor to the shape of another."""
    is_new = provenance.is_added(node) and not provenance.clone_of(node)
    return node.op == "BroadcastTo" and is_new


def repeated_to(node: Node) -> str:
    """The tensor to whose shape such an op repeats; "" where it is none of another tensor's."""
    shape = node.body.producer(node.data_inputs[1])
    return shape.data_inputs[0] if shape is not None and shape.op == "Shape" else ""


def output_of(node: Node, text: str) -> int:
    """Which output of an op a tensor is; -1 where the op has no such output."""
    wanted, flat = names.parse(text), node.outputs or []
    place = tensor_index(flat, wanted.arg, wanted.index) if wanted.arg else wanted.index
    if place is None or place >= len(flat) or names.parse(node.tensor(place)) != wanted:
        return -1
    return place

"""Rules on live ops: patches as keys of `_gradient_op_type`, set on ops that stay where they are.

So `tf.Graph.gradient_override_map` sets keys. Here the key carries the gradient, with the filters
around it, and is registered with TensorFlow in this process; a match as one op takes two.

What rules did to a graph that was taken from a live one is done to the live ops. An op has on
record which rules changed it, by their places among all rules of the graph. Functions that are
traced in a graph are exported with it, so their ops count on in the same numbers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from msgspec.structs import replace

import graphpatch
from graphpatch.differentiation.flow import carries, gradient_type, is_registered, override_key
from graphpatch.differentiation.shapes import Shapes
from graphpatch.differentiation.wiring import Wiring
from graphpatch.errors import FormulaError, PatchError
from graphpatch.gradients import interpreter
from graphpatch.gradients.formula import Formula
from graphpatch.gradients.program import gradient_ops
from graphpatch.gradients.spec import (
    BUILT_IN,
    FILTER,
    IDENTITY,
    NEG,
    ZERO,
    Computed,
    DefaultGradient,
    FilteredGradient,
    Gradient,
    InlineFormula,
    LibraryGradient,
    PythonGradient,
    RegisteredKey,
    SurrogateFormula,
    built_in_key,
    from_key,
)
from graphpatch.graph import attrs, provenance
from graphpatch.graph.graph import NODE, ModelGraph, carrier, graph_of, read_record
from graphpatch.graph.node import Body, Node
from graphpatch.graph.op_types import BOUNDARIES, CALLS
from graphpatch.graph.record import AppliedRule, ModelRecord
from graphpatch.graph.wire import enclosed, encoded, piece_bytes
from graphpatch.opdefs import HANDLES
from graphpatch.patches import KINDS, Patch
from graphpatch.patches.carrier import check_named, named_tensors, refuse_key
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.filter import FilterGradient, SidePatch, StopGradient, parsed, why_idle
from graphpatch.patches.fit import check_fit, naming
from graphpatch.patches.freeze import Freeze, Updates, variable_read
from graphpatch.patches.override import OverrideGradient, never_fires
from graphpatch.patches.placement import shadow_behind
from graphpatch.patches.surrogate import StraightThrough, SurrogateGradient
from graphpatch.patches.target import Target, is_source, known_inputs, known_outputs
from graphpatch.protos import NodeDef
from graphpatch.rules import Rule
from graphpatch.runtime import tf
from graphpatch.runtime.imported import graph_def_of, spliced
from graphpatch.runtime.register import register
from graphpatch.runtime.values import full_tensor_name

BY_KEY = (OverrideGradient, StraightThrough, SurrogateGradient, SidePatch, Freeze)
"""The patches that a key of the op alone can store."""

OF_MATCH = (OverrideGradient, StraightThrough)
"""Those that two keys can store where a match counts as one op."""

UPSTREAM = re.compile(r"\bdy0?\b")  # what flows back to an op of one output, in a formula

# Calls of functions: TensorFlow has their gradient under no key.
ALL_CALLS = CALLS | {"SymbolicGradient", "RemoteCall"}


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""


@dataclass(frozen=True, slots=True)
class KeyedPatch(Patch):
    """A patch that is done by a key alone.

    `bodies`: ops in functions may have one, too. `why_not` is set where no key can do it, which is
    an error where the rule matches.
    """

    patch: Patch
    bodies: bool
    why_not: str = ""

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where it would do nothing for all of these ops together."""
        if self.why_not and targets:
            raise NoKeyError(self.why_not)
        self.patch.check(targets)

    def idle(self, nodes: Sequence[Node]) -> str:
        """Return why it changes nothing at any of these ops; nothing where it does."""
        return self.patch.idle(nodes)

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return what flows back to each tensor that a match reads, or one text for all."""
        return self.patch.formulas(target)

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Set the key of an op, or those of a match. Raises NoKeyError where no key can do it."""
        node = target.last
        if self.why_not:
            raise NoKeyError(self.why_not)
        if not (self.bodies or node.body.is_main):
            raise NoKeyError(f"{node} is in a function, which TensorFlow has a copy of already")
        if any(map(_ends_match, target.nodes)):
            raise NoKeyError(f"{node} ends or follows a match that a rule before patched as one op")
        gradient = getattr(self.patch, "gradient", None)
        if isinstance(gradient, InlineFormula) and not (self.bodies or target.is_match):
            check_named(gradient, target, editor)  # an op is alone while it is made
        now = from_key(gradient_type(node))
        now = now if isinstance(now, FilteredGradient) else FilteredGradient(gradient_type(node))
        change = _gradient_of_match if target.is_match else _gradient_of_op
        try:
            new = change(self.patch, target, now, editor)
        except FormulaError as error:
            raise PatchError(f"{node}: {error}") from error
        if new != now:
            _set_key(node, new.key, editor)


def _set_key(node: Node, key: str, editor: RuleEditor) -> None:
    """Let an op have its gradient under this key: none where that is its op type."""
    is_default = key == node.op
    needed = "" if is_default or is_registered(key) else key
    editor.set_attr(node, attrs.OVERRIDE, None if is_default else attrs.text(key))
    editor.report.used("attr" if needed else BUILT_IN, session=needed, tape=needed)


def keyed(rule: Rule, bodies: bool) -> Rule:
    """Return the rule whose patch is done by keys.

    Raises NoKeyError where none can do it on any op; of a rule that may match nothing, as the rules
    of recipes may, not before it matches.
    """
    reason, emit = "", getattr(rule.patch, "emit", "auto")
    kind = next(key for key in KINDS if key in rule.written_patch)
    if not isinstance(rule.patch, OF_MATCH if rule.as_one else BY_KEY):
        what = f"{kind} of a match as one op" if rule.as_one else kind
        reason = f"{what} adds ops to the graph, and a key adds none"
    elif emit not in ("auto", "attr"):
        reason = f"emit: {emit} asks for more than a key"
    if reason and rule.expect.min:
        raise NoKeyError(f"rule {rule.author.rule!r}: {reason}")
    on = () if reason else rule.on
    return dataclasses.replace(rule, patch=KeyedPatch(rule.patch, bodies, reason), on=on)


def _gradient_of_op(
    patch: Any, target: Target, now: FilteredGradient, editor: RuleEditor
) -> FilteredGradient:
    """Return the gradient of an op after a patch, which is `now` before it."""
    node = target.last
    if isinstance(patch, Freeze):
        variable = variable_read(node)
        if variable is not None and variable.name in Updates(node.body).of:
            raise NoKeyError(f"an optimizer changes {variable}, and a key takes out no update")
        patch = StopGradient()
    reason, is_side = "", isinstance(patch, SidePatch)
    if isinstance(patch, OverrideGradient | FilterGradient):
        refuse_key(patch.gradient, patch.emit)
    if isinstance(patch, OverrideGradient):
        reason = never_fires(node)
        if isinstance(patch.gradient, DefaultGradient):
            if now.own == node.op:
                raise PatchError(
                    f"{node} has no override to take off; its gradient is TensorFlow's default"
                )
            return replace(now, own=node.op)
    if is_side:
        reason = why_idle(target, patch.at)
    if reason:
        editor.report.idle.append(reason)
        return now
    if is_side and is_source(node):
        raise NoKeyError(f"{node} is a source: TensorFlow asks for no gradient of it")
    if node.op in BOUNDARIES:
        # TensorFlow computes its gradient inside, and has what a filter reads outside, or the
        # reverse.
        raise NoKeyError(f"{node} leads into or out of a loop or branch")
    if is_side:
        return replace(now, filters=((patch.at, _filter_key(patch, node, editor)), *now.filters))
    return replace(now, own=_own_key(patch, target, editor))


def _gradient_of_match(
    patch: Any, target: Target, now: FilteredGradient, editor: RuleEditor
) -> FilteredGradient:
    """Return the gradient of the last op of a match as one op: dy as it is for one of its inputs.

    So dy comes to an IdentityN of all that the match reads, and of this input. The key of the
    IdentityN gives these their gradient.
    """
    node, (slot, formula) = target.last, _passing(patch, target, editor)
    if any(parsed(at)[0] == "input" for at, _ in now.filters):
        raise NoKeyError(f"a rule before filters what flows back from {node}, where dy would pass")
    texts = [
        (formula.texts[0] if carries(arg) else None) if formula.alike else formula.texts[place]
        for place, arg in enumerate(target.inputs)
    ]
    last = f"dy{len(texts)}"
    moved = [None if text is None else UPSTREAM.sub(last, text) for text in texts]
    gradient = InlineFormula(Formula.parse([*moved, None], dict(formula.values)))
    args = [*target.inputs, known_inputs(node)[slot]]
    typed = {"T": attrs.dtypes([arg.dtype or "" for arg in args])}
    reads, name = [*target.reads, node.data_inputs[slot]], f"{node.name}/match"
    added = editor.add(name, "IdentityN", reads, typed, node, before=True)
    _set_key(added, gradient.key, editor)
    editor.set_input(node, slot, added.tensor(len(texts)))
    shadow_behind(target, editor)
    passed = ["dy" if place == slot else None for place in range(len(node.data_inputs))]
    return replace(now, own=InlineFormula(Formula.parse(passed)).key)


def _ends_match(node: Node) -> bool:
    """Return whether an op reads the IdentityN that `_gradient_of_match` adds."""
    producers = (node.body.producer(text) for text in node.data_inputs)
    return any(p is not None and p.op == "IdentityN" and provenance.is_added(p) for p in producers)


def _passing(patch: Any, target: Target, editor: RuleEditor) -> tuple[int, Formula]:
    """Return the input of the last op of a match that dy can pass, and what flows back.

    Raises NoKeyError where there is no such input, or the formula reads what is not there.
    """
    node, gradient = target.last, getattr(patch, "gradient", None)
    if isinstance(patch, StraightThrough):
        target.refuse_open()
        patch.check_target(target)
        gradient = InlineFormula(Formula.parse(patch.formulas(target)))
    if not isinstance(gradient, InlineFormula | LibraryGradient):
        raise NoKeyError(f"{target} has no key: one holds a formula alone")
    formula, outputs = gradient.formula, known_outputs(node)
    with naming(target):
        gradient_ops(formula, target.signature)
    if formula.reads_op or formula.attrs or formula.tensors or formula.variables & {"y", "y0"}:
        raise NoKeyError(f"{target} has no key: the formula reads more than x0, x1, ... and dy")
    if editor.bodies.in_control_flow(node.body) & {op.index for op in target.nodes}:
        raise NoKeyError(f"{target} has no key: it is in a v1 loop or branch")
    if any(arg.dtype in HANDLES for arg in target.inputs):
        raise NoKeyError(f"{target} has no key: it reads the handle of a variable")
    shapes = Shapes(Wiring(node.body))
    y = shapes.of((node.index, 0))
    for slot, text in enumerate(node.data_inputs):
        arg = known_inputs(node)[slot]
        same_dtype = carries(arg) and arg.dtype == outputs[0].dtype
        if same_dtype and len(outputs) == 1 and shapes.of(shapes.wiring.tensor(text)) == y:
            return slot, formula
    raise NoKeyError(f"{target} has no key: {node} has no input of its shape, which dy could pass")


def _own_key(patch: Any, target: Target, editor: RuleEditor) -> str:
    """Return the key of the gradient that a patch gives an op in the place of its own."""
    if isinstance(patch, SurrogateGradient) and patch.formula.tensors:
        raise NoKeyError(f"{target.last}: the key of a surrogate reads no tensor by name")
    if isinstance(patch, SurrogateGradient | StraightThrough):
        patch.check_target(target)
        if isinstance(patch, SurrogateGradient):
            return SurrogateFormula(patch.formula).key
        is_alone = len(target.inputs) == 1
        return FILTER if is_alone else InlineFormula(Formula.parse(patch.formulas(target))).key
    return _fitted_key(patch.gradient, target, editor, patch.emit == "auto")


def _fitted_key(
    gradient: RegisteredKey | Computed | PythonGradient,
    target: Target,
    editor: RuleEditor,
    is_auto: bool,
) -> str:
    """Return the key of a gradient that fits an op: where `is_auto`, one of TensorFlow's first."""
    node, exact = target.last, None
    if isinstance(gradient, Computed):
        gradient = gradient.for_op(node.op)
        exact = built_in_key(gradient, node.opdef) if is_auto else None
    if not isinstance(gradient, PythonGradient):
        check_fit(gradient, target, editor)
    return exact or gradient.key


def _filter_key(patch: FilterGradient | StopGradient, node: Node, editor: RuleEditor) -> str | None:
    """Return the key of what flows back through a side of an op passes; None for a stop."""
    if node.op in ALL_CALLS or node.op in node.body.library.signatures:
        raise NoKeyError(f"{node} calls a function, whose gradient TensorFlow has under no key")
    side, place = parsed(patch.at)
    several = side == "output" and sum(map(carries, known_outputs(node))) > 1
    if isinstance(patch, StopGradient):
        if several and place is not None:
            raise NoKeyError(f"{node} has several outputs, and the gradient stops at one of them")
        return None
    patch.check(())  # while ops are made, nobody has asked
    gradient = patch.gradient
    assert not isinstance(gradient, DefaultGradient), "it has been checked"
    args = (*known_inputs(node), *known_outputs(node))
    for dtype in {arg.dtype or "" for arg in args if carries(arg)}:
        of_tensor = Target.of(_identity(node.name, dtype), filtered=str(node))
        _fitted_key(gradient, of_tensor, editor, False)
    if several and not editor.cached(("zeros", gradient.key), lambda: keeps_zeros(gradient)):
        raise NoKeyError(
            f"{node} has several outputs: TensorFlow gives its gradient zeros for those that "
            f"nothing flows back to, and this filter makes something else of zeros"
        )
    return gradient.key


def _identity(name: str, dtype: str) -> Node:
    """Return the op that a filter in a file is the gradient of, in a graph of its own."""
    node = NodeDef(name=name, op=FILTER, input=["x"], attr={"T": attrs.dtype(dtype)})
    return Node(graph_of(encoded(NODE, node.SerializeToString())).main, 0)


def keeps_zeros(gradient: Gradient) -> bool:
    """Return whether a filter lets zeros through as zeros, for tensors of numbers of every size."""
    if isinstance(gradient, RegisteredKey):
        return gradient.key in (IDENTITY, NEG, ZERO)
    if isinstance(gradient, PythonGradient | DefaultGradient) or named_tensors(gradient):
        return False
    sizes = np.geomspace(1e-6, 1e6, 25, dtype="float32")
    tensor = np.concatenate([-sizes, [0.0], sizes]).astype("float32")
    try:
        dx = interpreter.gradient(gradient.formula, [tensor], [tensor], [np.zeros_like(tensor)])[0]
    except FormulaError:  # noise, or a formula that does not fit one axis
        return False
    return dx is not None and not np.any(dx)


WRITTEN_ATTRS = (attrs.OVERRIDE, provenance.PROVENANCE_ATTR)


@dataclass(eq=False)
class LiveRules:
    """The rules that changed a live graph, and functions in it, in the order of their numbers.

    `signed` has for each of these graphs the op that has them on record, and how many it has.
    """

    applied: list[AppliedRule] = field(default_factory=list)
    signed: WeakKeyDictionary[Any, tuple[str, int]] = field(default_factory=WeakKeyDictionary)

    def read(self, graph: ModelGraph, live: Any) -> None:
        """Read what a live graph has on record; `graph` was taken from it."""
        place, record = carrier(graph), read_record(graph)
        if place is not None and record is not None:
            self.applied[:] = record.rules
            if place[0].is_main:
                self.signed[live] = Node(*place).name, len(self.applied)

    def number(self, graph: ModelGraph, more: Iterable[AppliedRule]) -> None:
        """Let a graph that was taken from the live one know its rules, and more, by numbers."""
        known = {rule.author for rule in self.applied}
        self.applied += [rule for rule in more if rule.author not in known]
        graph.library.rules[:] = [rule.author for rule in self.applied]

    def sign(self, live: Any, name: str) -> None:
        """Let one op of a live graph have all rules on record: this one, where there is none."""
        name, count = self.signed.get(live, (name, 0))
        if count == len(self.applied):
            return
        op = live.get_operation_by_name(name)
        node = Node(graph_of_op(op).main, 0)
        record = node.body.open_node(0).record
        was = record.model or ModelRecord(live=True)
        record.model = replace(was, version=graphpatch.__version__, rules=tuple(self.applied))
        _set_attrs(op, node)
        self.signed[live] = name, len(self.applied)


_RULES: WeakKeyDictionary[Any, LiveRules] = WeakKeyDictionary()


def rules_of_live(live: Any) -> LiveRules:
    """Return the rules of a live graph, or of the graph in which the function that it is is traced.

    What TensorFlow traces functions in while it executes eagerly is nobody's graph.
    """
    around = list(graphs_around(live))
    with tf.init_scope():
        is_eager = tf.executing_eagerly()
    root = around[-2] if is_eager and len(around) > 1 else around[-1]
    if root not in _RULES:
        _RULES[root] = LiveRules()
        _RULES[root].read(graph_of(graph_def_of(root)), root)
    return _RULES[root]


def graphs_around(live: Any) -> Iterator[Any]:
    """Yield a graph, and those in which it is traced."""
    while live is not None:
        yield live
        live = getattr(live, "outer_graph", None)


def graph_of_op(op: Any) -> ModelGraph:
    """Return a graph that holds one live op."""
    return graph_of(encoded(NODE, op.node_def.SerializeToString()))


def put_into(live: Any, main: Body) -> None:
    """Let the ops of a live graph be as rules edited those of its body, their keys registered.

    Ops that rules added are made, each op reads what its node does, and has its key and record.
    """
    nodes = [Node(main, index) for index in sorted(main.edited)]
    for node in nodes:
        register(node, allow_python=True)
    for node in sorted(nodes, key=lambda node: not provenance.is_added(node)):
        op = _live_op(live, node)
        with live._mutation_lock():  # no Session runs meanwhile
            _set_attrs(op, node)
        if override_key(node) is not None:
            op._gradient_function = None  # of a call; TensorFlow would look at no key


def _live_op(live: Any, node: Node) -> Any:
    """Return the op that a node is, made where it is not there, which reads what the node does."""
    names = [full_tensor_name(text) for text in node.data_inputs]
    tensors = {name: live.get_tensor_by_name(name) for name in names}
    try:
        op = live.get_operation_by_name(node.name)
    except KeyError:
        written = b"".join(map(piece_bytes, enclosed(NODE, node.body.payload(node.index).pieces)))
        definition = tf.compat.v1.GraphDef.FromString(written)
        definition.versions.CopyFrom(live.graph_def_versions)  # or they become the lowest
        with live.as_default(), live.control_dependencies(None):
            spliced(definition, tensors, [], "")
        op = live.get_operation_by_name(node.name)
    for slot, name in enumerate(names):
        if op.inputs[slot].name != name:
            op._update_input(slot, tensors[name])
    return op


def _set_attrs(op: Any, node: Node) -> None:
    """Give an op the key of its gradient, and what is on record of the change, as a node has it."""
    written = node.attrs()
    for key in WRITTEN_ATTRS:
        if key in written:
            value = tf.compat.v1.AttrValue()
            value.ParseFromString(written[key].SerializeToString(deterministic=True))
            if len(value.list.s) == 2:
                # The node as it was: the export noted shapes, which the op has not.
                was = NodeDef.FromString(value.list.s[1])
                was.attr.pop(attrs.OUTPUT_SHAPES, None)
                value.list.s[1] = was.SerializeToString(deterministic=True)
            op._set_attr(key, value)
        elif key in op.node_def.attr:
            op._clear_attr(key)

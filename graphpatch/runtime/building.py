"""Rules on ops as they are made: `with graphpatch.building(rules):`.

`tf.Graph._create_op_helper` sets what `gradient_override_map` asks for, on every new op, since
TensorFlow 1. It is wrapped as long as somebody listens, and hears of ops of its own thread alone.
Rules that ask for what is not there yet while an op is made (consumers, paths, patterns) are
applied to the ops made in a context when it is left.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from graphpatch.application import RulesLike, rules_of
from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.graph.editor import Editor
from graphpatch.graph.graph import LIBRARY, ModelGraph, graph_of
from graphpatch.graph.node import MAIN, Node
from graphpatch.graph.wire import encoded
from graphpatch.match import glob
from graphpatch.match.conditions import holds
from graphpatch.match.select import MatchedOps, find
from graphpatch.match.spec import Match
from graphpatch.rules import Rule
from graphpatch.runtime.imported import model_of
from graphpatch.runtime.keys import keyed, register_all, write_key
from graphpatch.runtime.patch_graph import built_before
from graphpatch.runtime.unconverted import unconverted
from graphpatch.step import (
    RuleResult,
    check_expected,
    idle_notes,
    naming_rule,
    patch_matched,
    patch_node,
    unchanged_notes,
)

# The fields of GraphDef, FunctionDefLibrary, FunctionDef and OpDef that hold a node in a function.
NODE, FUNCTION, SIGNATURE, NODE_DEF, NAME = 1, 1, 1, 3, 1


def label_of(graph: Any) -> str:
    """Return what `body` in a match calls a graph: `main`, or the name of the function."""
    return getattr(graph, "name", None) or MAIN


def refuse_defun(graph: Any, node: Node) -> None:
    """Raise PatchError for an op in a Defun, of which TensorFlow builds the gradient in C++."""
    from tensorflow.python.framework import function

    while graph is not None and not isinstance(graph, function._FuncGraph):
        graph = getattr(graph, "outer_graph", None)
    if graph is not None:
        raise PatchError(
            f"{node} is in a Defun, which TensorFlow differentiates as a whole, without looking at "
            f"keys: patch_graph patches it once it is built, and a tf.function can be patched as "
            f'it is built; "body": "main" leaves functions out'
        )


def node_of(op: Any) -> tuple[ModelGraph, Node]:
    """Return a graph that holds this op alone, in the body that it is in, and its node there."""
    raw, label = op.node_def.SerializeToString(), label_of(op.graph)
    if label == MAIN:
        graph = graph_of(encoded(NODE, raw))
        return graph, Node(graph.main, 0)
    function = encoded(SIGNATURE, encoded(NAME, label.encode())) + encoded(NODE_DEF, raw)
    graph = graph_of(encoded(LIBRARY, encoded(FUNCTION, function)))
    return graph, Node(graph.functions[label], 0)


Listener = Callable[[Any], None]

CREATE_OP = "_create_op_helper"

_LISTENERS: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())
_HOOK_LOCK = threading.Lock()
_INSTALLED: dict[str, Any] = {"count": 0}


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with each op that this thread makes, in the order of nested contexts.

    Raises GraphpatchError where this TensorFlow has no such place.
    """
    import tensorflow as tf

    with _HOOK_LOCK:
        original = getattr(tf.Graph, CREATE_OP, None)
        if original is None:
            raise GraphpatchError(
                f"TensorFlow {tf.__version__} has no Graph.{CREATE_OP}, so ops cannot be patched "
                f"as they are made; graphpatch.patch_graph patches the graph once it is built"
            )
        if _INSTALLED["count"] == 0:

            def create(graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
                original(graph, op, *args, **kwargs)
                for listener in _LISTENERS.get():
                    listener(op)

            _INSTALLED.update(original=original, ours=create)
            setattr(tf.Graph, CREATE_OP, create)
        _INSTALLED["count"] += 1
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)
        with _HOOK_LOCK:
            _INSTALLED["count"] -= 1
            # Where somebody wrapped it again meanwhile, ours stays, and calls nobody.
            if _INSTALLED["count"] == 0 and getattr(tf.Graph, CREATE_OP) is _INSTALLED["ours"]:
                setattr(tf.Graph, CREATE_OP, _INSTALLED["original"])


def apply_on_leaving(rules: Sequence[Rule], made: Mapping[Any, set[str]]) -> list[RuleResult]:
    """Apply rules, whose patches are by key, to the ops that were made, by graph and name.

    Raises MatchError where one does not match as often as it expects; PatchError where one means
    ops in a function that was traced to its end, or ops whose gradients were built already.
    Nothing is changed then.
    """
    models = {live: model_of(live).copy().graphs[0] for live in made}
    for live, graph in models.items():
        graph.main.label = label_of(live)
    steps, changed = [], []
    for rule in rules:
        by_graph = {
            live: _made_inside(find(graph, rule.match, rule.on), made[live])
            for live, graph in models.items()
        }
        nodes = [node for matched in by_graph.values() for node in matched.nodes]
        with naming_rule(rule):
            count = sum(matched.count for matched in by_graph.values())
            check_expected(rule, list(models.values()), count)
            for live, matched in by_graph.items():
                _refuse_late(live, matched)
            rule.patch.check(nodes)
        steps.append(patch_matched(rule, [(models[live], by_graph[live]) for live in models]))
        changed += [(live, node) for live, matched in by_graph.items() for node in matched.nodes]
    for live, node in changed:
        with live._mutation_lock():  # no Session runs meanwhile
            write_key(node, live.get_operation_by_name(node.name))
    return steps


def _made_inside(matched: MatchedOps, names: set[str]) -> MatchedOps:
    """Return what was found, as far as its ops were made in the context."""

    def is_inside(node: Node) -> bool:
        return node.name in names and node.body.is_main

    whole_matches = [match for match in matched.kept if all(map(is_inside, match.nodes))]
    return MatchedOps(list(filter(is_inside, matched.nodes)), whole_matches, matched.dropped)


def _is_traced(live: Any) -> bool:
    """Return whether a graph is that of a function which is not being traced any more."""
    import tensorflow as tf

    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None and graph is not live:
        graph = getattr(graph, "outer_graph", None)
    return graph is None and hasattr(live, "outer_graph")


def _refuse_late(live: Any, matched: MatchedOps) -> None:
    if not matched.nodes:
        return
    first = matched.nodes[0]
    refuse_defun(live, first)
    if _is_traced(live):
        raise PatchError(
            f"{first} is in function {label_of(live)}, which was traced to its end before the "
            f"context was left: there a rule can ask for op, name, attr or dtype alone, or "
            f"`building` can be called inside of the function"
        )
    if built_before(live, {node.name for node in matched.nodes}):
        raise PatchError(
            f"the gradient of {first} was built inside of the context, before this rule could be "
            f"applied: build gradients after it is left"
        )


# What a match may ask of an op that nothing reads yet, and that nothing else is known of.
ALONE = frozenset({"op", "name", "name_regex", "attr", "dtype", "value", "body"})
JOINING = frozenset({"any", "all", "not"})


def is_alone(match: Match) -> bool:
    """Return whether an op alone tells if a match means it."""
    written = match.given()
    inner = [*written.get("any", ()), *written.get("all", ())]
    inner += [match.not_] if match.not_ else []
    return written.keys() <= ALONE | JOINING and all(map(is_alone, inner))


@dataclass(eq=False)
class RuleOnNewOps:
    """A rule on ops as they are made, and what it did. `rule` is one whose patch is by key."""

    rule: Rule
    step: RuleResult = field(init=False)
    idle: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    known: dict[Hashable, Any] = field(default_factory=dict)  # of all ops: see Editor.cached

    def __post_init__(self) -> None:
        self.step = RuleResult(self.rule.author.rule)
        self._holds = holds(self.rule.match)
        wanted = self.rule.match.op
        self.is_type = bool if wanted is None else glob.one_of(glob.texts(wanted))

    def take(self, graph: ModelGraph, node: Node, live: Any) -> None:
        """Patch the node, of a live graph, where the rule means it.

        Raises PatchError, with the rule's name.
        """
        if not self._holds(node.body)(node):
            return
        entry = {"body": node.body.label, "op": node.name, "type": node.op}
        self.step.matches.append(entry)
        self.unchanged += unchanged_notes(self.rule, [node])
        editor = Editor(graph, self.rule.author, node.name, known=self.known)
        with naming_rule(self.rule):
            refuse_defun(live, node)
            patch_node(self.rule, node, editor, self.step)
        self.idle += editor.idle

    def finish(self) -> RuleResult:
        """What it did. Raises PatchError where it means nothing on any of the ops it matched."""
        if self.idle and len(self.idle) == len(self.step.matches):
            raise PatchError(f"rule {self.rule.author.rule!r}: {self.idle[0]}")
        notes = idle_notes(self.rule, self.idle, len(self.step.matches))
        self.step.notes.update(dict.fromkeys(notes))
        if len(self.unchanged) == len(self.step.matches):
            self.step.notes.update(dict.fromkeys(self.unchanged))
        return self.step


@dataclass(eq=False, repr=False)
class Building:
    """What `building` does, and what it did: `report` is filled when the context is left.

    The report has `rules` with the ops that each matched, `consumer` with the keys that another
    process must register where the graph is exported, and `notes`. Unlike `gradient_override_map`
    it composes: `filter_gradient`, `stop_gradient`, `straight_through` and `surrogate_gradient` are
    keys, too. Rules that ask for consumers, inputs, paths or patterns are applied when the context
    is left, after all others. Contexts nest: rules of outer ones come first. Only ops that are
    created by the thread that entered the context are meant. Ops that exist already are not: see
    `patch_graph`. Functions that were traced before stay as they are, and so do eager ops, which
    have no names. Ops of gradients that are built inside count as any op does.

    Example:
        >>> with tf.Graph().as_default(), graphpatch.building("rules.json") as found:
        ...     y = tf.nn.relu(tf.zeros([2]), name="act")
        >>> [match["op"] for rule in found.report["rules"] for match in rule["matches"]]
        ['act']
    """

    at_once: list[RuleOnNewOps]
    on_leaving: list[Rule]
    order: list[str]
    keys: dict[str, None]
    report: dict[str, Any] = field(default_factory=dict)
    made: dict[Any, set[str]] = field(default_factory=dict)  # names of the ops, by their graph

    def hear(self, op: Any) -> None:
        """Give an op that was just made the gradient that the rules say; `building` calls it.

        Raises PatchError where no key can do a rule on this op, ModelError and RulesError where the
        op, or a key that it has already, cannot be read.
        """
        names = self.made.setdefault(op.graph, set())
        if self.on_leaving:
            names.add(op.name)
        asking = [rule for rule in self.at_once if rule.is_type(op.type)]
        if not asking:
            return
        graph, node = node_of(op)
        for rule in asking:
            rule.take(graph, node, op.graph)
        if node.body.edited:
            register_all(self.keys)
            write_key(node, op)
            op._gradient_function = None  # of a call; TensorFlow would look at no key

    def finish(self) -> None:
        """Check how often rules matched, and apply those that waited; `building` calls it.

        Raises MatchError, PatchError, ModelError and RulesError as leaving the context does.
        """
        for done in self.at_once:
            count, expect = len(done.step.matches), done.rule.expect
            if count and count >= expect.min and (expect.max is None or count <= expect.max):
                continue
            graphs = [model_of(graph).graphs[0] for graph in self.made]
            with naming_rule(done.rule):
                try:
                    check_expected(done.rule, graphs, count)
                except MatchError as error:
                    raise MatchError(f"of the ops made in this context it {error}") from error
        steps = [done.finish() for done in self.at_once]
        if self.on_leaving:
            steps += apply_on_leaving(self.on_leaving, self.made)
            register_all(self.keys)
        self.made.clear()
        steps.sort(key=lambda step: self.order.index(step.rule))
        self.report = {
            "rules": [
                {"name": step.rule, "matches": step.matches, "emit": "+".join(step.emit)}
                for step in steps
            ],
            "consumer": {
                "session": list(dict.fromkeys(key for step in steps for key in step.session)),
                "tape": list(dict.fromkeys(key for step in steps for key in step.tape)),
            },
            "notes": list(dict.fromkeys(note for step in steps for note in step.notes)),
        }

    @property
    def ok(self) -> bool:
        """Return whether the context was left, and each rule matched as often as it expects."""
        return bool(self.report)

    def document(self) -> dict[str, Any]:
        """Return the report."""
        return self.report

    def __repr__(self) -> str:
        rules = len(self.at_once) + len(self.on_leaving)
        count = sum(len(done.step.matches) for done in self.at_once)
        return f"<Building: {rules} rules, {count} ops matched as they were made>"


@unconverted
@contextlib.contextmanager
def building(rules: RulesLike, allow_python: bool = False) -> Iterator[Building]:
    """Give ops that are created in this context the gradients that the rules say.

    Forward: nothing changes. Backward: an op that a rule means, by op type, name, attrs, dtype or
    `body`, gets a key at once, as under `tf.Graph.gradient_override_map`, in any graph and in
    bodies of `tf.function`, `tf.while_loop` and `tf.cond`; `Building` says which rules and ops.

    Args:
        rules: A rules file's path, a list of dicts, a dict with `rules`, or `Rule`s.
        allow_python: Let {"python": "package.module:function"} import that module.

    Raises:
        RulesError: On entering: a rule is not valid.
        TypeError: On entering: `rules` is none of these.
        PatchError: On entering: no key can do a rule (`backward_as`, `"on": "match"`, `emit:
            function`), unless it may match nothing, as rules of recipes may. Where an op is made:
            none can on this op. On leaving: such a rule did match; a rule means ops in a function
            that was traced to its end.
        MatchError: On leaving: a rule did not match as often as it expects.
        GraphpatchError: On entering: this TensorFlow makes ops in a way that is not known.

    When not to use it: for a graph that is built already; `patch_graph` patches it.

    Example:
        >>> rule = {"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}
        >>> with tf.Graph().as_default(), graphpatch.building([rule]):
        ...     x = tf.constant([2.0])
        ...     dx = tf.gradients(tf.nn.relu(x), x, tf.constant([-1.0]))[0]
        ...     print(tf.compat.v1.Session().run(dx))
        [0.]
    """
    keys: dict[str, None] = {}
    ready = [keyed(rule, True, keys) for rule in rules_of(rules, allow_python)]
    active = Building(
        [RuleOnNewOps(rule) for rule in ready if is_alone(rule.match)],
        [rule for rule in ready if not is_alone(rule.match)],
        [rule.author.rule for rule in ready],
        keys,
    )
    with listening(active.hear):
        yield active
    active.finish()

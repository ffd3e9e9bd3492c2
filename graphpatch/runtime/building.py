"""Rules on ops as they are made: `with graphpatch.building(rules):`.

`tf.Graph._create_op_helper` sets what `gradient_override_map` asks for, on every new op, since
TensorFlow 1. It is wrapped as long as somebody listens, and hears of ops of its own thread alone.
Rules that ask for what is not there yet while an op is made (consumers, paths, patterns) are
applied to the ops made in a context when it is left.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from graphpatch.application import (
    RuleResult,
    check_expected,
    matched_graph,
    naming_rule,
    patch_in_graph,
    report_of,
    reported_rules,
)
from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.graph.graph import ModelGraph
from graphpatch.graph.node import MAIN, Node
from graphpatch.match.select import MatchedOps, conditions, find
from graphpatch.match.spec import every_match
from graphpatch.names import one_of, texts
from graphpatch.patches.placement import refuse_hidden, refuse_shadowed
from graphpatch.rules import Rule, RulesLike, rules_of
from graphpatch.runtime import tf
from graphpatch.runtime.functions import unconverted
from graphpatch.runtime.imported import model_of
from graphpatch.runtime.live import graph_of_op, graphs_around, keyed, put_into, rules_of_live
from graphpatch.runtime.patch_graph import built_before
from graphpatch.shown import plural

CREATE_OP, UNHEARD = "_create_op_helper", "_graphpatch_original"

# By whom ops are heard of: the thread that listens, and what it calls.
_LISTENERS: list[tuple[int, Callable[[Any], None]]] = []
NOT_MEANT = (
    "ops that are made before it, or eagerly, are not meant; graphpatch.patch_graph patches a "
    "graph that is built"
)
_HOOK_LOCK = threading.Lock()


@contextlib.contextmanager
def listening(listener: Callable[[Any], None]) -> Iterator[None]:
    """Call `listener` with each op that this thread makes, in the order of nested contexts.

    Raises GraphpatchError where this TensorFlow has no such place.
    """
    entry = threading.get_ident(), listener
    with _HOOK_LOCK:
        original: Any = getattr(tf.Graph, CREATE_OP, None)
        if original is None:
            raise GraphpatchError(
                f"TensorFlow {tf.__version__} has no Graph.{CREATE_OP}, so ops cannot be patched "
                f"as they are made; graphpatch.patch_graph patches the graph once it is built"
            )
        if not _LISTENERS:

            def create(graph: Any, op: Any, *args: Any, **kwargs: Any) -> None:
                original(graph, op, *args, **kwargs)
                for thread, hear in tuple(_LISTENERS):
                    if thread == threading.get_ident():
                        hear(op)

            setattr(create, UNHEARD, original)
            setattr(tf.Graph, CREATE_OP, create)
        _LISTENERS.append(entry)
    try:
        yield
    finally:
        with _HOOK_LOCK:
            _LISTENERS.remove(entry)
            # Where somebody wrapped it again meanwhile, ours stays, and calls nobody.
            original = getattr(getattr(tf.Graph, CREATE_OP), UNHEARD, None)
            if original is not None and not _LISTENERS:
                setattr(tf.Graph, CREATE_OP, original)


# What a match may ask of an op that nothing reads yet, and that nothing else is known of.
ALONE = frozenset("op name name_regex attr dtype value body any all not".split())


@dataclass(eq=False)
class RuleOnNewOps:
    """A rule on the ops that are made, and what it did. `rule` is one whose patch is by key.

    `is_alone`: an op alone tells whether its match means it.
    """

    rule: Rule
    result: RuleResult = field(init=False)
    count: int = 0
    known: dict[Hashable, Any] = field(default_factory=dict)  # of all ops: see RuleEditor.cached

    def __post_init__(self) -> None:
        match = self.rule.match
        self.result = RuleResult(self.rule.author.rule)
        self.conditions = [test for key, test in conditions(match).items() if key != "op"]
        self.is_alone = all(part.given().keys() <= ALONE for part in every_match(match))
        self.is_type = one_of(texts(match.op or "**"))

    def take(self, graph: ModelGraph, live: Any, matched: MatchedOps) -> None:
        """Patch what the rule means in a graph that was taken from a live one."""
        self.count += matched.count
        for node in matched.nodes:
            _refuse_defun(live, node)
            if not self.is_alone:
                _refuse_late(live, node)
        targets = matched_graph(self.rule, graph, matched)
        patch_in_graph(self.rule, targets, self.result, self.known if self.is_alone else None)

    def take_all(self, graph: ModelGraph, live: Any, made: set[str]) -> None:
        """Patch the ops of a whole graph, of these names, that the rule means.

        Raises PatchError where no gradient reaches one, or a key comes too late. A rule on ops
        alone has patched them, and only looks whether gradients reach them.
        """
        if self.is_alone:
            matches = self.result.matches
            patched = [match["op"] for match in matches if match["body"] == graph.main.label]
            refuse_hidden(graph.main.node(name) for name in patched if name in made)
            return
        matched = _made_inside(find(graph, self.rule.match, self.rule.on), made)
        refuse_shadowed(matched.nodes, goes_first=False)
        refuse_hidden(matched.nodes)
        self.take(graph, live, matched)

    def finish(self, made: Iterable[Any]) -> RuleResult:
        """Return what it did to the ops that were made.

        Raises MatchError where it did not match as often as it expects, PatchError where it means
        nothing on any of the ops it matched.
        """
        rule, count, expect = self.rule, self.count, self.rule.expect
        if not count or not expect.min <= count <= (count if expect.max is None else expect.max):
            try:
                check_expected(rule, [model_of(live).graphs[0] for live in made], count)
            except MatchError as error:
                says = f"of the ops made in this context it {error}"
                raise MatchError(says if count else f"{says}\n  {NOT_MEANT}") from error
        if self.result.idle and len(self.result.idle) == len(self.result.matches):
            raise PatchError(self.result.idle[0])
        self.result.close()
        return self.result


def _named(live: Any, graph: ModelGraph) -> ModelGraph:
    """Return a graph taken from a live one, its body called as `body` in a match calls that."""
    graph.main.label = getattr(live, "name", None) or MAIN  # the name of a function
    return graph


def _put_into(live: Any, graph: ModelGraph) -> None:
    """Do to a live graph what rules did to the graph that was taken from it."""
    if graph.main.edited:
        put_into(live, graph.main)
        rules_of_live(live).sign(live, Node(graph.main, min(graph.main.edited)).name)


def _made_inside(matched: MatchedOps, names: set[str]) -> MatchedOps:
    """Return what was found, as far as its ops were made in the context."""

    def is_inside(node: Node) -> bool:
        return node.name in names and node.body.is_main

    return MatchedOps(
        list(filter(is_inside, matched.nodes)),
        [match for match in matched.counted if all(map(is_inside, match.patched))],
        matched.dropped,
        [(node, shape) for node, shape in matched.undecided if is_inside(node)],
    )


def _refuse_defun(live: Any, node: Node) -> None:
    """Raise PatchError for an op in a Defun, of which TensorFlow builds the gradient in C++."""
    from tensorflow.python.framework import function

    if any(isinstance(around, function._FuncGraph) for around in graphs_around(live)):
        raise PatchError(
            f"{node} is in a Defun, which TensorFlow differentiates as a whole, without looking at "
            f"keys: patch_graph patches it once it is built, and a tf.function can be patched as "
            f'it is built; "body": "main" leaves functions out'
        )


def _refuse_late(live: Any, node: Node) -> None:
    """Raise PatchError for an op to which a key comes too late."""
    current = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if hasattr(live, "outer_graph") and live not in graphs_around(current):
        raise PatchError(
            f"{node} is in function {node.body.label}, which was traced to its end before the "
            f"context was left: there a rule can ask for op, name, attr or dtype alone, or "
            f"`building` can be called inside of the function"
        )
    if built_before(live, {node.name}):
        raise PatchError(
            f"the gradient of {node} was built inside of the context, before this rule could be "
            f"applied: build gradients after it is left"
        )


@dataclass(eq=False, repr=False)
class Building:
    """Rules on ops as they are made; `report` is filled when the context is left.

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

    rules: list[RuleOnNewOps]
    report: dict[str, Any] = field(default_factory=dict)
    made: dict[Any, set[str]] = field(default_factory=dict)  # names of the ops, by their graph

    def hear(self, op: Any) -> None:
        """Give an op that was just made the gradient that the rules say; `building` calls it.

        Raises PatchError where no key can do a rule on this op, ModelError and RulesError where the
        op, or a key that it has already, cannot be read.
        """
        self.made.setdefault(op.graph, set()).add(op.name)
        rules = [rule for rule in self.rules if rule.is_alone and rule.is_type(op.type)]
        if not rules:
            return
        alone = _named(op.graph, graph_of_op(op))
        node = Node(alone.main, 0)
        meant = [rule for rule in rules if all(test.holds(node) for test in rule.conditions)]
        if meant:
            self._number(op.graph, alone)
            for rule in meant:
                with naming_rule(rule.rule):
                    rule.take(alone, op.graph, MatchedOps([node]))
            _put_into(op.graph, alone)

    def finish(self) -> None:
        """Check how often rules matched, and apply those that waited; `building` calls it.

        Raises MatchError, PatchError, ModelError and RulesError as leaving the context does.
        """
        is_waited = not all(rule.is_alone for rule in self.rules)
        live_graphs = self.made if is_waited else filter(self._may_hide, self.made)
        graphs = {live: _named(live, model_of(live).copy().graphs[0]) for live in live_graphs}
        for live, graph in graphs.items():
            self._number(live, graph)
        results = list[RuleResult]()
        for rule in self.rules:
            with naming_rule(rule.rule):
                for live, graph in graphs.items():
                    rule.take_all(graph, live, self.made[live])
                results.append(rule.finish(self.made))
        for live, graph in graphs.items():
            _put_into(live, graph)
        self.made.clear()
        self.report = report_of(results, [note for result in results for note in result.notes])

    def _number(self, live: Any, graph: ModelGraph) -> None:
        rules_of_live(live).number(graph, [rule.rule.applied for rule in self.rules])

    def _may_hide(self, live: Any) -> bool:
        """Return whether ops were made with which tf.custom_gradient leads past others."""
        return any(live.get_operation_by_name(name).type == "IdentityN" for name in self.made[live])

    @property
    def ok(self) -> bool:
        """Return whether the context was left, and each rule matched as often as it expects."""
        return bool(self.report)

    def document(self) -> dict[str, Any]:
        """Return the report."""
        return self.report

    def __repr__(self) -> str:
        count = sum(len(rule.result.matches) for rule in self.rules)
        rules = len(reported_rules(self.report)) if self.ok else len(self.rules)
        return f"<Building: {plural(rules, 'rule')} on {plural(count, 'new op')}>"


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
        PatchError: On entering: no key can do a rule (`backward_as`, `emit: function`), unless it
            may match nothing, as rules of recipes may. Where an op is made: none can on this op. On
            leaving: such a rule did match; no keys hold a match as one op; a rule means ops in a
            function that was traced to its end.
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
    ready = (keyed(rule, bodies=True) for rule in rules_of(rules, allow_python))
    active = Building(list(map(RuleOnNewOps, ready)))
    with listening(active.hear):
        yield active
    active.finish()

"""What rules, or a match alone, mean in a model: each rule on the result of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.application import RulesLike, check_all, rules_of
from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.formats import Model
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.node import Body, Node
from graphpatch.match.misses import explain
from graphpatch.match.pattern.overlaps import Binding, KeptMatch
from graphpatch.match.pattern.syntax import forms, type_notes
from graphpatch.match.select import MatchedOps, find, match_of_ops
from graphpatch.match.spec import WHOLE, Match, Pattern
from graphpatch.patches.target import Target
from graphpatch.rules import Rule, rules_from
from graphpatch.step import apply_rule, left_out_notes, listed_matches, ops_by_graph, patch_matched
from graphpatch.table import html_table, plural

OF_A_RULE = {"match", "patch"}


@dataclass(frozen=True, slots=True, repr=False)
class Matches:
    """What rules match in a model. Each sees what those before it did; the model is not changed.

    It iterates over the matches of all rules, each a `Place` with its captures and with the
    tensors that go in (`x0`, `x1`, ...) and come out. `found` has them by rule.

    Example:
        >>> found = graphpatch.matches({"op": "Relu"}, "model.pb")
        >>> [place.op for place in found]
        ['block1/relu', 'block2/relu']
    """

    model: Model
    rules: tuple[Rule, ...]
    found: tuple[RuleMatches, ...]

    @property
    def ok(self) -> bool:
        """Return whether `apply` would take every rule."""
        return not any(of_rule.error for of_rule in self.found)

    @property
    def errors(self) -> list[str]:
        """Return what `apply` would say of the rules that it would refuse."""
        return [of_rule.error for of_rule in self.found if of_rule.error]

    def document(self) -> dict[str, Any]:
        """Return what `match --json` prints."""
        return {"model": self.model.path, "rules": [of_rule.document() for of_rule in self.found]}

    def rules_file(self) -> dict[str, Any]:
        """A rules file with one rule for each match, to be edited: what `match --save` writes.

        Raises:
            MatchError: There are no matches, or there is a match alone, without a patch.
            RulesError: One of these rules is not valid.
            PatchError: The rules cannot be applied.
            ModelError: The model is broken.

        Example:
            >>> found = graphpatch.matches("rules.json", "model.pb")
            >>> [rule["name"] for rule in found.rules_file()["rules"]]
            ['guided: block1/relu', 'guided: block2/relu']
        """
        if not self.rules:
            raise MatchError(
                "a match alone makes no rules file, as it has no patch; give rules with a patch"
            )
        return as_rules_file(self.rules, self.model)

    def __iter__(self) -> Iterator[Place]:
        return (place for of_rule in self.found for place in of_rule.places)

    def __len__(self) -> int:
        return sum(len(of_rule.places) for of_rule in self.found)

    def __repr__(self) -> str:
        wrong = f", {plural(len(self.errors), 'error')}" if self.errors else ""
        return f"<Matches: {self.model.path}, {plural(len(self), 'match')}{wrong}>"

    def _repr_html_(self) -> str:
        rows = [
            (
                of_rule.rule,
                f"{place.type} {place.op}",
                _types_in_words(place.captures),
                _types_in_words(place.inputs),
            )
            for of_rule in self.found
            for place in of_rule.places
        ]
        return html_table(repr(self)[1:-1], ("rule", "op", "captures", "inputs"), rows)


def _types_in_words(named: Mapping[str, str]) -> str:
    return ", ".join(f"{name} is {op}" for name, op in named.items())


def matches(
    rules: RulesLike | Pattern | Mapping[str, Any],
    model: ModelLike,
    *,
    explain: bool = False,
    progress: Progress | None = None,
) -> Matches:
    """Find what rules match in a model, each on the result of those before. Nothing is changed.

    Args:
        rules: What `apply` takes; or a match alone, without a patch: a dict with the keys of
            `match` in a rules file, or a `pattern`.
        model: What `load` takes.
        explain: Tell how near each rule came, also where it matches.
        progress: Called with what is done, how much of it, and of how much.

    A rule that matches too little is not an error here: `errors` has it.

    Raises:
        RulesError: A rule or match is not valid.
        MatchError: A key names a tensor that the model does not have.
        ModelError: The model cannot be read or is broken.
        PatchError: The model carries the rules already.
        TypeError: `rules` or `model` is of another type.

    Example:
        >>> found = graphpatch.matches({"pattern": "c:Conv2D -> b:BiasAdd"}, "model.pb")
        >>> [(one.captures["c"], one.inputs["x0"]) for one in found]
        [('block1/conv', 'x:0'), ('block2/conv', 'block1/relu:0')]
    """
    alone = _bare_match(rules)
    read: Sequence[Rule] = () if alone is not None else rules_of(rules)  # type: ignore[arg-type]
    loaded = model_from("model", model, progress)
    if alone is not None:
        match = rules_from([{"match": alone, "patch": {"stop_gradient": True}}])[0].match
        return Matches(loaded, (), (match_only(match, loaded, explain, with_places=True),))
    return Matches(loaded, tuple(read), tuple(match_rules(read, loaded, explain, True)))


def _bare_match(rules: object) -> Mapping[str, Any] | None:
    """Return what is a match without a rule around it; None for rules."""
    if isinstance(rules, Pattern):
        return {"pattern": rules}
    is_rule = isinstance(rules, Mapping) and bool({"rules", *OF_A_RULE} & rules.keys())
    return rules if isinstance(rules, Mapping) and not is_rule else None


EXPLAINED = 100  # rules that match nothing, for which the nearest names are looked for
NOT_EXPLAINED = f"\n  nearest names are listed for the first {EXPLAINED} rules that match nothing"


class RuleMatches(msgspec.Struct, frozen=True):
    """What one rule matches.

    `matches` are as `apply --json` lists them, `left_out` says which matches don't count, and
    `error` what `apply` would say. `misses` is why, and where it came near: where it was asked
    for, or nothing matched. `places` has each match with what goes in and comes out, where that
    was asked for, `notes` what a pattern may not mean as it was written.
    """

    rule: str
    matches: list[dict[str, Any]]
    left_out: list[str]
    error: str
    misses: str
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return what `match --json` prints of a rule."""
        near = self.misses.split("\n") if self.misses else []
        document = {"name": self.rule, "matches": self.matches, "left_out": self.left_out}
        document |= {"notes": list(self.notes)} if self.notes else {}
        return {**document, "near": near, "error": self.error or None}


def match_rules(
    rules: Sequence[Rule], model: Model, why: bool = False, with_places: bool = False
) -> list[RuleMatches]:
    """Return what each rule matches, where those before it were applied as far as they can be.

    With `why`, also how near it came where it matches; with `with_places`, what goes into each
    match and comes out. Raises ModelError where the graph is
    broken, PatchError where the model carries the rules.
    """
    applied = _PatchedCopies(model)
    check_all(rules, applied.graphs)
    matched = list[RuleMatches]()
    missed = 0
    for rule in rules:
        matched.append(_as_matched(rule, applied, why, with_places, names=missed < EXPLAINED))
        missed += not matched[-1].matches
    return matched


def match_only(
    match: Match, model: Model, why: bool = False, with_places: bool = False
) -> RuleMatches:
    """Return what a match means, without a rule around it.

    Where a pattern leaves open which tensor is x0, x1, ..., the notes say so.
    """
    known = [find(graph, match) for graph in model.graphs]
    matched = _rule_document("", match, (), model.graphs, known, why, with_places)
    return replace(matched, notes=(*matched.notes, *_left_open(match, model.graphs)))


def _left_open(match: Match, graphs: Sequence[ModelGraph]) -> Iterator[str]:
    """That the pattern does not tell which of the tensors that a match reads is which."""
    if match.pattern is None or not any(form.tensors for form in forms(match.pattern)):
        return
    every = (undecided for graph in graphs for undecided in find(graph, match, (WHOLE,)).kept)
    undecided = next((first for first in every if first.orders), None)
    if undecided is not None:
        first, second = undecided.binding.inputs, undecided.orders[0]
        place = next(n for n, text in enumerate(first) if text != second[n])
        yield (
            f"the pattern leaves open which tensor is x{place}: in the match that ends in "
            f"{undecided.last} it could be {first[place]} or {second[place]}; where that matters, "
            "write "
            f"the input slot, as in x:_ -> m:{undecided.last.op}:0"
        )


class _PatchedCopies:
    """The graphs of a model as the rules so far leave them, where each was done wholly or not.

    They are changed in place, as a copy for each rule would make many rules slow. A rule that
    fails in the middle is taken back by doing again, on a copy from before, those since then.
    """

    def __init__(self, model: Model) -> None:
        self.before, self.since = model.graphs, list[Rule]()
        self.graphs = _copies(self.before)

    def take(self, rule: Rule, known: Sequence[MatchedOps]) -> str:
        """Apply a rule to what it matches, where it can be done; what `apply` says otherwise."""
        try:
            # `_rule_document` tells why.
            matched = ops_by_graph(rule, self.graphs, why=False, known=known)
        except GraphpatchError as error:  # nothing has been changed
            return str(error)
        try:
            patch_matched(rule, matched)
        except GraphpatchError as error:
            self._restore()
            return str(error)
        self.since.append(rule)
        return ""

    def _restore(self) -> None:
        self.graphs = _copies(self.before)
        for rule in self.since:
            apply_rule(rule, self.graphs)
        self.before, self.since = _copies(self.graphs), []


def _copies(graphs: Sequence[ModelGraph]) -> list[ModelGraph]:
    return [graph.copy() for graph in graphs]


def _as_matched(
    rule: Rule, applied: _PatchedCopies, why: bool, with_places: bool, names: bool
) -> RuleMatches:
    name, match, graphs = rule.author.rule, rule.match, applied.graphs
    known = [find(graph, match, rule.on) for graph in graphs]
    matched = _rule_document(name, match, rule.on, graphs, known, why, with_places, names)
    return replace(matched, error=applied.take(rule, known).partition("\n")[0])


def _rule_document(
    rule: str,
    match: Match,
    on: Sequence[str],
    graphs: Sequence[ModelGraph],
    matched: Sequence[MatchedOps],
    why: bool,
    with_places: bool,
    names: bool = True,
) -> RuleMatches:
    listed, places = list[dict[str, Any]](), list[Place]()
    for graph, of_graph in zip(graphs, matched, strict=True):
        tags = graph.around.tags if len(graphs) > 1 else None
        listed += listed_matches(of_graph, tags, whole=on == (WHOLE,))
        places += places_of_match(of_graph, tags or "") if with_places else ()
    left_out = [text for of_graph in matched for text in left_out_notes(rule, of_graph)]
    misses = ""
    if why or not listed:
        misses = explain(graphs, match, names) + ("" if names else NOT_EXPLAINED)
    notes = tuple(type_notes(match.pattern))
    return RuleMatches(rule, listed, left_out, "", misses, tuple(places), notes)


@dataclass(frozen=True, slots=True)
class Place:
    """One match, of a pattern or of a single op.

    Attributes:
        body: `main`, or the name of the function.
        op: The name of the last op; of a single op, its name.
        type: The op type of that op.
        ops: The names of the ops that the patch goes to.
        captures: By the names of a pattern's ops, the names of the ops that they are.
        inputs: By `x0`, `x1`, ... the tensors that the match reads from outside, as formulas
            name them: of a single op its inputs.
        outputs: By `y0`, `y1`, ... the tensors of the match that are read outside, or that nothing
            reads: of a single op all its outputs.
        graph: The tags of its MetaGraphDef, where the model has several.

    Example:
        >>> place, other = graphpatch.matches({"op": "Relu"}, "model.pb")
        >>> place.type, place.inputs, place.outputs
        ('Relu', {'x0': 'block1/bias:0'}, {'y0': 'block1/relu:0'})
    """

    body: str
    op: str
    type: str
    ops: tuple[str, ...]
    captures: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    graph: str = ""

    def __repr__(self) -> str:
        function = "" if self.body == "main" else f" in function {self.body}"
        named = {**self.captures, **self.inputs}
        return f"<{self.type} {self.op!r}{function}: {_pairs_in_words(named) or 'reads nothing'}>"


def _pairs_in_words(named: Mapping[str, str], most: int = 8) -> str:
    pairs = [f"{key}={value}" for key, value in named.items()]
    return ", ".join(pairs[:most] + ["..."] * (len(pairs) > most))


def places_of_match(matched: MatchedOps, graph: str) -> Iterator[Place]:
    """Yield each match, in the file's order; `graph` are the tags of the graph that it is in."""
    if matched.kept:
        yield from (_of_pattern(match, graph) for match in matched.kept)
    else:
        yield from (_of_op(node, graph) for node in matched.nodes)


def _of_pattern(match: KeptMatch, graph: str) -> Place:
    binding: Binding = match.binding
    captures = binding.captures
    last, body = captures[binding.pattern.last], binding.body
    return Place(
        body.label,
        last.name,
        last.op,
        tuple(node.name for node in match.nodes),
        {name: node.name for name, node in captures.items()},
        _numbered_tensors("x", body, binding.inputs),
        _numbered_tensors("y", body, binding.outputs),
        graph,
    )


def _of_op(node: Node, graph: str) -> Place:
    made = [node.tensor(index) for index in range(len(node.outputs or ()))]
    return Place(
        node.body.label,
        node.name,
        node.op,
        (node.name,),
        {},
        _numbered_tensors("x", node.body, node.data_inputs),
        _numbered_tensors("y", node.body, made),
        graph,
    )


def _numbered_tensors(letter: str, body: Body, tensors: Iterable[str]) -> dict[str, str]:
    """Tensors by number; those of the main graph as TensorFlow spells them, `op:0`."""
    named = [text if ":" in text or not body.is_main else f"{text}:0" for text in tensors]
    return {f"{letter}{number}": text for number, text in enumerate(named)}


def as_rules_file(rules: Sequence[Rule], model: Model) -> dict[str, Any]:
    """Return a rules file with one rule for each match, to be edited; as it is, it does the same.

    Ops on which a patch means nothing stand in the rule of the first on which it does, as a rule
    of their own would be refused. Raises what `apply` raises: matches that cannot be patched are
    nothing to write down; MatchError where there is no match at all.
    """
    graphs = model.copy().graphs
    check_all(rules, graphs)
    written: list[dict[str, Any]] = []
    for rule in rules:
        written += _saved_rules(rule, [find(graph, rule.match, rule.on) for graph in graphs])
        apply_rule(rule, graphs)
    if not written:
        raise MatchError(f"{model.path}: nothing is matched, so there are no rules to write")
    return {"version": 1, "rules": written}


def _saved_rules(rule: Rule, matched: Sequence[MatchedOps]) -> list[dict[str, Any]]:
    if rule.on == (WHOLE,):
        places = [_whole_match(match.binding) for of_graph in matched for match in of_graph.kept]
        counts = [1] * len(places)
    else:
        groups = _groups(rule, [node for of_graph in matched for node in of_graph.nodes])
        places = [(nodes[0].name, match_of_ops(nodes)) for nodes in groups]
        counts = [len(nodes) for nodes in groups]
    merged: dict[bytes, dict[str, Any]] = {}
    for (name, match), count in zip(places, counts, strict=True):
        # Several graphs of one model may have an op of the same name: it is one rule for all.
        written = merged.setdefault(msgspec.json.encode(match), _saved_rule(rule, name, match))
        written["expect"] += count
    return list(merged.values())


def _saved_rule(rule: Rule, name: str, match: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = msgspec.to_builtins(rule.written)
    patch = spec["patch"] if rule.on == (WHOLE,) else {**spec["patch"], "on": None}
    patch = {key: value for key, value in patch.items() if (key, value) != ("on", None)}
    emit = {"emit": spec["emit"]} if spec.get("emit") else {}
    name = f"{rule.author.rule}: {name}"
    return {"name": name, "match": match, "patch": patch, "expect": 0, **emit}


def _groups(rule: Rule, nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the ops of each rule: one, besides those on which the patch means nothing alone."""
    meant = [_means_something(rule, node) for node in nodes]
    groups = [[node] for node, means in zip(nodes, meant, strict=True) if means]
    if groups:
        groups[0] += [node for node, means in zip(nodes, meant, strict=True) if not means]
    return groups


def _means_something(rule: Rule, node: Node) -> bool:
    try:
        rule.patch.check([Target.of(node)])
    except PatchError:
        return False
    return True


def _whole_match(binding: Binding) -> tuple[str, dict[str, Any]]:
    """The name of the last op of a match, and its pattern with the names of all of its ops."""
    pattern: dict[str, Any] = msgspec.to_builtins(binding.pattern)
    pattern.pop("optional", None)  # those that are there stay, and no others are asked for
    op_names = binding.body.heads.names
    for name, indices in zip(binding.pattern.present, binding.bound, strict=True):
        bound = [op_names[index] for index in indices]
        pattern["nodes"][name]["name"] = bound[0] if len(bound) == 1 else bound
    last = binding.captures[binding.pattern.last].name
    return last, {"pattern": pattern, "body": binding.body.label}

"""What rules, or a match alone, mean in a model: each rule on the result of the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch import application
from graphpatch.errors import GraphpatchError, MatchError, PatchError
from graphpatch.formats import Model
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.graph import ModelGraph, Progress
from graphpatch.graph.node import Node
from graphpatch.match.binding import Binding
from graphpatch.match.misses import explain
from graphpatch.match.select import MatchedOps, find, match_of_ops
from graphpatch.match.spec import WHOLE, Match, Pattern
from graphpatch.match.syntax import forms, type_notes
from graphpatch.patches.target import Target
from graphpatch.rules import Rule, RulesLike, match_from, rules_of
from graphpatch.shown import Document, html_table, plural

OF_RULES = {"rules", "match", "patch"}


@dataclass(frozen=True, slots=True, repr=False)
class Matches(Document):
    """What rules match in a model. Each sees what those before it did; the model is not changed.

    It iterates over the matches of all rules, each a `Place` with its captures and with the
    tensors that go in (`x0`, `x1`, ...) and come out. `found` has them by rule.

    Example:
        >>> found = graphpatch.matches({"op": "Relu"}, "model.pb")
        >>> [place.op for place in found]
        ['block1/relu', 'block2/relu']
    """

    keys = "model=model.path rules=found"
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

    def rules_file(self) -> dict[str, Any]:
        """Return a rules file with a rule for each match, to be edited: `match --save` writes it.

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
    alone: object = {"pattern": rules} if isinstance(rules, Pattern) else rules
    if isinstance(alone, Mapping) and not OF_RULES & alone.keys():  # a match without a rule
        match = match_from(alone)
        loaded = model_from("model", model, progress)
        return Matches(loaded, (), (match_only(match, loaded, explain, with_places=True),))
    read = rules_of(rules)  # type: ignore[arg-type]
    loaded = model_from("model", model, progress)
    return Matches(loaded, tuple(read), tuple(match_rules(read, loaded, explain, True)))


EXPLAINED = 100  # rules that match nothing, for which the nearest names are looked for
NOT_EXPLAINED = f"\n  nearest names are listed for the first {EXPLAINED} rules that match nothing"


class RuleMatches(Document, msgspec.Struct, frozen=True):
    """What one rule matches.

    `matches` are as `apply --json` lists them, `left_out` says which matches don't count, and
    `error` what `apply` would say, where it would refuse the rule. `near` has lines on why, and
    where it came near: where that was asked for, or nothing matched. `places` has each match with
    what goes in and comes out, where that was asked for, `notes` what a pattern may not mean as it
    was written.
    """

    keys = "name=rule matches left_out notes? near error"
    rule: str
    matches: list[dict[str, Any]]
    left_out: list[str]
    error: str | None
    near: list[str]
    places: tuple[Place, ...] = ()
    notes: tuple[str, ...] = ()


def match_rules(
    rules: Sequence[Rule], model: Model, why: bool = False, with_places: bool = False
) -> list[RuleMatches]:
    """Return what each rule matches, where those before it were applied as far as they can be.

    With `why`, also how near it came where it matches; with `with_places`, what goes into each
    match and comes out. Raises ModelError where the graph is
    broken, PatchError where the model carries the rules.
    """
    # Changed in place, as a copy for each rule would make many rules slow. A rule that fails in the
    # middle is taken back by doing again, on a copy from before, those since then.
    graphs, before, since = _copies(model.graphs), model.graphs, list[Rule]()
    application.check_all(rules, graphs)
    matched, missed = list[RuleMatches](), 0
    for rule in rules:
        known = [find(graph, rule.match, rule.on) for graph in graphs]
        names, error = missed < EXPLAINED, ""
        of_rule = _rule_matches(rule, rule.match, rule.on, graphs, known, why, with_places, names)
        missed += not of_rule.matches
        try:  # `near` tells why
            targets = application.ops_by_graph(rule, graphs, why=False, known=known)
        except GraphpatchError as refusal:  # nothing has been changed
            error = str(refusal)
        else:
            try:
                application.patch_matched(rule, targets)
                since.append(rule)
            except GraphpatchError as refusal:
                error, graphs = str(refusal), _copies(before)
                for earlier in since:
                    application.apply_rule(earlier, graphs)
                before, since = _copies(graphs), []
        matched.append(replace(of_rule, error=error.partition("\n")[0] or None))
    return matched


def _copies(graphs: Sequence[ModelGraph]) -> list[ModelGraph]:
    return [graph.copy() for graph in graphs]


def match_only(
    match: Match, model: Model, why: bool = False, with_places: bool = False
) -> RuleMatches:
    """Return what a match means, without a rule around it.

    Where a pattern leaves open which tensor is x0, x1, ..., the notes say so.
    """
    known = [find(graph, match) for graph in model.graphs]
    matched = _rule_matches(None, match, (), model.graphs, known, why, with_places)
    if match.pattern is None or not any(form.tensors for form in forms(match.pattern)):
        return matched
    every = (
        undecided for graph in model.graphs for undecided in find(graph, match, (WHOLE,)).counted
    )
    undecided = next((first for first in every if first.orders), None)
    if undecided is None:
        return matched
    first, second = undecided.inputs, undecided.orders[0]
    place = next(n for n, text in enumerate(first) if text != second[n])
    note = (
        f"the pattern leaves open which tensor is x{place}: in the match that ends in "
        f"{undecided.last_op} it could be {first[place]} or {second[place]}; where that matters, "
        f"write the input slot, as in x:_ -> m:{undecided.last_op.op}:0"
    )
    return replace(matched, notes=(*matched.notes, note))


def _rule_matches(
    rule: Rule | None,
    match: Match,
    on: Sequence[str],
    graphs: Sequence[ModelGraph],
    known: Sequence[MatchedOps],
    why: bool,
    with_places: bool,
    names: bool = True,
) -> RuleMatches:
    name = "" if rule is None else rule.author.rule
    listed, places = list[dict[str, Any]](), list[Place]()
    for graph, matched in zip(graphs, known, strict=True):
        tags = graph.around.tags if len(graphs) > 1 else None
        listed += application.listed_matches(matched, tags, whole=on == (WHOLE,))
        places += _places_of(matched, tags or "") if with_places else ()
    left_out = [text for matched in known for text in application.left_out_notes(name, matched)]
    near = list[str]()
    if why or not listed:
        near = (explain(graphs, match, names) + ("" if names else NOT_EXPLAINED)).split("\n")
    notes = tuple(type_notes(match.pattern))
    return RuleMatches(name, listed, left_out, None, near, tuple(places), notes)


MOST_NAMED = 8  # tensors of a match that are printed


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
        pairs = [f"{key}={value}" for key, value in {**self.captures, **self.inputs}.items()]
        shown = ", ".join(pairs[:MOST_NAMED] + ["..."] * (len(pairs) > MOST_NAMED))
        return f"<{self.type} {self.op!r}{function}: {shown or 'reads nothing'}>"


def _places_of(matched: MatchedOps, graph: str) -> Iterator[Place]:
    """Yield each match, in the file's order; `graph` are the tags of the graph that it is in."""
    for match in matched.counted:
        captures = {name: node.name for name, node in match.captures.items()}
        ops = [node.name for node in match.patched]
        yield _place(match.last_op, ops, captures, match.inputs, match.outputs, graph)
    for node in () if matched.counted else matched.nodes:
        outputs = [node.tensor(index) for index in range(len(node.outputs or ()))]
        yield _place(node, [node.name], {}, node.data_inputs, outputs, graph)


def _place(
    last: Node,
    ops: Iterable[str],
    captures: Mapping[str, str],
    inputs: Iterable[str],
    outputs: Iterable[str],
    graph: str,
) -> Place:
    def numbered(letter: str, tensors: Iterable[str]) -> dict[str, str]:
        """Return tensors by number; those of the main graph as TensorFlow spells them, `op:0`."""
        is_main = last.body.is_main
        named = [text if ":" in text or not is_main else f"{text}:0" for text in tensors]
        return {f"{letter}{number}": text for number, text in enumerate(named)}

    ends = numbered("x", inputs), numbered("y", outputs)
    return Place(last.body.label, last.name, last.op, tuple(ops), captures, *ends, graph)


def as_rules_file(rules: Sequence[Rule], model: Model) -> dict[str, Any]:
    """Return a rules file with one rule for each match, to be edited; as it is, it does the same.

    Ops on which a patch means nothing stand in the rule of the first on which it does, as a rule
    of their own would be refused. Raises what `apply` raises: matches that cannot be patched are
    nothing to write down; MatchError where there is no match at all.
    """
    graphs = _copies(model.graphs)
    application.check_all(rules, graphs)
    written: list[dict[str, Any]] = []
    for rule in rules:
        written += _saved_rules(rule, [find(graph, rule.match, rule.on) for graph in graphs])
        application.apply_rule(rule, graphs)
    if not written:
        raise MatchError(f"{model.path}: nothing is matched, so there are no rules to write")
    return {"version": 1, "rules": written}


def _saved_rules(rule: Rule, known: Sequence[MatchedOps]) -> list[dict[str, Any]]:
    """Return a rule for each match of one rule: its name, its match, and how many ops it means."""
    is_whole = rule.on == (WHOLE,)
    if is_whole:
        places = [(*_whole_match(m), 1) for matched in known for m in matched.counted]
    else:
        nodes = [node for matched in known for node in matched.nodes]
        means = [_means_something(rule, node) for node in nodes]
        groups = [[node] for node, is_meant in zip(nodes, means, strict=True) if is_meant]
        if groups:
            groups[0] += [n for n, is_meant in zip(nodes, means, strict=True) if not is_meant]
        places = [(group[0].name, match_of_ops(group), len(group)) for group in groups]
    spec: dict[str, Any] = msgspec.to_builtins(rule.written)
    patch = {key: value for key, value in spec["patch"].items() if is_whole or key != "on"}
    emit = {"emit": spec["emit"]} if spec.get("emit") else {}
    merged: dict[bytes, dict[str, Any]] = {}
    for name, match, count in places:
        # Several graphs of one model may have an op of the same name: it is one rule for all.
        rule_name = f"{rule.author.rule}: {name}"
        saved = {"name": rule_name, "match": match, "patch": patch, "expect": 0, **emit}
        merged.setdefault(msgspec.json.encode(match), saved)["expect"] += count
    return list(merged.values())


def _means_something(rule: Rule, node: Node) -> bool:
    try:
        rule.patch.check([Target.of(node)])
    except PatchError:
        return False
    return True


def _whole_match(binding: Binding) -> tuple[str, dict[str, Any]]:
    """Return the name of a match's last op, and its pattern with the names of all its ops."""
    pattern: dict[str, Any] = msgspec.to_builtins(binding.pattern)
    pattern.pop("optional", None)  # those that are there stay, and no others are asked for
    op_names = binding.body.heads.names
    for name, indices in zip(binding.pattern.present, binding.bound, strict=True):
        bound = [op_names[index] for index in indices]
        pattern["nodes"][name]["name"] = bound[0] if len(bound) == 1 else bound
    return binding.last_op.name, {"pattern": pattern, "body": binding.body.label}

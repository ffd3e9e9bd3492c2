"""Selecting ops from Python: a value that is refined, counted, printed, joined, and patched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from graphpatch.application import Result, apply
from graphpatch.errors import MatchError
from graphpatch.formats import Model
from graphpatch.formats.load import ModelLike, model_from
from graphpatch.graph.node import Node
from graphpatch.later import FromLater
from graphpatch.match.misses import missing_tensors
from graphpatch.match.select import match_of_ops
from graphpatch.match.select import select as matching
from graphpatch.rules import match_from
from graphpatch.shown import IN_LIST, and_more, beside, html_table, plural

MOST_TYPES = 8

# What a notebook shows of some ops of a model: the graph's place, the body, the op's name.
page_part_of_ops: FromLater[[Model, Mapping[tuple[int, str, str], None]], str]
page_part_of_ops = FromLater("part_of_selection")


@dataclass(frozen=True, repr=False)
class Selection:
    """Some ops of a model, in the file's order. Nothing is changed by selecting.

    It holds for the model that it was made of; combine only selections of one model, with `|`, `&`,
    `-` and `~`.

    Example:
        >>> model = graphpatch.load("model.pb")
        >>> relus = graphpatch.select(model, op="Relu")
        >>> (relus - relus.where(name="block1/**")).nodes[0].name
        'block2/relu'
    """

    model: Model
    ops: frozenset[Node]

    def where(self, test: Callable[[Node], bool] | None = None, **match: Any) -> Selection:
        """Return those of the ops for which `test` holds and which the match keys mean.

        The keys are those of `match` in a rules file, `not_` for `not`. Raises RulesError for a key
        or value that is not legal, MatchError where a key names a tensor that the model lacks,
        ModelError where the model tells of earlier rules what graphpatch did not write.

        Example:
            >>> graphpatch.select("model.pb").where(op="Relu", name="block1/**").types
            {'Relu': 1}
        """
        ops = self.ops & _matched(self.model, match) if match else self.ops
        return Selection(self.model, ops if test is None else frozenset(filter(test, ops)))

    @cached_property
    def nodes(self) -> list[Node]:
        """Return the ops."""
        bodies = (body for graph in self.model.graphs for body in graph.bodies)
        places = {body: place for place, body in enumerate(bodies)}
        return sorted(self.ops, key=lambda node: (places[node.body], node.index))

    @property
    def types(self) -> dict[str, int]:
        """Return how many ops of each op type there are."""
        return dict(Counter(node.op for node in self.nodes))

    def rule(
        self, patch: Mapping[str, Any], name: str = "selection", **keys: Any
    ) -> dict[str, Any]:
        """Return a rule that patches just these ops, for `apply` or for a rules file.

        Raises MatchError where there is none, as a rule on nothing does nothing, and ModelError
        where the model tells of earlier rules what graphpatch did not write.

        Example:
            >>> relus = graphpatch.select("model.pb", op="Relu")
            >>> relus.rule({"override_gradient": "guided_relu"})["expect"]
            2
        """
        if not self.ops:
            raise MatchError(
                f"{self.model.path}: nothing is selected, so there is nothing to patch"
            )
        match = match_of_ops(self.nodes)
        return {"name": name, "match": match, "patch": dict(patch), "expect": len(self), **keys}

    def apply(self, patch: Mapping[str, Any], **keys: Any) -> Result:
        """Patch these ops, as a rule with this `patch` does: the patched model, and the report.

        Forward and backward as `apply` does it. Raises MatchError where there is no op, RulesError
        for a patch that is not valid or a keyword that is none of a rule, PatchError where it
        cannot be done, ModelError where the graph is broken, TypeError where it is no mapping.

        Example:
            >>> relus = graphpatch.select("model.pb", op="Relu")
            >>> relus.apply({"override_gradient": "guided_relu"}).save("guided.pb")
        """
        return apply([self.rule(patch, **keys)], self.model)

    def __len__(self) -> int:
        return len(self.ops)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __or__(self, addend: Selection) -> Selection:
        return Selection(self.model, self.ops | self._same(addend))

    def __and__(self, operand: Selection) -> Selection:
        return Selection(self.model, self.ops & self._same(operand))

    def __sub__(self, subtrahend: Selection) -> Selection:
        return Selection(self.model, self.ops - self._same(subtrahend))

    def __invert__(self) -> Selection:
        return Selection(self.model, _matched(self.model, {}) - self.ops)

    def _same(self, operand: Selection) -> frozenset[Node]:
        if not isinstance(operand, Selection):
            raise TypeError(f"a selection is joined with a selection, not with {operand!r}")
        if operand.model is not self.model:
            raise MatchError("these selections are of two models: select from one model twice")
        return operand.ops

    def __repr__(self) -> str:
        types = list(self.types.items())
        listed = ", ".join(f"{op}: {count}" for op, count in types[:MOST_TYPES])
        more = ", ..." if len(types) > MOST_TYPES else ""
        return f"<Selection: {self._title}{f' ({listed}{more})' if types else ''}>"

    def _repr_html_(self) -> str:
        rows = [(node.op, node.name, node.body.label) for node in self.nodes]
        graphs = enumerate(self.model.graphs)
        numbers = {body: number for number, graph in graphs for body in graph.bodies}
        names = {(numbers[node.body], node.body.label, node.name): None for node in self.nodes}
        table = html_table(self._title, ("op type", "name", "body"), rows)
        return beside(table, page_part_of_ops(self.model, names))

    @property
    def _title(self) -> str:
        return f"{plural(len(self), 'op')} of {self.model.path}"

    def __str__(self) -> str:
        lines = [self._title]
        lines += [f"  {node}" for node in self.nodes[:IN_LIST]]
        more = and_more(self, IN_LIST)
        return "\n".join(lines + ([f"  {more}"] if more else []))


def select(model: ModelLike, **match: Any) -> Selection:
    """Return the ops of a model that the match keys mean; all of them without a key.

    The keys are those of `match` in a rules file, `not_` for `not`. Of a pattern it is the last
    op; `matches` tells all of them. `model` is what `load` takes. Ops of functions that graphpatch
    added are never among them.

    Raises:
        RulesError: A key or value is not legal.
        MatchError: A key names a tensor that the model does not have.
        ModelError: The model cannot be read.
        TypeError: `model` is not a model.

    Example:
        >>> graphpatch.select("model.pb", op="Relu", name="block*/**").types
        {'Relu': 2}
    """
    loaded = model_from("model", model)
    return Selection(loaded, _matched(loaded, match))


def _matched(model: Model, match: Mapping[str, Any]) -> frozenset[Node]:
    wanted = match_from({key.rstrip("_"): value for key, value in match.items()})
    missing = missing_tensors(list(model.graphs), wanted)
    if missing:
        raise MatchError(f"{model.path}: {missing.strip()}")
    return frozenset(node for graph in model.graphs for node in matching(graph, wanted))

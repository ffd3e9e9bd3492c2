"""An entry of the table of ready patterns: the forms in which graphs have one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from graphpatch.decoding import convert
from graphpatch.graph.op_types import REF_VARIABLES
from graphpatch.match.op_classes import RESHAPED
from graphpatch.match.pattern.syntax import parse_pattern
from graphpatch.match.spec import Match, Pattern

MatchJson = dict[str, Any]

_LEAF: MatchJson = {"op": ["Const", "ReadVariableOp", *REF_VARIABLES]}


def _through_reshapes(what: MatchJson) -> MatchJson:
    return {"op": list(RESHAPED), "inputs": {"0": what}}


PARAMETER: MatchJson = {
    "any": [_LEAF, _through_reshapes(_LEAF), _through_reshapes(_through_reshapes(_LEAF))]
}
"""A variable or constant, read, reshaped or led into a loop: up to two such ops."""

READS_PARAMETER: MatchJson = {"inputs": {"any": PARAMETER}}

BIAS: MatchJson = {
    "any": [{"op": ["BiasAdd", "BiasAddV1"]}, {"op": ["Add", "AddV2"], **READS_PARAMETER}],
}
"""The op adds a parameter; the sum of two branches of a net is not a bias."""

_WITHOUT_BATCH: MatchJson = {
    "not": {
        "op": "Const",
        "any": [
            {"value": value}
            for value in (0, [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3, 4])
        ],
    }
}

EACH_EXAMPLE: MatchJson = {"inputs": {"1": _WITHOUT_BATCH}}
"""The op reduces over axes of which the first one, that of the batch, is none."""

OF_A_BATCH: MatchJson = {
    "inputs": {
        "none": {
            "any": [
                {"op": "Mean", **EACH_EXAMPLE},
                {"op": "Sub", "inputs": {"0": {"inputs": {"any": {"op": "Sum", **EACH_EXAMPLE}}}}},
            ]
        }
    }
}
"""The op reads no variance of single examples, in the forms of tf.nn.moments."""


OpMatches = Mapping[str, Mapping[str, Any]]


class PatternForm(msgspec.Struct, frozen=True):
    """One form: a pattern's text, and what its ops must be besides, as a match says it."""

    text: str
    where: OpMatches = msgspec.field(default_factory=dict)

    def pattern(self) -> Pattern:
        """The form as a pattern. Raises PatternError, RulesError or ValidationError for a slip."""
        found = parse_pattern(self.text)
        nodes = dict(found.nodes)
        for name, besides in self.where.items():
            match = msgspec.to_builtins(nodes[name])
            nodes[name] = convert({**match, **besides}, Match)
        return replace(found, nodes=nodes)


class ReadyPattern(msgspec.Struct, frozen=True):
    """A ready pattern: what it stands for, and the forms in which graphs have it.

    Matches of several forms that end in the same op count as one.
    """

    name: str
    purpose: str
    forms: tuple[PatternForm, ...]

    def captures(self) -> list[str]:
        """What `on` can name: the captures that are there in every match of every form."""
        patterns = [form.pattern() for form in self.forms]
        return [
            name
            for name in patterns[0].nodes
            if name[0].islower()
            and all(name in one.nodes and name not in one.optional for one in patterns)
        ]

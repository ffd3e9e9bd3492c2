"""What a rules file holds: the types of its objects, each key with what it means."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from graphpatch.match.described import described
from graphpatch.match.glob import Texts
from graphpatch.match.shape import Natural
from graphpatch.match.spec import Match
from graphpatch.patches import KINDS

Emit = Literal["auto", "construction", "function", "attr"]
EMITS = get_args(Emit)


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a rule must match."""

    min: Annotated[int, described("The least number of matches; 0 allows none.", 1, at_least=0)] = 1
    max: Annotated[Natural | None, described("The largest number of matches. Default: any.", 4)] = (
        None
    )

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {self.min}"
        return f"{self.min}" if self.min == self.max else f"{self.min} to {self.max}"


OPTIONS = {name: kind for one in KINDS.values() for name, kind in one.options.items()}

_ON = described(
    'Which ops of the match\'s pattern, by name, or "match" for all as one. Default: the last one.',
    "act",
)

# One optional field for each kind of patch and each option: a line in the table of kinds is all
# that a new kind needs.
PatchSpec = msgspec.defstruct(
    "PatchSpec",
    [
        (name, value | msgspec.UnsetType, msgspec.UNSET)
        for name, value in [
            *((key, Annotated[kind.value, kind.told]) for key, kind in KINDS.items()),
            *OPTIONS.items(),
            ("on", Annotated[Texts, _ON]),  # whatever the kind
        ]
    ],
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
)


class RuleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule as a rules file writes it."""

    match: Annotated[
        Match,
        described("Which ops: all keys must hold.", {"op": ["Relu", "Relu6"], "name": "head/**"}),
    ]
    patch: Annotated[
        PatchSpec,  # type: ignore[valid-type]
        described(
            "What happens to each matched op: exactly one kind of patch.",
            {"override_gradient": "guided_relu"},
        ),
    ]
    name: Annotated[str, described("What reports and errors call the rule.", "guided backprop")] = (
        ""
    )
    expect: Annotated[
        Natural | Expect,
        described(
            "How often the rule must match: a number, or bounds. Default: at least once.",
            {"min": 1, "max": 4},
        ),
    ] = Expect()
    emit: Annotated[
        Emit | None,
        described(
            "How the file stores the new gradient. Default: auto, or --emit of the command.",
            "function",
        ),
    ] = None


class RulesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rules file."""

    version: Annotated[Literal[1], described("The version of the rule language.", 1)]
    rules: Annotated[
        tuple[RuleSpec, ...],
        described(
            "The rules, applied in order, each on the result of the one before.",
            [{"match": {"op": "Relu"}, "patch": {"override_gradient": "guided_relu"}}],
        ),
    ]
    written: Annotated[
        str,
        described(
            "The mark of a file that graphpatch wrote, and may replace while nobody has edited it.",
            "by graphpatch; checksum 3f9a51b2c07d46e8",
        ),
    ] = ""
    schema: Annotated[
        str,
        described(
            "The path of this schema, for editors; graphpatch does not read it.",
            "graphpatch.schema.json",
        ),
    ] = msgspec.field(default="", name="$schema")

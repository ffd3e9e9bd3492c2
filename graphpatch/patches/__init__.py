"""What is done to the ops that a rule matched: a class for each kind, one line in the table here.

Patches are refused at two times. Before anything is changed (`application.ops_by_graph`), for all
targets together: ops that no gradient reaches, as an earlier rule or tf.custom_gradient leads it
past them (`placement.refuse_shadowed`, `refuse_hidden`), matches that are not one op
(`target.target_of_match`), and what would do nothing, or fit nowhere (`Patch.check`, by `fit`). As
one target is patched (`Patch.rewrite`): a place to which no gradient comes (`placement`), a
gradient that does not fit the op (`fit`), and what its carrier cannot store (`carrier`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from graphpatch.gradients.spec import SIDES, GradientSpec, parse_gradient
from graphpatch.graph.node import Node
from graphpatch.match.spec import Natural, described
from graphpatch.patches.editing import RuleEditor
from graphpatch.patches.target import Target


class Patch:
    """What a rule does to each target that it matched; kinds are frozen values.

    A target is an op, or the ops of a match as one. `takes_all`: it depends on all ops that its
    rule matched in a graph, and takes them at once by `rewrite_all`. `takes_match`: it can go to a
    match as one op. `takes_side`: it changes what flows back through outputs or inputs, whatever
    computes them.
    """

    __slots__ = ()
    takes_all: ClassVar[bool] = False
    takes_match: ClassVar[bool] = False
    takes_side: ClassVar[bool] = False

    @property
    def is_at_outputs(self) -> bool:
        """Return whether it is put behind an op's outputs, with the values that the patch has."""
        return False

    def check(self, targets: Sequence[Target]) -> None:
        """Raise PatchError where it would do nothing for all of these together."""

    def notes(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return what the report is to say of the ops, as they are before the patch."""
        return ()

    def idle(self, nodes: Sequence[Node]) -> str:
        """Return why it changes nothing at any of these ops; nothing where it does."""
        return ""

    def rewrite(self, target: Target, editor: RuleEditor) -> None:
        """Change one target, or raise PatchError."""
        raise NotImplementedError

    def rewrite_all(self, nodes: Sequence[Node], editor: RuleEditor) -> None:
        """Change them, or raise PatchError; ops that no gradient reaches any more are its own."""
        raise NotImplementedError

    def formulas(self, target: Target) -> str | Sequence[str | None]:
        """Return what flows back to each tensor that a match reads, or one text for all.

        An empty text says that nothing is known of it.
        """
        raise NotImplementedError


# A side, or one place on it: "output:0", "input:1".
At = Annotated[
    str,
    msgspec.Meta(pattern=SIDES),
    described("Which side: outputs (default), inputs, or one, as output:0 or input:1.", "inputs"),
]


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which input of the op; of a match as one op also by the name that the pattern gives it."""

    input: Annotated[Natural | str, described("The number of the input. Default: 0.", 1)] = 0


class Until(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which input the op counts as, and up to which tensors."""

    input: Annotated[int, described("The number of the input. Default: 0.", 0, at_least=0)] = 0
    until: Annotated[
        str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] | None,
        described(
            "The tensors at which the noise-free path ends. Default: the outputs of the graph.",
            ["z"],
        ),
    ] = None


class PatchKind(msgspec.Struct, frozen=True):
    """A kind of patch: the JSON type of its value, what it means, its options, and how it is made.

    `described` is what the schema says of it. `make` takes the value and those of the options that
    were given. `verified` is how `verify` knows what must flow back: by the formula that is the
    value, by the tensor that the op counts as (`join`), or not at all.
    """

    value: Any
    described: msgspec.Meta
    make: Callable[..., Patch]
    options: Mapping[str, Any] = {}
    verified: Literal["formula", "join", ""] = ""


def _kind(name: str) -> Any:
    """Import a kind when a rule asks for it: most rules files ask for one."""
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(f"graphpatch.patches.{module}"), kind)


KINDS: dict[str, PatchKind] = {
    "override_gradient": PatchKind(
        GradientSpec,
        described("The gradient of the op is replaced by this one.", "guided_relu"),
        lambda value, emit: _kind("override.OverrideGradient")(parse_gradient(value), emit),
        verified="formula",
    ),
    "filter_gradient": PatchKind(
        GradientSpec,
        described(
            "What flows back through the op's outputs, or `at`, passes through this gradient.",
            {"clip": {"min": -0.1, "max": 0.1}},
        ),
        lambda value, emit, at="outputs": _kind("filter.FilterGradient")(
            parse_gradient(value), at, emit
        ),
        {"at": At},
        verified="formula",
    ),
    "stop_gradient": PatchKind(
        Literal[True],
        described("Nothing flows back.", True),
        lambda value, emit, at="outputs": _kind("filter.StopGradient")(at),
        {"at": At},
    ),
    "freeze": PatchKind(
        Literal[True],
        described(
            "Training leaves the variable that the op reads, and its slots, as they are; without "
            "an optimizer in the model its gradient stops.",
            True,
        ),
        lambda value, emit: _kind("freeze.Freeze")(),
    ),
    "straight_through": PatchKind(
        Literal[True] | Input,
        described(
            "On the way back the op counts as the identity of its input: 0, or the one named.",
            {"input": 0},
        ),
        lambda value, emit: _kind("surrogate.StraightThrough")(getattr(value, "input", 0)),
        verified="join",
    ),
    "surrogate_gradient": PatchKind(
        str,
        described("On the way back the op counts as this formula of its inputs.", "tanh(4 * x)"),
        lambda value, emit: _kind("surrogate.SurrogateGradient")(
            _kind("surrogate.surrogate_formula")(value), emit
        ),
        verified="join",
    ),
    "backward_as": PatchKind(
        Until,
        described(
            "On the way back the op, and what follows it up to `until`, is computed from this "
            "input.",
            {"input": 0, "until": ["z"]},
        ),
        lambda value, emit: _kind("backward_as.BackwardAsPatch")(
            value.input, (value.until,) if isinstance(value.until, str) else value.until, emit
        ),
        verified="join",
    ),
}

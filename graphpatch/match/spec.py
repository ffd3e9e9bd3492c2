"""A match and a pattern, as a rules file writes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

# In `on`: the patch goes to the matched ops as one.
WHOLE = "match"

Texts = str | tuple[str, ...]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Bound = int | float | msgspec.UnsetType


class Compared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bounds of a number, all of which must hold: `{">": 0, "<=": 1}`."""

    above: Bound = msgspec.field(default=msgspec.UNSET, name=">")
    below: Bound = msgspec.field(default=msgspec.UNSET, name="<")
    least: Bound = msgspec.field(default=msgspec.UNSET, name=">=")
    most: Bound = msgspec.field(default=msgspec.UNSET, name="<=")
    other: Bound = msgspec.field(default=msgspec.UNSET, name="!=")

    def __post_init__(self) -> None:
        if not msgspec.to_builtins(self):
            raise ValueError(f"it is empty: give one of {', '.join(self.__struct_encode_fields__)}")

    @property
    def bounds(self) -> dict[str, int | float]:
        """The comparisons that are given, by their sign."""
        found = {field.encode_name: getattr(self, field.name) for field in _BOUNDS}
        return {sign: bound for sign, bound in found.items() if bound is not msgspec.UNSET}


_BOUNDS = msgspec.structs.fields(Compared)


class OneOf(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several values of an attr, or a number between bounds."""

    values: tuple[Any, ...] | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="in")


class Near(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A constant within a tolerance, which is absolute, or between bounds."""

    near: int | float | tuple[Any, ...] | msgspec.UnsetType = msgspec.UNSET
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 1e-6

    def __post_init__(self) -> None:
        if self.near is msgspec.UNSET and not self.bounds:
            raise ValueError(f"give near, or one of {', '.join(Compared.__struct_encode_fields__)}")


Size = Annotated[int, msgspec.Meta(ge=-1)] | Compared | None
"""The size of a dimension; -1 or None is any, as TensorFlow spells one that is not known."""


class Shape(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """What is asked of a shape: how many dimensions, how many elements, these sizes."""

    rank: Natural | Compared | None = None
    elements: Natural | Compared | None = None
    sizes: tuple[Size, ...] | None = None


class Inside(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Which loop or branch, by names or globs; `when`: which branch of the cond."""

    loop: Texts | None = None
    branch: Texts | None = None
    when: bool | None = None


class Nth(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Which of the ops, counted from 0, in which order."""

    at: int | str | tuple[int, ...]
    by: Literal["graph", "name", "file"] = "graph"


class Between(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The tensors at both ends of a path, and where it may lead.

    All ops between the ends must be `within`; none may be one of `stop_at`. `ends` says whether
    the ops that give the tensors at the ends belong to the path.
    """

    sources: Texts = msgspec.field(name="from")
    targets: Texts = msgspec.field(name="to")
    within: Match | None = None
    stop_at: Match | None = None
    ends: bool = True


class Walk(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The tensors where a walk starts, and where it may lead.

    It goes through ops that are `within`, and not beyond those of `stop_at`, which are the last.
    """

    of: Texts
    within: Match | None = None
    stop_at: Match | None = None


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an edge of a pattern links: which output of the source, which input of the target.

    Where one is silent it is any. `repeat`: the target stands for a run of one or more ops, each
    reading the one before. `control`: the target runs after the source and reads nothing of it.
    """

    input: Natural | None = None
    output: Natural | None = None
    repeat: bool = False
    control: bool = False


class Edge(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An edge of a pattern, from a node to one that reads it: `["bias", "act", {"input": 0}]`."""

    source: str
    target: str
    link: Link = Link()


class Pattern(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    dict=True,
):
    """A small graph to be found in a body: what the text form says, and what it cannot.

    `nodes` has, by name, what each op must be. `tensors` names what is read from outside: any
    tensor, given by an op or by a function's argument, which is not part of the match; edges from
    one such name mean one and the same tensor. `optional` ops may be missing: what comes before
    them is then linked to what comes after. `absent` ops must not be there, beside those that
    are. `closed`: ops of the match that others of it read are read by nothing else (with names:
    these ops are), those apart that read nothing themselves, as constants do.

    `graphpatch.match.pattern.syntax.parse` makes one from the text form.
    """

    nodes: dict[str, Match]
    edges: tuple[Edge, ...] = ()
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    closed: bool | tuple[str, ...] = False

    @cached_property
    def present(self) -> tuple[str, ...]:
        """The names of its ops, without those that must be absent."""
        return tuple(name for name in self.nodes if name not in self.absent)

    @cached_property
    def last(self) -> str:
        """The last of its ops that none of the others reads, or runs after: where a patch goes."""
        read = {edge.source for edge in self.edges if edge.target not in self.absent}
        return [name for name in self.present if name not in read][-1]

    @cached_property
    def last_place(self) -> int:
        """Where that one stands among those that are present."""
        return self.present.index(self.last)


class Match(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """Which ops: every key that is given must hold. Without a key it is every op.

    `control` is not a key of its own: with it, `inputs`, `consumers`, `between`, `upstream_of` and
    `downstream_of` beside it follow control edges too.
    """

    op: Texts | None = None
    name: Texts | None = None
    name_regex: str | None = None
    attr: dict[str, bool | int | float | str | tuple[Any, ...] | OneOf] | None = None
    dtype: Texts | None = None
    inputs: dict[str, Match] | None = None
    consumers: dict[str, Match] | None = None
    value: bool | int | float | str | tuple[Any, ...] | Near | None = None
    between: Between | None = None
    upstream_of: Texts | Walk | None = None
    downstream_of: Texts | Walk | None = None
    body: Texts | None = None
    shape: tuple[Size, ...] | Shape | None = None
    class_: Texts | None = msgspec.field(default=None, name="class")
    inside: Literal["loop", "branch"] | Inside | None = None
    taken: bool | Texts | None = None
    nth: int | str | tuple[int, ...] | Nth | None = None
    any: tuple[Match, ...] | None = None
    all: tuple[Match, ...] | None = None
    not_: Match | None = msgspec.field(default=None, name="not")
    pattern: str | Pattern | tuple[str | Pattern, ...] | None = None
    control: bool = False

    def given(self) -> dict[str, Any]:
        """The keys that are there, as they are spelled in a rules file."""
        found = {field.encode_name: getattr(self, field.name) for field in FIELDS}
        return {key: value for key, value in found.items() if value is not None}


FIELDS = [field for field in msgspec.structs.fields(Match) if field.name != "control"]


def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several, as several."""
    return (value,) if isinstance(value, str) else tuple(value)

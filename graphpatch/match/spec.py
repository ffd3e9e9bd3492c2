"""A match and a pattern, as a rules file writes them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from graphpatch.match.glob import Texts, texts

# In `on`: the patch goes to the matched ops as one.
WHOLE = "match"


def described(text: str, example: Any, at_least: int | None = None) -> Meta:
    """What a key means, with a value that is legal there, and the least number where it is one."""
    return Meta(description=text, examples=[example], ge=at_least)


class Written(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """An object of a rules file: it has these keys and no others."""


Bound = int | float | UnsetType


class Compared(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"above": ">", "below": "<", "least": ">=", "most": "<=", "other": "!="},
):
    """Bounds of a number, all of which must hold: `{">": 0, "<=": 1}`."""

    above: Annotated[Bound, described("Each number is above this one.", 0)] = UNSET
    below: Annotated[Bound, described("Each number is below this one.", 2)] = UNSET
    least: Annotated[Bound, described("Each number is at least this one.", 1)] = UNSET
    most: Annotated[Bound, described("Each number is at most this one.", 8)] = UNSET
    other: Annotated[Bound, described("Each number is not this one.", 0)] = UNSET

    def __post_init__(self) -> None:
        if not msgspec.to_builtins(self):
            raise ValueError(f"it is empty: give one of {', '.join(self.__struct_encode_fields__)}")

    @property
    def bounds(self) -> dict[str, int | float]:
        """Return the comparisons that are given, by their sign."""
        bounds = {sign: getattr(self, name) for sign, name in _BOUNDS.items()}
        return {sign: bound for sign, bound in bounds.items() if bound is not UNSET}


_BOUNDS = dict(zip(Compared.__struct_encode_fields__, Compared.__struct_fields__, strict=True))


class OneOf(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several values of an attr, or a number between bounds."""

    values: Annotated[
        tuple[Any, ...] | UnsetType,
        described("The attr has one of these values.", ["SAME", "VALID"]),
    ] = msgspec.field(default=UNSET, name="in")


class Near(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A constant within a tolerance, which is absolute, or between bounds."""

    near: Annotated[
        int | float | tuple[Any, ...] | UnsetType,
        described("The value, a number or a list of them.", 0.5),
    ] = UNSET
    tolerance: Annotated[
        float,
        described("How far each element may differ from it. Default: 1e-6.", 0.001, at_least=0),
    ] = 1e-6

    def __post_init__(self) -> None:
        if self.near is UNSET and not self.bounds:
            raise ValueError(f"give near, or one of {', '.join(Compared.__struct_encode_fields__)}")


Natural = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=-1)] | Compared | None
"""The size of a dimension; -1 or None is any, as TensorFlow spells one that is not known."""


class Shape(Written, frozen=True, kw_only=True):
    """What is asked of a shape: how many dimensions, how many elements, these sizes."""

    rank: Annotated[Natural | Compared | None, described("The number of dimensions.", 4)] = None
    elements: Annotated[
        Natural | Compared | None,
        described("The number of elements.", {"<": 100}),
    ] = None
    sizes: Annotated[tuple[Size, ...] | None, described("The sizes; -1 is any.", [-1, 8])] = None


class Inside(Written, frozen=True, kw_only=True):
    """Which loop or branch, by names or globs; `when`: which branch of the cond."""

    loop: Annotated[Texts | None, described("Loops, by name or glob.", "rnn/while*")] = None
    branch: Annotated[Texts | None, described("Conds, by name or glob.", "cond*")] = None
    when: Annotated[
        bool | None,
        described("Which branch: where the predicate is true, or false.", True),
    ] = None


class Nth(Written, frozen=True, kw_only=True):
    """Which of the ops, counted from 0, in which order."""

    at: Annotated[
        int | str | tuple[int, ...],
        described("A number, first, last, a list of numbers, or a slice.", ":-1"),
    ]
    by: Annotated[
        Literal["graph", "name", "file"],
        described("The order in which they are counted. Default: graph.", "name"),
    ] = "graph"


class Between(Written, frozen=True, kw_only=True):
    """The tensors at both ends of a path, and where it may lead.

    All ops between the ends must be `within`; none may be one of `stop_at`. `ends` says whether
    the ops that give the tensors at the ends belong to the path.
    """

    sources: Annotated[Texts, described("Tensors at which paths start.", ["images"])] = (
        msgspec.field(name="from")
    )
    targets: Annotated[Texts, described("Tensors at which paths end.", ["logits"])] = msgspec.field(
        name="to"
    )
    within: Annotated[
        Match | None, described("Paths lead only through such ops.", {"class": "elementwise"})
    ] = None
    stop_at: Annotated[
        Match | None, described("Paths lead through no such op.", {"op": "MaxPool"})
    ] = None
    ends: Annotated[
        bool, described("Whether the ops at both ends match too. Default: true.", False)
    ] = True


class DependencySearch(Written, frozen=True, kw_only=True):
    """The tensors where a walk starts, and where it may lead.

    It goes through ops that are `within`, and not beyond those of `stop_at`, which are the last.
    """

    of: Annotated[Texts, described("Tensors where the walk starts.", "logits")]
    within: Annotated[
        Match | None, described("The walk leads only through such ops.", {"class": "elementwise"})
    ] = None
    stop_at: Annotated[Match | None, described("The walk ends at such ops.", {"op": "MaxPool"})] = (
        None
    )


class Link(Written, frozen=True):
    """How an edge of a pattern links: which output of the source, which input of the target.

    Where one is silent it is any. `repeat`: the target stands for a run of one or more ops, each
    reading the one before. `control`: the target runs after the source and reads nothing of it.
    """

    input: Annotated[Natural | None, described("Which input of the target. Default: any.", 0)] = (
        None
    )
    output: Annotated[Natural | None, described("Which output of the source. Default: any.", 0)] = (
        None
    )
    repeat: Annotated[
        bool, described("The target stands for a run of one or more ops. Default: false.", True)
    ] = False
    control: Annotated[
        bool, described("The target runs after the source and reads nothing of it.", True)
    ] = False


class Edge(Written, frozen=True, array_like=True):
    """An edge of a pattern, from a node to one that reads it: `["bias", "act", {"input": 0}]`."""

    source: str
    target: str
    link: Link = Link()


class Pattern(Written, frozen=True, kw_only=True, dict=True):
    """A small graph to be found in a body: what the text form says, and what it cannot.

    `nodes` has, by name, what each op must be. `tensors` names what is read from outside: any
    tensor, given by an op or by a function's argument, which is not part of the match; edges from
    one such name mean one and the same tensor. `optional` ops may be missing: what comes before
    them is then linked to what comes after. `absent` ops must not be there, beside those that
    are. `closed`: ops of the match that others of it read are read by nothing else (with names:
    these ops are), those apart that read nothing themselves, as constants do.

    `graphpatch.match.pattern.syntax.parse_pattern` makes one from the text form.
    """

    nodes: Annotated[
        dict[str, Match],
        described(
            "Names for the ops, and what each must be.",
            {"bias": {"op": "BiasAdd"}, "act": {"op": ["Relu", "Relu6"]}},
        ),
    ]
    edges: Annotated[
        tuple[Edge, ...],
        described(
            "Which op reads which: names of the source and of the target, and how they are linked.",
            [["bias", "act", {"input": 0}]],
        ),
    ] = ()
    tensors: Annotated[
        tuple[str, ...], described("Names of tensors that are read from outside.", ["x"])
    ] = ()
    optional: Annotated[
        tuple[str, ...], described("Names of ops that may be missing.", ["bias"])
    ] = ()
    absent: Annotated[
        tuple[str, ...], described("Names of ops that must not be there.", ["clip"])
    ] = ()
    closed: Annotated[
        bool | tuple[str, ...],
        described(
            "No op outside the match reads these ops: all of them (true), or those named.", True
        ),
    ] = False

    @cached_property
    def present(self) -> tuple[str, ...]:
        """Return the names of its ops, without those that must be absent."""
        return tuple(name for name in self.nodes if name not in self.absent)

    @cached_property
    def last(self) -> str:
        """The last of its ops that none of the others reads, or runs after: where a patch goes."""
        read = {edge.source for edge in self.edges if edge.target not in self.absent}
        return [name for name in self.present if name not in read][-1]

    @cached_property
    def last_place(self) -> int:
        """Return where that one stands among those that are present."""
        return self.present.index(self.last)


class Match(Written, frozen=True, kw_only=True):
    """Which ops: every key that is given must hold. Without a key it is every op.

    `control` is not a key of its own: with it, `inputs`, `consumers`, `between`, `upstream_of` and
    `downstream_of` beside it follow control edges too.
    """

    op: Annotated[
        Texts | None, described("The op type, or several, or a glob.", ["Relu", "*Relu*"])
    ] = None
    name: Annotated[
        Texts | None,
        described(
            "The op's name, or several, or a glob: `*` stays within one scope, `**` crosses `/`.",
            "resnet/**/conv*",
        ),
    ] = None
    name_regex: Annotated[
        str | None,
        described("A regular expression (RE2) that must match the whole name.", r"block\d+/relu"),
    ] = None
    attr: Annotated[
        dict[str, bool | int | float | str | tuple[Any, ...] | OneOf] | None,
        described(
            "Attrs by name: a value; one of several with `in`; true if there, false if not there.",
            {"T": "float32", "padding": {"in": ["SAME", "VALID"]}},
        ),
    ] = None
    dtype: Annotated[Texts | None, described("The dtype of output 0, or several.", "float32")] = (
        None
    )
    inputs: Annotated[
        dict[str, Match] | None,
        described(
            "What the ops that give the inputs must be: by input number, or any, all, none.",
            {"0": {"op": "Conv2D"}},
        ),
    ] = None
    consumers: Annotated[
        dict[str, Match] | None,
        described(
            "What the ops that read the outputs must be: by output number, or any, all, none.",
            {"any": {"op": "BiasAdd"}},
        ),
    ] = None
    value: Annotated[
        bool | int | float | str | tuple[Any, ...] | Near | None,
        described("The op is a Const of this value.", {"near": 0.5, "tolerance": 1e-6}),
    ] = None
    between: Annotated[
        Between | None,
        described(
            "The op lies on a path between these tensors.", {"from": ["images"], "to": ["logits"]}
        ),
    ] = None
    upstream_of: Annotated[
        Texts | DependencySearch | None,
        described("The op computes one of these tensors.", "logits"),
    ] = None
    downstream_of: Annotated[
        Texts | DependencySearch | None,
        described("The op is computed from one of these tensors.", ["images"]),
    ] = None
    body: Annotated[
        Texts | None, described("`main`, or functions by name or glob. Default: all.", "main")
    ] = None
    shape: Annotated[
        tuple[Size, ...] | Shape | None,
        described("The static shape of output 0: sizes, rank or number of elements.", [-1, 8]),
    ] = None
    class_: Annotated[Texts | None, described("A class of ops, or several.", "activation")] = (
        msgspec.field(default=None, name="class")
    )
    inside: Annotated[
        Literal["loop", "branch"] | Inside | None,
        described("The op lies in a loop or in a branch.", "loop"),
    ] = None
    taken: Annotated[
        bool | Texts | None,
        described(
            "Whether an earlier rule patched the op: true, false, or the name of that rule.",
            "guided backprop",
        ),
    ] = None
    nth: Annotated[
        int | str | tuple[int, ...] | Nth | None,
        described("Which of the ops that match, counted from 0; -1 is the last.", 0),
    ] = None
    any: Annotated[
        tuple[Match, ...] | None,
        described("At least one of these matches holds.", [{"op": "Relu"}, {"name": "head/**"}]),
    ] = None
    all: Annotated[
        tuple[Match, ...] | None,
        described("Each of these matches holds.", [{"op": "Relu"}, {"name": "head/**"}]),
    ] = None
    not_: Annotated[Match | None, described("This match does not hold.", {"name": "head/**"})] = (
        msgspec.field(default=None, name="not")
    )
    pattern: Annotated[
        str | Pattern | tuple[str | Pattern, ...] | None,
        described(
            "A small graph: text, a ready one by name, an object, or several of these.",
            "conv:Conv2D -> bias:BiasAdd -> act:Relu|Relu6",
        ),
    ] = None
    control: Annotated[
        bool,
        described(
            "Follow control edges too, for the keys beside it that follow edges. Default: false.",
            True,
        ),
    ] = False

    def given(self) -> dict[str, Any]:
        """Return the keys that are there, as they are spelled in a rules file."""
        values = {key: getattr(self, name) for key, name in FIELDS.items()}
        return {key: value for key, value in values.items() if value is not None}


# By key the name of its field; `msgspec.structs.fields` would evaluate all types at the start.
FIELDS = dict(zip(Match.__struct_encode_fields__, Match.__struct_fields__, strict=True))
del FIELDS["control"]


def every_match(match: Match) -> Iterator[Match]:
    """Yield a match, and those that stand in it, however deep."""
    yield match
    parts = [*(match.any or ()), *(match.all or ()), match.not_]
    for walk in (match.upstream_of, match.downstream_of, match.between):
        if isinstance(walk, DependencySearch | Between):
            parts += [walk.within, walk.stop_at]
    for neighbours in (match.inputs, match.consumers):
        parts += (neighbours or {}).values()
    for form in match.pattern if isinstance(match.pattern, tuple) else (match.pattern,):
        parts += form.nodes.values() if isinstance(form, Pattern) else ()
    for part in parts:
        if part is not None:
            yield from every_match(part)


def ends_of(value: Texts | DependencySearch | Between | None) -> tuple[str, ...]:
    """Return the tensors that a walk starts or ends at, as a match names them."""
    if isinstance(value, Between):
        return (*texts(value.sources), *texts(value.targets))
    return texts((value.of if isinstance(value, DependencySearch) else value) or ())


def tensors_named(match: Match) -> list[str]:
    """Return the tensors that a match and those in it name, each once."""
    parts = every_match(match)
    walks = ((part.upstream_of, part.downstream_of, part.between) for part in parts)
    return list(dict.fromkeys(text for keys in walks for walk in keys for text in ends_of(walk)))

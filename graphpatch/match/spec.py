"""A match and a pattern, as a rules file writes them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from graphpatch.names import Texts, texts

T = TypeVar("T", bound=msgspec.Struct)
META: dict[str, Meta] = {}
KEY = re.compile(r"^ {4}(\S+): (.*?)\s+Example: (.*?)$(?=\n {4}\S|\Z)", re.MULTILINE | re.DOTALL)

WHOLE = "match"  # in `on`: the patch goes to the matched ops as one


def described(text: str, example: Any, at_least: int | None = None) -> Meta:
    """Return what a key means, with a value that is legal there, and the least number."""
    return Meta(description=text, examples=[example], ge=at_least)


def spelled(of: type[msgspec.Struct] | msgspec.Struct) -> dict[str, str]:
    """Return the fields of a class by the keys that a rules file spells."""
    return dict(zip(of.__struct_encode_fields__, of.__struct_fields__, strict=True))


def documented(of: type[T]) -> type[T]:
    """Give the keys of a class, for the schema and messages, what its docstring says of them."""
    text, _, keys = inspect.cleandoc(of.__doc__ or "").partition("\n\nKeys:\n")
    of.__doc__ = text
    fields = spelled(of)
    for key, about, example in KEY.findall(keys):
        name, key = fields[key], f"{of.__name__}.{key}"
        META[key] = described(" ".join(about.split()), json.loads(example))
        # A text, as all annotations here are: msgspec reads it when it needs the type.
        of.__annotations__[name] = f"Annotated[{of.__annotations__[name]}, META[{key!r}]]"
    return of


class Written(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """An object of a rules file: it has these keys and no others."""


Bound = int | float | UnsetType


@documented
class Compared(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    rename={"above": ">", "below": "<", "least": ">=", "most": "<=", "unequal": "!="},
):
    """Bounds of a number, all of which must hold: `{">": 0, "<=": 1}`.

    Keys:
        >: Each number is above this one. Example: 0
        <: Each number is below this one. Example: 2
        >=: Each number is at least this one. Example: 1
        <=: Each number is at most this one. Example: 8
        !=: Each number is not this one. Example: 0
    """

    above: Bound = UNSET
    below: Bound = UNSET
    least: Bound = UNSET
    most: Bound = UNSET
    unequal: Bound = UNSET

    def __post_init__(self) -> None:
        if not msgspec.to_builtins(self):
            raise ValueError(f"it is empty: give one of {', '.join(self.__struct_encode_fields__)}")

    @property
    def bounds(self) -> dict[str, int | float]:
        """Return the comparisons that are given, by their sign."""
        values = msgspec.to_builtins(self)
        return {sign: values[sign] for sign in Compared.__struct_encode_fields__ if sign in values}


@documented
class OneOf(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of several values of an attr, or a number between bounds.

    Keys:
        in: The attr has one of these values. Example: ["SAME", "VALID"]
    """

    values: tuple[Any, ...] | UnsetType = msgspec.field(default=UNSET, name="in")


@documented
class Near(Compared, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A constant within a tolerance, which is absolute, or between bounds.

    Keys:
        near: The value, a number or a list of them. Example: 0.5
        tolerance: How far each element may differ from it. Default: 1e-6. Example: 0.001
    """

    near: int | float | tuple[Any, ...] | UnsetType = UNSET
    tolerance: Annotated[float, Meta(ge=0)] = 1e-6

    def __post_init__(self) -> None:
        if self.near is UNSET and not self.bounds:
            raise ValueError(f"give near, or one of {', '.join(Compared.__struct_encode_fields__)}")


Natural = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=-1)] | Compared | None  # -1 or None is any, as in TensorFlow


@documented
class Shape(Written, frozen=True, kw_only=True):
    """What is asked of a shape: how many dimensions, how many elements, these sizes.

    Keys:
        rank: The number of dimensions. Example: 4
        elements: The number of elements. Example: {"<": 100}
        sizes: The sizes; -1 is any. Example: [-1, 8]
    """

    rank: Natural | Compared | None = None
    elements: Natural | Compared | None = None
    sizes: tuple[Size, ...] | None = None


@documented
class Inside(Written, frozen=True, kw_only=True):
    """Which loop or branch, by names or globs; `when`: which branch of the cond.

    Keys:
        loop: Loops, by name or glob. Example: "rnn/while*"
        branch: Conds, by name or glob. Example: "cond*"
        when: Which branch: where the predicate is true, or false. Example: true
    """

    loop: Texts | None = None
    branch: Texts | None = None
    when: bool | None = None


@documented
class Nth(Written, frozen=True, kw_only=True):
    """Which of the ops, counted from 0, in which order.

    Keys:
        at: A number, first, last, a list of numbers, or a slice. Example: ":-1"
        by: The order in which they are counted. Default: graph. Example: "name"
    """

    at: int | str | tuple[int, ...]
    by: Literal["graph", "name", "file"] = "graph"


@documented
class Between(Written, frozen=True, kw_only=True):
    """The tensors at both ends of a path, and where it may lead between them.

    Keys:
        from: Tensors at which paths start. Example: ["images"]
        to: Tensors at which paths end. Example: ["logits"]
        within: Paths lead only through such ops. Example: {"class": "elementwise"}
        stop_at: Paths lead through no such op. Example: {"op": "MaxPool"}
        ends: Whether the ops at both ends match too. Default: true. Example: false
    """

    sources: Texts = msgspec.field(name="from")
    targets: Texts = msgspec.field(name="to")
    within: Match | None = None
    stop_at: Match | None = None
    ends: bool = True


@documented
class DependencySearch(Written, frozen=True, kw_only=True):
    """The tensors where a walk starts, and where it may lead.

    Keys:
        of: Tensors where the walk starts. Example: "logits"
        within: The walk leads only through such ops. Example: {"class": "elementwise"}
        stop_at: The walk ends at such ops. Example: {"op": "MaxPool"}
    """

    of: Texts
    within: Match | None = None
    stop_at: Match | None = None


@documented
class Link(Written, frozen=True):
    """How an edge of a pattern links: which output of the source, which input of the target.

    Keys:
        input: Which input of the target. Default: any. Example: 0
        output: Which output of the source. Default: any. Example: 0
        repeat: The target stands for a run of one or more ops. Default: false. Example: true
        control: The target runs after the source and reads nothing of it. Example: true
    """

    input: Natural | None = None
    output: Natural | None = None
    repeat: bool = False
    control: bool = False


class Edge(Written, frozen=True, array_like=True):
    """An edge of a pattern, from a node to one that reads it: `["bias", "act", {"input": 0}]`."""

    source: str
    target: str
    link: Link = Link()


@documented
class Pattern(Written, frozen=True, kw_only=True, dict=True):
    """A small graph to be found in a body: what the text form says, and what it cannot.

    A tensor from outside is given by an op or by a function's argument, which is not part of the
    match; edges from one such name mean one and the same tensor. Where an op is missing, what comes
    before it is linked to what comes after. `closed` are ops that others of the match read, those
    apart that read nothing themselves, as constants do.

    `graphpatch.match.syntax.parse_pattern` makes one from the text form.

    Keys:
        nodes: Names for the ops, and what each must be.
            Example: {"bias": {"op": "BiasAdd"}, "act": {"op": ["Relu", "Relu6"]}}
        edges: Which op reads which: names of the source and of the target, and how they are linked.
            Example: [["bias", "act", {"input": 0}]]
        tensors: Names of tensors that are read from outside. Example: ["x"]
        optional: Names of ops that may be missing. Example: ["bias"]
        absent: Names of ops that must not be there. Example: ["clip"]
        closed: No op outside the match reads these ops: all of them (true), or those named.
            Example: true
    """

    nodes: dict[str, Match]
    edges: tuple[Edge, ...] = ()
    tensors: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    closed: bool | tuple[str, ...] = False

    @cached_property
    def present(self) -> tuple[str, ...]:
        """Return the names of its ops, without those that must be absent."""
        return tuple(name for name in self.nodes if name not in self.absent)

    @cached_property
    def last(self) -> str:
        """Return the last op that none of the others reads, or runs after: where a patch goes."""
        read = {edge.source for edge in self.edges if edge.target not in self.absent}
        return [name for name in self.present if name not in read][-1]


@documented
class Match(Written, frozen=True, kw_only=True):
    r"""Which ops: every key that is given must hold. Without a key it is every op.

    `control` is not a key of its own: with it, `inputs`, `consumers`, `between`, `upstream_of` and
    `downstream_of` beside it follow control edges too.

    Keys:
        op: The op type, or several, or a glob. Example: ["Relu", "*Relu*"]
        name: The op's name, or several, or a glob: `*` stays within one scope, `**` crosses `/`.
            Example: "resnet/**/conv*"
        name_regex: A regular expression (RE2) that must match the whole name.
            Example: "block\\d+/relu"
        attr: Attrs by name: a value; one of several with `in`; true if there, false if not there.
            Example: {"T": "float32", "padding": {"in": ["SAME", "VALID"]}}
        dtype: The dtype of output 0, or several. Example: "float32"
        inputs: What the ops that give the inputs must be: by input number, or any, all, none.
            Example: {"0": {"op": "Conv2D"}}
        consumers: What the ops that read the outputs must be: by output number, or any, all, none.
            Example: {"any": {"op": "BiasAdd"}}
        value: The op is a Const of this value. Example: {"near": 0.5, "tolerance": 1e-06}
        between: The op lies on a path between these tensors.
            Example: {"from": ["images"], "to": ["logits"]}
        upstream_of: The op computes one of these tensors. Example: "logits"
        downstream_of: The op is computed from one of these tensors. Example: ["images"]
        body: `main`, or functions by name or glob. Default: all. Example: "main"
        shape: The static shape of output 0: sizes, rank or number of elements. Example: [-1, 8]
        class: A class of ops, or several. Example: "activation"
        inside: The op lies in a loop or in a branch. Example: "loop"
        taken: Whether an earlier rule patched the op: true, false, or the name of that rule.
            Example: "guided backprop"
        nth: Which of the ops that match, counted from 0; -1 is the last. Example: 0
        any: At least one of these matches holds. Example: [{"op": "Relu"}, {"name": "head/**"}]
        all: Each of these matches holds. Example: [{"op": "Relu"}, {"name": "head/**"}]
        not: This match does not hold. Example: {"name": "head/**"}
        pattern: A small graph: text, a ready one by name, an object, or several of these.
            Example: "conv:Conv2D -> bias:BiasAdd -> act:Relu|Relu6"
        control: Follow control edges too, for the keys beside it that follow edges. Default: false.
            Example: true
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
    upstream_of: Texts | DependencySearch | None = None
    downstream_of: Texts | DependencySearch | None = None
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
        """Return the keys that are there, as they are spelled in a rules file."""
        values = {key: getattr(self, name) for key, name in FIELDS.items()}
        return {key: value for key, value in values.items() if value is not None}


# By key the name of its field; `msgspec.structs.fields` would evaluate all types at the start.
FIELDS = spelled(Match)
del FIELDS["control"]

PatternLike = str | Pattern | Sequence[str | Pattern]


def every_match(part: Any) -> Iterator[Match]:
    """Yield a match, and those that stand in it, however deep."""
    if isinstance(part, Match):
        yield part
    if isinstance(part, msgspec.Struct):
        part = msgspec.structs.astuple(part)
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, msgspec.Struct | dict | tuple):
            yield from every_match(inner)


def tensors_named(match: Match) -> list[str]:
    """Return the tensors that a match and those in it name for their paths, each once."""
    named: list[str] = []
    for part in every_match(match):
        for walk in (part.upstream_of, part.downstream_of):
            named += texts((walk.of if isinstance(walk, DependencySearch) else walk) or ())
        if part.between is not None:
            named += (*texts(part.between.sources), *texts(part.between.targets))
    return list(dict.fromkeys(named))

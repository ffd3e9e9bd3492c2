"""The keys of a match that ask an op by itself: field, condition, and what an op has instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from graphpatch.dtypes import DTYPE_NAMES
from graphpatch.errors import RulesError, did_you_mean
from graphpatch.graph.body import Node
from graphpatch.match import attribute, glob, regex
from graphpatch.match.attribute import OneOf
from graphpatch.match.condition import Condition, on_ops
from graphpatch.match.described import described
from graphpatch.match.glob import Texts, texts


class OpKeys(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The fields of a Match that are told from each op by itself."""

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


class Key(NamedTuple):
    """How the condition of a key is made of its value, and what an op has instead, in words.

    Of a key that has matches in it `graphpatch.match.in_words` has the words.
    """

    condition: Callable[..., Condition]
    in_words: Callable[[Node, Any], str] | None = None


def op_type(wanted: str | Sequence[str]) -> Condition:
    """The op type is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.op))


def _op_type_of(node: Node, wanted: object) -> str:
    return f"it is a {node.op}"


def name(wanted: str | Sequence[str]) -> Condition:
    """The op's name is one of these, which may be globs."""
    is_one = glob.one_of(texts(wanted))
    return on_ops(lambda node: is_one(node.name))


def _name_of(node: Node, wanted: object) -> str:
    return f"name is {node.name!r}"


def name_regex(wanted: str) -> Condition:
    """The regular expression matches the whole name."""
    try:
        meant = regex.whole(wanted)
    except RulesError as error:
        shown = wanted[: glob.QUOTED]
        raise RulesError(f"name_regex {shown!r} is not a regular expression: {error}") from None
    return on_ops(lambda node: meant(node.name))


def dtype(wanted: str | Sequence[str]) -> Condition:
    """Output 0 has one of these dtypes."""
    dtypes, legal = set(texts(wanted)), list(dict.fromkeys(DTYPE_NAMES.values()))
    for text in texts(wanted):
        if text not in legal:
            near = did_you_mean(text, legal) or f"; legal: {', '.join(legal)}"
            raise RulesError(f"dtype: {text!r} is not a dtype of TensorFlow{near}")
    return on_ops(lambda node: any(arg.dtype in dtypes for arg in (node.outputs or [])[:1]))


def _dtype_instead(node: Node, wanted: object) -> str:
    dtypes = [arg.dtype or "not known" for arg in (node.outputs or [])[:1]]
    return f"dtype is {', '.join(dtypes) or 'not known'}"


OP_KEYS: dict[str, Key] = {
    "op": Key(op_type, _op_type_of),
    "name": Key(name, _name_of),
    "name_regex": Key(name_regex, _name_of),
    "attr": Key(attribute.attr, attribute.attrs_in_words),
    "dtype": Key(dtype, _dtype_instead),
}
"""In the order in which they are tried: cheap ones first."""

"""What edits look like as they are written down on nodes: the one place that spells their JSON.

The attr `_graphpatch`, which TensorFlow ignores, is a list of strings: one JSON object an edit, the
oldest first, `{"rule": name, "id": fingerprint of the rule, "did": ..., ...}`. Each tells what was
there before, so that it can be taken back (`undo`). On one node of a graph stands besides, as
`{"did": "origin", ...}`, what the model was. A model comes from anywhere, and so does what is
written in it: each edit is read as one of these types, and as nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from graphpatch.decoding import decoder
from graphpatch.graph.heads import PROVENANCE
from graphpatch.graph.nodedef import Payload, attr_span, attr_value, with_attr, with_inputs

PROVENANCE_ATTR = PROVENANCE.decode()

HEX = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Raw = tuple[tuple[Count, HEX], ...]
Checksum = Annotated[str, msgspec.Meta(pattern="^xxh3:[0-9a-f.]*$")]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Author(NamedTuple):
    """The rule on whose behalf a graph is changed: its name and its fingerprint."""

    rule: str
    id: str


class Edit(
    msgspec.Struct, frozen=True, tag_field="did", forbid_unknown_fields=True, omit_defaults=True
):
    """What a rule did to one node: the rule, by its name and its fingerprint."""

    rule: str
    id: str

    @property
    def did(self) -> str:
        """In one word, as it is written."""
        return str(self.__struct_config__.tag)


class Added(Edit, tag="added", frozen=True, rename={"patched": "for", "clone_of": "of"}):
    """The op was added: for the op that the rule was at, and as a clone of another.

    `reads`: what x0, x1, ... are in the formula of a match that counts as one op. `copies`: the
    rules whose edits that other op carried, and the clone does as well.
    """

    clone_of: str = ""
    patched: str = ""
    reads: tuple[Name, ...] = ()
    copies: tuple[str, ...] = ()


class Renamed(Edit, tag="renamed", frozen=True):
    """The op had another name. `shadowed`: no gradient reaches it under the new one."""

    was: Name
    raw: Raw = ()
    shadowed: bool = False


class Enclosed(Edit, tag="enclosed", frozen=True):
    """The op was put into a function: it had another type, and `node` was its NodeDef."""

    was: Name
    node: HEX


class Shadowed(Edit, tag="shadowed", frozen=True, omit_defaults=False):
    """No gradient reaches the op."""

    shadowed: bool = True


class AttrSet(Edit, tag="attr", frozen=True):
    """An attr had another value, or was not there; it is one for runtimes, not of the op itself."""

    attr: Annotated[str, msgspec.Meta(pattern="^_")]
    was: HEX | None
    raw: Raw = ()

    @property
    def target(self) -> str:
        """What of the node it changed."""
        return self.attr


class InputSet(Edit, tag="input", frozen=True):
    """An input was another one."""

    slot: Count
    was: Name
    raw: Raw = ()

    @property
    def target(self) -> int:
        """What of the node it changed."""
        return self.slot


class Returned(Edit, tag="returned", frozen=True):
    """An output of the function was another tensor: the node is the one that gives it now."""

    output: Name
    was: Name
    turn: Count


class Origin(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="did",
    tag="origin",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """What the model was before its first rule. `rules` has the patch of each rule, by its id.

    `container`, `exported`, `contexts`, `collections` and `fingerprint` are what `formats` must
    know to give the container back; `size` and `hash` are of the file, and missing where it was
    `text` or there was none. `contexts` is None outside of a MetaGraphDef.
    """

    container: str = ""
    text: bool = False
    size: Count = 0
    hash: Checksum = ""
    exported: bool = False
    library: bool = False
    contexts: dict[str, list[Count]] | None = None
    collections: dict[str, HEX] = {}
    fingerprint: HEX = ""
    rules: dict[str, dict[str, Any]]


class Written(NamedTuple):
    """What is written down on one node."""

    edits: tuple[Edit, ...] = ()
    origin: Origin | None = None


ProvenanceEntry = Added | Renamed | Enclosed | Shadowed | AttrSet | InputSet | Returned | Origin


def read_entry(text: bytes) -> Edit | Origin:
    """An edit, or what the model was, from what was written; ValueError says why it is neither."""
    try:
        entry: Edit | Origin = decoder(ProvenanceEntry).decode(text)
        return entry
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def write_entry(entry: Edit | Origin) -> bytes:
    """What is written down: the rule first, then what it did."""
    told = msgspec.to_builtins(entry)
    did = {"did": told.pop("did")}
    if isinstance(entry, Origin):
        return msgspec.json.encode({**told, **did})
    by = {key: told.pop(key) for key in ("rule", "id")}
    return msgspec.json.encode({**by, **did, **told})


def signed(payload: Payload, *more: Edit) -> Payload:
    """The payload with more edits written down."""
    span = attr_span(payload, PROVENANCE_ATTR)
    value = AttrValue() if span is None else attr_value(span)
    value.list.s.extend(map(write_entry, more))
    return with_attr(payload, PROVENANCE_ATTR, value.SerializeToString(deterministic=True))


def rewritten(payload: Payload, found: Sequence[Edit | Origin]) -> Payload:
    """The payload with these edits written down, and no others."""
    if not found:
        return with_attr(payload, PROVENANCE_ATTR, None)
    value = AttrValue(list=AttrValue.ListValue(s=map(write_entry, found)))
    return with_attr(payload, PROVENANCE_ATTR, value.SerializeToString(deterministic=True))


class SetInputs(msgspec.Struct, eq=False):
    """A node whose inputs were set, by edits that its NodeDef does not tell of yet.

    `inputs` is the list that the body has of them meanwhile, and in which they are set.
    """

    before: Payload
    inputs: list[str]
    edits: list[InputSet] = msgspec.field(default_factory=list)

    def payload(self) -> Payload:
        """The NodeDef with all of them."""
        return signed(with_inputs(self.before, self.inputs), *self.edits)

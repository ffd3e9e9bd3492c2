"""What an edit looks like as it is written down in a model: the one place that spells its JSON.

A model comes from anywhere, and so does what is written in it. Each edit is read as one of these
types, and as nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec

HEX = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Raw = tuple[tuple[Count, HEX], ...]
Checksum = Annotated[str, msgspec.Meta(pattern="^xxh3:[0-9a-f.]*$")]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Edit(msgspec.Struct, frozen=True, tag_field="did", forbid_unknown_fields=True):
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

    clone_of: str | msgspec.UnsetType = msgspec.UNSET
    patched: str | msgspec.UnsetType = msgspec.UNSET
    reads: tuple[Name, ...] | msgspec.UnsetType = msgspec.UNSET
    copies: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Renamed(Edit, tag="renamed", frozen=True):
    """The op had another name."""

    was: Name
    raw: Raw | msgspec.UnsetType = msgspec.UNSET
    shadowed: bool | msgspec.UnsetType = msgspec.UNSET


class Enclosed(Edit, tag="enclosed", frozen=True):
    """The op was put into a function: it had another type, and `node` was its NodeDef."""

    was: Name
    node: HEX


class Shadowed(Edit, tag="shadowed", frozen=True):
    """No gradient reaches the op."""

    shadowed: bool = True


class AttrSet(Edit, tag="attr", frozen=True):
    """An attr had another value, or was not there; it is one for runtimes, not of the op itself."""

    attr: Annotated[str, msgspec.Meta(pattern="^_")]
    was: HEX | None
    raw: Raw | msgspec.UnsetType = msgspec.UNSET


class InputSet(Edit, tag="input", frozen=True):
    """An input was another one."""

    slot: Count
    was: Name
    raw: Raw | msgspec.UnsetType = msgspec.UNSET


class Returned(Edit, tag="returned", frozen=True):
    """An output of the function was another tensor."""

    output: Name
    was: Name
    turn: Count


class Origin(
    msgspec.Struct, frozen=True, tag_field="did", tag="origin", forbid_unknown_fields=True
):
    """What the model was before its first rule. `rules` has the patch of each rule, by its id."""

    container: str | msgspec.UnsetType = msgspec.UNSET
    text: bool | msgspec.UnsetType = msgspec.UNSET
    size: Count | msgspec.UnsetType = msgspec.UNSET
    hash: Checksum | msgspec.UnsetType = msgspec.UNSET
    exported: bool | msgspec.UnsetType = msgspec.UNSET
    library: bool | msgspec.UnsetType = msgspec.UNSET
    contexts: dict[str, list[Count]] | msgspec.UnsetType = msgspec.UNSET
    collections: dict[str, HEX] | msgspec.UnsetType = msgspec.UNSET
    fingerprint: HEX | msgspec.UnsetType = msgspec.UNSET
    rules: dict[str, dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET

    @property
    def did(self) -> str:
        """In one word, as it is written."""
        return "origin"


ProvenanceEntry = Added | Renamed | Enclosed | Shadowed | AttrSet | InputSet | Returned | Origin


@cache
def _decoder() -> msgspec.json.Decoder[ProvenanceEntry]:
    return msgspec.json.Decoder(ProvenanceEntry)


def read_entry(text: bytes) -> Edit | Origin:
    """An edit, or what the model was, from what was written; ValueError says why it is neither."""
    try:
        return _decoder().decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def write_entry(edit: Edit | Origin) -> bytes:
    """What is written down: the rule first, then what it did."""
    told = msgspec.to_builtins(edit)
    did = {"did": told.pop("did")}
    if isinstance(edit, Origin):
        return msgspec.json.encode({**told, **did})
    by = {key: told.pop(key) for key in ("rule", "id")}
    return msgspec.json.encode({**by, **did, **told})

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
Raw = list[tuple[Count, HEX]]
Checksum = Annotated[str, msgspec.Meta(pattern="^xxh3:[0-9a-f.]*$")]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Edit(msgspec.Struct, tag_field="did", forbid_unknown_fields=True, omit_defaults=True):
    rule: str
    id: str


class Added(_Edit, tag="added", rename={"patched": "for", "clone_of": "of"}):
    """The op was added: for the op that the rule was at, and as a clone of another.

    `reads`: what x0, x1, ... are in the formula of a match that counts as one op. `copies`: the
    rules whose edits that other op carried, and the clone does as well.
    """

    patched: str | msgspec.UnsetType = msgspec.UNSET
    clone_of: str | msgspec.UnsetType = msgspec.UNSET
    reads: list[Name] | msgspec.UnsetType = msgspec.UNSET
    copies: list[str] | msgspec.UnsetType = msgspec.UNSET


class Renamed(_Edit, tag="renamed"):
    """The op had another name."""

    was: Name
    raw: Raw | msgspec.UnsetType = msgspec.UNSET
    shadowed: bool | msgspec.UnsetType = msgspec.UNSET


class Enclosed(_Edit, tag="enclosed"):
    """The op was put into a function: it had another type, and `node` was its NodeDef."""

    was: Name
    node: HEX


class Shadowed(_Edit, tag="shadowed"):
    """No gradient reaches the op."""

    shadowed: bool = True


class AttrSet(_Edit, tag="attr", omit_defaults=False):
    """An attr had another value, or was not there; it is one for runtimes, not of the op itself."""

    attr: Annotated[str, msgspec.Meta(pattern="^_")]
    was: HEX | None
    raw: Raw | msgspec.UnsetType = msgspec.UNSET


class InputSet(_Edit, tag="input"):
    """An input was another one."""

    slot: Count
    was: Name
    raw: Raw | msgspec.UnsetType = msgspec.UNSET


class Returned(_Edit, tag="returned"):
    """An output of the function was another tensor."""

    output: Name
    was: Name
    turn: Count


class Origin(
    msgspec.Struct, tag_field="did", tag="origin", forbid_unknown_fields=True, omit_defaults=True
):
    """What the model was before its first rule. `rules` has the patch of each rule, by its id."""

    rules: dict[str, dict[str, Any]] | msgspec.UnsetType = msgspec.UNSET
    container: str | msgspec.UnsetType = msgspec.UNSET
    text: bool | msgspec.UnsetType = msgspec.UNSET
    size: Count | msgspec.UnsetType = msgspec.UNSET
    hash: Annotated[str, msgspec.Meta(pattern="^xxh3:[0-9a-f.]*$")] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    exported: bool | msgspec.UnsetType = msgspec.UNSET
    library: bool | msgspec.UnsetType = msgspec.UNSET
    contexts: dict[str, list[Count]] | msgspec.UnsetType = msgspec.UNSET
    collections: dict[str, HEX] | msgspec.UnsetType = msgspec.UNSET
    fingerprint: HEX | msgspec.UnsetType = msgspec.UNSET


Edit = Added | Renamed | Enclosed | Shadowed | AttrSet | InputSet | Returned | Origin


@cache
def _decoder() -> msgspec.json.Decoder[Edit]:
    return msgspec.json.Decoder(Edit)


def read(text: bytes) -> dict[str, Any]:
    """An edit as a dict of what was written; ValueError says why it is none."""
    try:
        _decoder().decode(text)
        found: dict[str, Any] = msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    return found


def write(entry: dict[str, Any]) -> bytes:
    """An edit as it is written down."""
    return msgspec.json.encode(entry)

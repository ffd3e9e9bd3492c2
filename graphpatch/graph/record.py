"""What rules write down: on each node that they touch, and once of the whole model.

The attr `_graphpatch`, which TensorFlow ignores, is a list of strings. The first is a NodeRecord as
JSON; the others are the node as it was before the first rule, byte for byte, and missing where a
rule added the node. Fields as large as weights are left out, as no rule changes them: they go
between these strings, as the node has them now. The first node of the file that carries a record
carries the ModelRecord too. A model comes from anywhere, and so does what is written in it: a
record is read as one of these types, and as nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import structs

from graphpatch.decoding import decoder
from graphpatch.errors import ModelError

PROVENANCE_ATTR = "_graphpatch"
SHORT_ID = 8  # digits of an id that are shown
OLD = (
    "patched by graphpatch 0.1 or 0.2, whose records this version does not read; use that "
    "version, or the original"
)

HEX = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Checksum = Annotated[str, msgspec.Meta(pattern="^(xxh3:[0-9a-f.]*)?$")]


class Author(NamedTuple):
    """The rule on whose behalf a graph is changed: its name and its fingerprint."""

    rule: str
    id: str


class AppliedRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that was applied to a model: its name, its fingerprint, and all of it as JSON."""

    name: str
    id: str
    rule: dict[str, Any]

    @property
    def author(self) -> Author:
        """Return the rule by its name and fingerprint."""
        return Author(self.name, self.id)

    @property
    def patch(self) -> dict[str, Any]:
        """Return the patch, as a rules file writes it."""
        patch = self.rule.get("patch")
        return patch if isinstance(patch, dict) else {}

    @property
    def is_python(self) -> bool:
        """Return whether its gradient is computed by a function in Python."""
        return any(isinstance(value, dict) and "python" in value for value in self.patch.values())


class ModelRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The rules that were applied to a model, in their order, and what it was before the first.

    `version` is graphpatch's, `live` says that the model was a live graph. `container`, `exported`,
    `library`, `contexts`, `collections` and `fingerprint` are what `formats` must know to give the
    container back; `size` and `hash` are of the file, and missing where it was `text` or there was
    none. `contexts` is None outside of a MetaGraphDef. `returns` has for functions whose outputs
    are other tensors now what these were, `written` a checksum of what rules wrote. `reads`
    is how many inputs of the model read ops that rules touched.
    """

    version: str = ""
    rules: tuple[AppliedRule, ...] = ()
    live: bool = False
    container: str = ""
    text: bool = False
    size: Count = 0
    hash: Checksum = ""
    exported: bool = False
    library: bool = False
    contexts: dict[str, list[Count]] | None = None
    collections: dict[str, HEX] = {}
    fingerprint: HEX = ""
    returns: dict[str, dict[str, str]] = {}
    reads: Count = 0
    written: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{0,16}$")] = ""

    @property
    def again(self) -> list[dict[str, Any] | None]:
        """Return the rules as JSON; None for one that the file alone cannot apply again."""
        return [None if self.live or rule.is_python else rule.rule for rule in self.rules]


class NodeRecord(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What rules did to one node, the rules by their places in the ModelRecord.

    `rules` patched it, `inputs` only let it read other tensors. `keys` set the key of its gradient,
    `shadow` gave its outputs another gradient, so that none reaches it. Of an added node: the op
    that the rule was at (`patched`), the op that it is a clone of, and what x0, x1, ... are in the
    formula of a match that counts as one op. No rule is named where the container needs the node.

    `original` is the node before the first rule, without large fields; empty for an added one. It
    stands beside the JSON.
    """

    rules: tuple[Count, ...] = ()
    inputs: tuple[Count, ...] = ()
    keys: tuple[Count, ...] = ()
    shadow: Count | None = None
    patched: str = msgspec.field(name="for", default="")
    clone_of: str = msgspec.field(name="of", default="")
    reads: tuple[str, ...] = ()
    model: ModelRecord | None = None
    original: tuple[bytes, ...] = ()

    @property
    def is_added(self) -> bool:
        """Return whether a rule added the node."""
        return not self.original

    def json(self) -> bytes:
        """Return the record as JSON, without the original."""
        return _ENCODER.encode(structs.replace(self, original=()))

    def texts(self) -> list[bytes]:
        """Return the strings of the attr."""
        return [self.json(), *self.original]

    def touch(self, rule: int | None, only_input: bool = False) -> None:
        """Write down a rule that changed the node."""
        if rule is None:
            return
        if only_input and rule not in self.inputs:
            self.inputs += (rule,)
        elif not only_input and rule not in self.rules:
            self.rules += (rule,)


_DECODER, _ENCODER = decoder(NodeRecord), msgspec.json.Encoder()


def read_strings(strings: Sequence[bytes]) -> NodeRecord:
    """Read a record; ValueError says why it is none, ModelError that an older version wrote it."""
    if not strings:
        raise ValueError("it is not a list of strings")
    try:
        record: NodeRecord = _DECODER.decode(strings[0])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except msgspec.MsgspecError as error:
        if b'"did"' in strings[0]:
            raise ModelError(OLD) from None
        raise ValueError(str(error)) from None
    if len(strings) > 1:
        record.original = tuple(strings[1:])
    return record


def labels(rules: Iterable[Author]) -> dict[Author, str]:
    """Return each rule's name, with its id where several have that name."""
    authors = list(dict.fromkeys(rules))
    counts = Counter(author.rule for author in authors)
    ids = {author: f" ({author.id[:SHORT_ID]})" * (counts[author.rule] > 1) for author in authors}
    return {author: f"{author.rule}{shown}" for author, shown in ids.items()}

"""What `--json` prints of a value: a JSON object of its attributes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar


class Document:
    """A value that `--json` prints, with the attributes that `keys` names, in their order.

    `key=attribute` is for an attribute that the JSON calls otherwise; `attribute` may have dots.
    `key?` is left out where it is empty.
    """

    __slots__ = ()
    keys: ClassVar[str]

    def document(self) -> dict[str, Any]:
        """Return the value as `--json` prints it."""
        return document_of(self, self.keys)


def document_of(value: object, keys: str) -> dict[str, Any]:
    """Return a JSON object with these attributes of a value, written as in `Document.keys`."""
    document = {}
    for text in keys.split():
        key, _, attribute = text.partition("=")
        item = attrgetter(attribute or key.rstrip("?"))(value)
        if item or not key.endswith("?"):
            document[key.rstrip("?")] = _as_json(item)
    return document


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [item.document() if isinstance(item, Document) else item for item in value]
    return value.document() if isinstance(value, Document) else value

"""What the schema says of a key, beside the type of its value: `Annotated[int, described(...)]`.

`msgspec.json.schema` puts it into the JSON Schema, from which editors and the reference have it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Meta


def described(text: str, example: Any, at_least: int | None = None) -> Meta:
    """What a key means, with a value that is legal there, and the least number where it is one."""
    return Meta(description=text, examples=[example], ge=at_least)

"""The error for what a key alone cannot do."""

from __future__ import annotations

from graphpatch.errors import PatchError


class NoKeyError(PatchError):
    """A patch needs more than a key on an op; a patched graph can do it."""
